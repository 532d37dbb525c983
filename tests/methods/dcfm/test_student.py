import math
from itertools import pairwise

import pytest
import torch
from scene import HELD, NOVEL, corner_silos, coverage, opened

from anabranch.data.attributes import CORNERS, corner_modes
from anabranch.errors import DataError, UsageError
from anabranch.flow.conditioning import full_penalty
from anabranch.methods.dcfm import CompositionServer, composition, train_composition
from anabranch.methods.dcfm._replay import Replay, follow
from anabranch.methods.dcfm._student import Student
from anabranch.methods.experts import Holders, Mixture

SIGMA = 0.2


def exact(x, t, y):
    """The true velocity of each corner: coordinates are independent, and so are the attributes, given x_t."""
    t = t.expand(len(x))[:, None]
    centre = corner_modes()[CORNERS.encode(y)].to(x.dtype)
    variance = (1 - t) ** 2 + t**2 * SIGMA**2
    return centre + (t * SIGMA**2 - (1 - t)) / variance * (x - t * centre)


def followed(teacher, x0, y, steps, generator):
    replay = Replay.room(steps * len(x0), x0.shape[1], y.shape[1], x0)
    follow(teacher, x0, y, generator, replay)
    return replay


class TestReplay:
    def test_notes_the_teachers_own_velocities_along_its_path(self):
        y = torch.zeros(64, 2, dtype=torch.long)
        generator = torch.Generator().manual_seed(0)
        x0 = torch.randn(64, 2, generator=generator, dtype=torch.float64)
        replay = followed(lambda x, t, y: -x, x0, y, 40, generator)
        assert torch.equal(replay.v, -replay.x)
        exact_path = x0.repeat(40, 1) * torch.exp(-replay.t)[:, None]
        assert float((replay.x - exact_path).abs().max()) < 2e-3

    def test_is_of_second_order(self):
        x0 = torch.ones(64, 1, dtype=torch.float64)
        errors = []
        for steps in (20, 40):
            replay = followed(
                lambda x, t, y: -x, x0, torch.zeros(64, 1).long(), steps, torch.Generator().manual_seed(0)
            )
            errors.append(float((replay.x[-64:] - torch.exp(-replay.t[-64:])[:, None]).abs().max()))
        assert errors[0] / errors[1] > 3

    def test_meets_all_times(self):
        replay = followed(lambda x, t, y: 0 * x, torch.zeros(500, 1), torch.zeros(500, 1).long(), 10, torch.Generator())
        share = torch.histc(replay.t, 20, 0, 1) / len(replay)
        assert float((share - 0.05).abs().max()) < 0.01

    def test_is_given_room_for_as_many_times_of_all(self):
        x0, y = torch.zeros(4, 1), torch.zeros(4, 1).long()
        with pytest.raises(ValueError, match="room for 9 rows"):
            follow(lambda x, t, y: x, x0, y, torch.Generator(), Replay.room(9, 1, 1, x0))


