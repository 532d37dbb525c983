from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scene import corner_silos, opened

from anabranch.data.attributes import CORNERS
from anabranch.errors import RefusedError, UsageError
from anabranch.flow.conditioning import Masking, full_penalty
from anabranch.methods.dcfm import CompositionServer, composition
from anabranch.methods.experts import (
    Example,
    ExpertSettings,
    Learner,
    Restore,
    Share,
    Survey,
    Train,
    bind,
    example,
    expert_network,
    expert_of,
    losses,
    precision_warnings,
    shown_attributes,
)
from anabranch.methods.experts._half import half_of, start
from anabranch.methods.experts._silo import train, train_together

QUICK = {"steps": 12, "batch": 32, "hidden": 16, "layers": 2}


def product(x, t, y):
    """A field whose attributes are not independent."""
    return x * (y.clamp_min(0) + 1).prod(1, keepdim=True)


def batch_of(settings, k=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x1 = torch.randn(200, 3, generator=generator)
    codes = torch.randint(2, (200, k), generator=generator)
    return example(x1, codes, settings, generator)


class TestLosses:
    def test_penalty_is_eq_10_and_matching_weighs_all_masks(self):
        settings = ExpertSettings(penalty=1.0, batch=50, full=0.7, marginal=0.2, unconditional=0.1)
        batch = batch_of(settings)
        found = losses(product, batch)
        assert torch.isclose(found.independence, full_penalty(product, batch.x_t, batch.t, batch.y))
        masks, weight = Masking(0.7, 0.2, 0.1).masks(2)
        by_hand = sum(
            w * (product(batch.x_t, batch.t, torch.where(mask, batch.y, -1)) - batch.u_t).square().mean()
            for mask, w in zip(masks, weight, strict=True)
        )
        assert torch.isclose(found.matching, by_hand)

    def test_a_late_penalty_counts_a_power_of_time(self):
        early, late = (batch_of(ExpertSettings(penalty=1.0, batch=50, late=power)) for power in (0.0, 2.0))
        by_rows = torch.stack(
            [full_penalty(product, late.x_t[i : i + 1], late.t[i : i + 1], late.y[i : i + 1]) for i in range(50)]
        )
        assert torch.isclose(losses(product, late).independence, (late.t**2 * by_rows).mean())
        assert torch.isclose(losses(product, early).independence, by_rows.mean())

    def test_without_a_penalty_masks_are_drawn_and_one_pass_is_enough(self):
        batch = batch_of(ExpertSettings(penalty=0.0, batch=4000, full=0.5, marginal=0.3, unconditional=0.2))
        assert batch.masks.shape == (1, 4000, 2) and batch.gap == 0
        given = batch.masks[0].sum(1)
        assert [round(float((given == n).float().mean()), 1) for n in (0, 1, 2)] == [0.2, 0.3, 0.5]
        assert float(losses(product, batch).independence) == 0

    def test_pairs_take_five_masks_however_many_attributes(self):
        batch = batch_of(ExpertSettings(penalty=1.0, independence="pairs", batch=40), k=5)
        assert batch.masks.shape == (5, 40, 5) and batch.gap == 4
        assert batch.masks.sum(2).unique(dim=1)[:, 0].tolist() == [5, 2, 1, 1, 0]
        assert float(batch.weight.sum()) == pytest.approx(1)

    def test_drawn_and_weighted_masks_have_the_same_expectation(self):
        settings = ExpertSettings(batch=100, full=0.5, marginal=0.3, unconditional=0.2)
        batch = batch_of(settings)
        all_masks = shown_attributes(batch.y, settings, settings.masking, True, torch.Generator().manual_seed(0))
        exact = losses(
            product, Example(batch.x_t, batch.u_t, batch.t, batch.y, all_masks.masks, all_masks.weight, all_masks.gap)
        )
        drawn = []
        for seed in range(400):
            shown = shown_attributes(batch.y, settings, settings.masking, False, torch.Generator().manual_seed(seed))
            one = Example(batch.x_t, batch.u_t, batch.t, batch.y, shown.masks, shown.weight, 0)
            drawn.append(losses(product, one).matching)
        drawn = torch.stack(drawn)
        assert abs(drawn.mean() - exact.matching) < 4 * drawn.std() / 20

    def test_the_penalty_may_look_at_a_part_of_the_batch(self):
        """Its first rows under all masks, the others under the one they draw, weighed as if all had drawn."""
        settings = ExpertSettings(
            penalty=1.0, batch=40, compared=0.25, late=1.0, full=0.5, marginal=0.3, unconditional=0.2
        )
        batch = batch_of(settings)
        assert batch.rest is not None and batch.rest.shape == (30, 2) and batch.passes == (4 * 10 + 30) / 40
        first = Example(
            *(part[:10] for part in (batch.x_t, batch.u_t, batch.t, batch.y)), batch.masks, batch.weight, batch.gap, 1.0
        )
        error = product(batch.x_t[10:], batch.t[10:], torch.where(batch.rest, batch.y[10:], -1)) - batch.u_t[10:]
        found, alone = losses(product, batch), losses(product, first)
        assert torch.isclose(found.independence, alone.independence)
        assert torch.isclose(found.matching, 0.25 * alone.matching + 0.75 * error.square().mean())

    def test_parts_of_a_batch_have_the_expectation_of_the_whole(self):
        settings = ExpertSettings(penalty=1.0, batch=400, full=0.5, marginal=0.3, unconditional=0.2)
        mean = {}
        for compared in (0.2, 1.0):
            drawn = [
                losses(product, batch_of(replace(settings, compared=compared), seed=seed)).matching
                for seed in range(200)
            ]
            mean[compared] = torch.stack(drawn)
        spread = sum(values.var() / 200 for values in mean.values()).sqrt()
        assert abs(mean[0.2].mean() - mean[1.0].mean()) < 4 * spread

    @pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
    def test_a_share_lies_between_none_and_all(self, share):
        with pytest.raises(UsageError, match="compared is"):
            ExpertSettings(compared=share)


class TestStacking:
    @pytest.mark.parametrize("method", ["ddm", "ddm+l"])
    def test_experts_trained_together_are_those_trained_in_turn(self, method):
        """Asked directly, because the engine would quietly ask in turn if training together failed."""
        share = torch.tensor([0.25, 0.75])
        together, in_turn = corner_silos(), corner_silos()
        settings = composition(method, experts={**QUICK, "precision": "float64"})
        for silos in (together, in_turn):
            CompositionServer(settings, opened(silos))
        for done in (0, 6):
            question = Train(6, done, 12)
            stacked = train_together(together, question, share)
            plain = [train(silo, question) for silo in in_turn]
            for name in ("matching", "independence", "forward", "backward"):
                mean = sum(float(w) * getattr(reply, name) for w, reply in zip(share, plain, strict=True))
                assert getattr(stacked, name) == pytest.approx(mean, abs=1e-9)
        for one, other in zip(together, in_turn, strict=True):
            assert one.state.keys() == other.state.keys()
            for name, tensor in one.state.items():
                assert torch.allclose(tensor, other.state[name], rtol=0, atol=1e-9), name

    def test_the_engine_has_them_trained_together(self, monkeypatch):
        federation = opened(corner_silos())
        CompositionServer(composition("ddm", experts=QUICK), federation)
        asked = []
        monkeypatch.setattr(federation.engine, "ask", lambda *args: asked.append(args))
        federation.mean(Train(2, 0, 12))
        assert asked == []

    def test_silos_train_experts_of_their_own(self):
        server = CompositionServer(composition("ddm", experts=QUICK), opened(corner_silos()))
        list(server.run())
        one, two = server.experts.values()
        assert any(not torch.equal(one[name], two[name]) for name in one)

    def test_experts_begin_at_different_places(self):
        silos = corner_silos()
        CompositionServer(composition("ddm", experts=QUICK), opened(silos))
        one, two = (start(silo, half_of(silo)) for silo in silos)
        assert any(not torch.equal(one[name], two[name]) for name in one)


class TestLearner:
    def test_goes_on_to_the_bit(self):
        start = {"w": torch.tensor([1.0, -2.0])}
        rule = ExpertSettings(rate=0.1).rule(10)
        whole, before = Learner(start, rule, 0.9), Learner(start, rule, 0.9)
        for _ in range(6):
            whole.follow({"w": 2 * whole.parameters["w"].detach()})
        for _ in range(3):
            before.follow({"w": 2 * before.parameters["w"].detach()})
        after = Learner(start, rule, 0.9)
        after.load("p", before.state("p"))
        for _ in range(3):
            after.follow({"w": 2 * after.parameters["w"].detach()})
        assert torch.equal(after.parameters["w"], whole.parameters["w"])
        assert torch.equal(after.average.parameters["w"], whole.average.parameters["w"])


class TestSilo:
    def test_counts_below_the_smallest_group_are_none(self):
        silo = corner_silos(count=31, held={"a": (0, 0, 0, 0, 0, 1)})[0]
        silo.smallest_group = 8
        federation = opened([silo])
        reply = federation.ask(Survey("")).answers["a"]
        assert reply.counts.tolist() == [26, 0, 0, 0]

    def test_steps_out_of_order_are_refused(self):
        silos = corner_silos()
        federation = opened(silos)
        CompositionServer(composition("ddm", experts=QUICK), federation)
        replies = federation.ask(Train(2, 5, 12))
        assert "has trained for 0 steps, not for 5" in replies.failures["a"]

    def test_nothing_is_shared_before_it_is_trained(self):
        federation = opened(corner_silos())
        CompositionServer(composition("ddm", experts=QUICK), federation)
        assert "has trained no expert" in federation.ask(Share()).failures["a"]

    def test_an_expert_of_another_shape_is_refused(self):
        federation = opened(corner_silos())
        CompositionServer(composition("ddm", experts=QUICK), federation)
        assert "other tensors" in federation.ask(Restore({"w": torch.zeros(2)})).failures["a"]

    def test_too_much_work_is_refused(self):
        silos = corner_silos()
        for silo in silos:
            silo.most_work = 10**9
        federation = opened(silos)
        CompositionServer(composition("ddm", experts=QUICK), federation)
        assert "multiplications" in federation.ask(Train(10**4, 0, 10**4)).failures["a"]

    def test_samples_without_attributes_are_refused(self):
        silos = corner_silos(space=None)
        silos[0]._labelled, silos[0].data.label[:] = False, 0
        with pytest.raises(Exception, match=r"samples without attributes.*space=space"):
            CompositionServer(composition("ddm", experts=QUICK), opened(silos))

    def test_labels_that_the_agreed_space_does_not_have_are_refused_by_silo_and_row(self):
        silos = corner_silos(space=None)
        silos[0].data.label[2] = -1
        with pytest.raises(Exception, match=r"Silo 'a' holds 1 label of 300 that names .* the first in row 3"):
            CompositionServer(composition("ddm", experts=QUICK), opened(silos), CORNERS)

    def test_restored_experts_are_those_that_were_shared(self):
        first = CompositionServer(composition("ddm+l", experts=QUICK), opened(corner_silos()))
        list(first.run())
        silos = corner_silos()
        second = CompositionServer(
            composition("dcfm-b", experts=QUICK, student={"steps": 3}), opened(silos), experts=first.experts
        )
        progress = next(iter(second.run()))
        assert progress.phase == "experts" and second.phases[0].rounds == 1
        for silo in silos:
            for name, tensor in expert_of(silo).items():
                assert torch.equal(tensor, first.experts[silo.name][name])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"penalty": -1.0}, "λ"),
        ({"full": 0.5}, "sum to one"),
        ({"network": "conditional-unet"}, "is for images"),
        ({"steps": 0}, "at least 1"),
        ({"precision": "int8"}, "no precision"),
        ({"average": 1.0}, "moving average"),
        ({"late": -1.0}, "power of time"),
        ({"multipliers": []}, "each level"),
        ({"multipliers": [1, 0]}, "each level"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        ExpertSettings(**wrong)


@pytest.mark.parametrize("name", ["mlp", "unet", "potential-mlp", "foo"])
def test_a_network_that_is_told_no_attributes_is_none_for_an_expert(name):
    with pytest.raises(
        UsageError, match=f"no network for attributes '{name}'.*conditional-mlp, conditional-unet"
    ) as found:
        expert_network(ExpertSettings(network=name, shape=(1, 8, 8)), 64, (2, 2))
    assert "potential" not in str(found.value).split("Known")[1]


def test_precision_follows_the_settings():
    settings = ExpertSettings(hidden=8, layers=1, precision="float64")
    network = expert_network(settings, 2, (2, 2))
    field = bind(network, dict(network.named_parameters()), settings)
    x, y = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.long)
    assert next(network.parameters()).dtype == torch.float64
    assert field(x, torch.tensor(0.5), y).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"network": "conditional-unet", "shape": [1, 1, 2], "multipliers": [1], "channels": 8}, "this CPU"),
        ({}, "a network of points"),
    ],
)
def test_rounding_that_does_not_take_place_is_told(settings, why):
    told = CompositionServer(composition("ddm", experts={**settings, "precision": "bfloat16"}), opened(corner_silos()))
    assert any(f"'bfloat16', which {why}" in warning for warning in told.warnings)
    federation = opened(corner_silos())
    federation.engine = SimpleNamespace()  # of silos that are elsewhere it has no device
    assert precision_warnings(told.settings.experts, federation) == []
    silent = CompositionServer(composition("ddm", experts=settings), opened(corner_silos()))
    assert not any("bfloat16" in warning for warning in silent.warnings)


def test_an_unprepared_silo_refuses():
    federation = opened(corner_silos())
    assert "before it was told" in federation.ask(Train(1, 0, 1)).failures["a"]
    with pytest.raises(RefusedError):
        expert_of(corner_silos()[0])