class TestStudent:
    @pytest.mark.parametrize("method", ["dcfm-b", "additive"])
    def test_of_exact_teachers_reaches_a_combination_that_none_of_them_knows(self, method):
        """Teachers with the true velocities of what they hold; the student must find the fourth corner."""
        settings = composition(
            method,
            experts={"hidden": 48, "layers": 2, "full": 0.98, "marginal": 0.01, "unconditional": 0.01},
            student={"steps": 400, "batch": 128, "rate": 5e-3, "trajectories": 512, "path_steps": 24},
        )
        held = coverage(HELD)
        teachers = dict.fromkeys(HELD, exact)
        student = Student(settings, held, torch.zeros(1), 2, seed=0)
        student.train(Mixture(teachers, held, Holders(held)), 400)
        mixture = Mixture({"flow": student.field()}, held, Holders(held))
        y = CORNERS.decode(torch.tensor([NOVEL])).expand(300, -1)
        x = mixture.sample(y, torch.Generator().manual_seed(0), 20, dimension=2).x1
        assert (x.mean(0) - 1).abs().max() < 0.45
        known = CORNERS.decode(torch.tensor([0])).expand(300, -1)
        there = mixture.sample(known, torch.Generator().manual_seed(0), 20, dimension=2).x1
        assert (there.mean(0) - corner_modes()[0]).abs().max() < 0.15

    def test_teachers_may_be_sharpened(self):
        """Where every label's velocity is known, the student's targets are v(∅) + w (v(y) − v(∅))."""
        settings = composition(
            "dcfm-b", student={"steps": 2, "batch": 8, "trajectories": 12, "path_steps": 3, "guidance": 3.0}
        )
        student = Student(settings, coverage(HELD), torch.zeros(1), 2, seed=0)
        teacher = lambda x, t, y: x + y.clamp_min(-1).sum(1, keepdim=True)  # noqa: E731
        teachers = dict.fromkeys(HELD, teacher)
        student.train(Mixture(teachers, coverage(HELD), Holders(coverage(HELD))), 1)
        pool = student._pool
        assert torch.allclose(pool.v, pool.x - 2 + 3 * (pool.y.sum(1, keepdim=True) + 2), atol=1e-5)

    def test_an_additive_student_composes_at_the_price_of_its_terms(self):
        """Its k + 1 terms are one pass, weighted or not; composed as any field they would be (k + 1)² rows."""
        flow = train_composition(
            corner_silos(),
            "additive",
            experts={"steps": 4, "batch": 16, "hidden": 16, "layers": 2},
            student={"steps": 3, "batch": 16, "trajectories": 20, "path_steps": 3},
        )
        (field,) = flow.mixture.experts.values()
        rows = []
        field.module.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
        x, y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1]] * 5)
        found = flow.mixture.field(y, "composed", [3.0, 2.0])(x, torch.tensor(0.5), y)
        assert rows == [5]
        terms = field.parts(x, torch.tensor(0.5), y)
        assert torch.allclose(found, terms[0] + 3 * terms[1] + 2 * terms[2], atol=1e-6)
        assert torch.allclose(field(x, torch.tensor(0.5), y), terms.sum(0), atol=1e-6)

    def test_a_student_may_begin_as_the_expert_that_has_seen_most(self):
        sections = {"experts": {"steps": 4, "batch": 16, "hidden": 16, "layers": 2}}
        few = {"steps": 2, "batch": 16, "trajectories": 20, "path_steps": 3, "rate": 1e-9, "start": "expert"}
        flow = train_composition(corner_silos(), "dcfm-b", student=few, **sections)
        (field,) = flow.mixture.experts.values()
        counts = flow.coverage.counts
        widest = max(counts, key=lambda name: (int((counts[name] > 0).sum()), name))
        distance = {
            name: max(float((own[place] - field.parameters[place]).abs().max()) for place in own)
            for name, own in flow.experts.items()
        }
        assert distance.pop(widest) < 1e-6 < min(distance.values())
        with pytest.raises(UsageError, match="start it fresh"):
            composition("additive", student={"start": "expert"})

    def test_a_student_may_be_additive_since_some_time(self):
        """Before it tells combinations apart that differ by no sum; afterwards it has no interaction left."""
        flow = train_composition(
            corner_silos(),
            "additive",
            experts={"steps": 4, "batch": 16, "hidden": 16, "layers": 2},
            student={"steps": 3, "batch": 16, "trajectories": 20, "path_steps": 3, "since": 0.5},
        )
        (field,) = flow.mixture.experts.values()
        x, y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1]] * 5)
        assert full_penalty(field, x, torch.tensor(0.6), y) < 1e-12 < full_penalty(field, x, torch.tensor(0.4), y)
        with pytest.raises(UsageError, match=r"student\.since"):
            composition("additive", student={"since": 2.0})

    def test_an_additive_student_may_know_its_terms(self):
        """Shown single attributes and none as well, c learns the mean over all corners held, which is no corner."""
        settings = composition(
            "additive",
            experts={"hidden": 32, "layers": 2, "full": 0.4, "marginal": 0.3, "unconditional": 0.3},
            student={"steps": 300, "batch": 128, "rate": 5e-3, "trajectories": 512, "path_steps": 16, "whole": False},
        )
        teachers = dict.fromkeys(HELD, exact)
        student = Student(settings, coverage(), torch.zeros(1), 2, seed=0)
        student.train(Mixture(teachers, coverage(), Holders(coverage())), 300)
        x = torch.zeros(1, 2)
        nothing = student.field()(x, torch.tensor(0.05), torch.full((1, 2), -1))
        mean = (corner_modes()[0] + 2 * corner_modes()[1] + corner_modes()[3]) / 4  # of what is held, as often as it is
        assert float((nothing - mean).abs().max()) < 0.35

    @pytest.mark.parametrize(("method", "guidance"), [("dcfm-b", 1.0), ("dcfm-b", 2.0), ("hybrid", 1.0)])
    def test_passes_are_the_rows_that_teachers_are_asked_about(self, method, guidance):
        """Some steps share the paths; what an expert of a mixture adds up, or is sharpened by, counts as well."""
        rows = []

        def teacher(x, t, y):
            rows.append(len(x))
            return 0 * x

        teachers = {name: (lambda x, t, y: teacher(x, t, y)) for name in HELD}
        student = {"steps": 8, "batch": 16, "trajectories": 30, "path_steps": 4, "refresh": 4, "guidance": guidance}
        settings = composition(method, experts={"hidden": 8, "layers": 1}, student=student)
        made = Student(settings, coverage(HELD), torch.zeros(1), 2, seed=0)
        metrics = made.train(Mixture(teachers, coverage(HELD), Holders(coverage(HELD))), 4)
        plain = 30 * (4 + 1)
        assert sum(rows) == 2 * plain if guidance == 2 else sum(rows) >= plain
        assert metrics["forward"] - metrics["backward"] == pytest.approx(sum(rows) / (16 * 4))
        assert method != "hybrid" or sum(rows) > plain  # mixtures of two, and compositions of three terms

    def test_additive_since_some_time_it_takes_all_terms_of_every_row(self):
        rows = []
        settings = composition(
            "additive",
            experts={"hidden": 8, "layers": 1},
            student={"steps": 2, "batch": 16, "trajectories": 20, "path_steps": 3, "since": 0.5},
        )
        made = Student(settings, coverage(HELD), torch.zeros(1), 2, seed=0)
        made.network.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
        teachers = dict.fromkeys(HELD, exact)
        metrics = made.train(Mixture(teachers, coverage(HELD), Holders(coverage(HELD))), 1)
        assert metrics["backward"] == sum(rows) / 16 == 3

    def test_teachers_may_be_followed_together(self):
        """Every point's velocity is the mean of those who hold its label, by their counts, and leads on from there."""
        held = coverage(HELD)
        speeds = {name: float(number + 1) for number, name in enumerate(HELD)}
        teachers = {name: (lambda x, t, y, speed=speed: speed + 0 * x) for name, speed in speeds.items()}
        settings = composition(
            "dcfm-b", student={"steps": 2, "trajectories": 200, "path_steps": 3, "paths": "together"}
        )
        student = Student(settings, held, torch.zeros(1), 2, seed=0)
        student.train(Mixture(teachers, held, Holders(held)), 1)
        pool, total = student._pool, held.total.double()
        share = torch.stack([held.counts[name] / total.clamp_min(1) for name in HELD])
        mean = (share * torch.tensor(list(speeds.values()))[:, None]).sum(0)
        label = CORNERS.encode(pool.y)
        assert set(label.tolist()) == {0, 1, 3}
        assert torch.allclose(pool.v.double(), mean[label][:, None].expand(-1, 2), atol=1e-6)
        drawn = torch.bincount(label, minlength=4) / len(label)
        assert float((drawn - total / total.sum()).abs().max()) < 0.1
        begun, further = pool.rows(0, 200), pool.rows(200, 200)
        assert torch.allclose(further.x - begun.x, begun.v * (further.t - begun.t)[:, None], atol=1e-5)

    @pytest.mark.parametrize("paths", ["teachers", "together"])
    def test_teachers_are_asked_only_for_what_they_hold(self, paths):
        asked = {name: set() for name in HELD}

        def noting(name):
            def teacher(x, t, y):
                asked[name] |= set(CORNERS.encode(y).tolist())
                return exact(x, t, y)

            return teacher

        teachers = {name: noting(name) for name in HELD}
        settings = composition("dcfm-b", student={"steps": 2, "trajectories": 200, "path_steps": 3, "paths": paths})
        student = Student(settings, coverage(), torch.zeros(1), 2, seed=0)
        student.train(Mixture(teachers, coverage(), Holders(coverage())), 1)
        assert asked == {name: set(labels) for name, labels in HELD.items()}

    def test_composed_paths_lead_to_novel_combinations(self):
        wanted = []

        def teacher(x, t, y):
            wanted.append(y)
            return torch.zeros_like(x)

        settings = composition("hybrid", student={"steps": 2, "trajectories": 400, "path_steps": 2, "novel": 0.25})
        student = Student(settings, coverage(), torch.zeros(1), 2, seed=0)
        teachers = {"a": teacher}
        student.train(Mixture(teachers, coverage({"a": (0, 1, 3)}), Holders(coverage())), 1)
        share = float((CORNERS.encode(student._pool.y) == NOVEL).float().mean())
        assert abs(share - 0.25) < 0.08

    def test_paths_are_drawn_anew(self):
        settings = composition("dcfm-b", student={"steps": 9, "trajectories": 20, "path_steps": 3, "refresh": 4})
        student = Student(settings, coverage(), torch.zeros(1), 2, seed=0)
        teachers = dict.fromkeys(HELD, exact)
        mixture = Mixture(teachers, coverage(), Holders(coverage()))
        pools, places = [], set()
        for _ in range(9):
            student.train(mixture, 1)
            pools.append(student._pool.x.clone())
            places.add(student._pool.x.data_ptr())
        same = [torch.equal(one, other) for one, other in pairwise(pools)]
        assert same == [True, True, True, False, True, True, True, False]
        assert len(places) == 1  # a recorded step reads it where it lies

    @pytest.mark.parametrize("method", ["dcfm-b", "hybrid"])
    def test_trajectories_are_followed_a_few_at_a_time(self, method, monkeypatch):
        """Every row is written, and is one that the teacher said."""
        monkeypatch.setattr("anabranch.methods.dcfm._student.CHUNK", 7)
        settings = composition(method, student={"steps": 2, "trajectories": 40, "path_steps": 3})
        student = Student(settings, coverage(), torch.zeros(1), 2, seed=0)
        teachers = dict.fromkeys(HELD, lambda x, t, y: -x)
        plain = Replay.room

        def room(*like):
            found = plain(*like)
            for part in (found.x, found.t, found.y, found.v):
                part.fill_(99)
            return found

        monkeypatch.setattr(Replay, "room", staticmethod(room))
        student.train(Mixture(teachers, coverage(), Holders(coverage())), 1)
        pool = student._pool
        assert len(pool) == 120 and torch.equal(pool.v, -pool.x) and float(pool.x.abs().max()) < 9
        assert float(pool.t.max()) < 1 and int(pool.y.max()) < 2

    def test_says_if_it_has_come_off_its_way(self, caplog):
        settings = composition(
            "dcfm-b", experts={"hidden": 16}, student={"steps": 60, "trajectories": 200, "path_steps": 8, "refresh": 60}
        )
        student, teachers = Student(settings, coverage(), torch.zeros(1), 2, seed=0), dict.fromkeys(HELD, exact)
        mixture = Mixture(teachers, coverage(), Holders(coverage()))
        for _ in range(20):
            student.train(mixture, 2)
        assert not caplog.records
        with torch.no_grad():
            for parameter in student.learner.parameters.values():
                parameter.mul_(20)
        for _ in range(2):
            student.train(mixture, 2)
        (record,) = caplog.records
        assert "by step 42" in record.getMessage() and "student.rate" in record.getMessage()

    def test_a_loss_that_is_no_number_ends_it(self):
        settings = composition(
            "dcfm-b", experts={"hidden": 8}, student={"steps": 4, "trajectories": 20, "path_steps": 3}
        )
        student, teachers = Student(settings, coverage(), torch.zeros(1), 2, seed=0), dict.fromkeys(HELD, exact)
        with torch.no_grad():
            next(iter(student.learner.parameters.values())).fill_(math.nan)
        with pytest.raises(DataError, match=r"not finite by step 1; lower student\.rate"):
            student.train(Mixture(teachers, coverage(), Holders(coverage())), 1)

    def test_training_goes_on_to_the_bit(self):
        settings = composition(
            "dcfm-b", experts={"hidden": 8}, student={"steps": 9, "trajectories": 20, "path_steps": 3, "refresh": 4}
        )
        teachers = dict.fromkeys(HELD, exact)
        mixture = Mixture(teachers, coverage(), Holders(coverage()))
        whole, first, second = (Student(settings, coverage(), torch.zeros(1), 2, seed=0) for _ in range(3))
        whole.train(mixture, 9)
        first.train(mixture, 5)
        second.learner.load("s", first.learner.state("s"))
        second.train(mixture, 4)
        for name, tensor in whole.learner.parameters.items():
            assert torch.equal(tensor, second.learner.parameters[name])


def test_every_silo_receives_the_student():
    silos = corner_silos()
    settings = composition(
        "dcfm-b", experts={"steps": 3, "hidden": 8}, student={"steps": 3, "trajectories": 20, "path_steps": 3}
    )
    server = CompositionServer(settings, opened(silos))
    list(server.run())
    for name, tensor in server.student.learner.average.parameters.items():
        assert all(torch.equal(silo.state[f"dcfm/student/{name}"], tensor) for silo in silos)


def test_the_exact_velocity_is_exact():
    """The reference of these tests: it carries N(0, I) to N(centre, σ² I)."""
    from anabranch.flow import integrate
    from anabranch.flow.conditioning import conditioned

    y = torch.zeros(4000, 2, dtype=torch.long)
    x = integrate(conditioned(exact, y), torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)), 200).x1
    assert (x.mean(0) - corner_modes()[0]).abs().max() < 3 * SIGMA / math.sqrt(4000) + 0.01
    assert float(x.std(0).mean()) == pytest.approx(SIGMA, rel=0.05)
