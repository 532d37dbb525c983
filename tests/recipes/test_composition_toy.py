"""The studies `composition_toy` and `composition_cost`, and what cells share: that their figures mean what they say."""

import json
import multiprocessing
import time
from dataclasses import replace

import pytest
import torch

from anabranch.data.attributes import CORNERS, Coverage, corner_modes
from anabranch.errors import AnabranchError, RunFolderError
from anabranch.methods.dcfm import COMPOSITIONS, train_composition
from anabranch.recipes import recipe
from anabranch.recipes._study import StudyCell
from anabranch.recipes.studies import composition_cost, composition_toy
from anabranch.recipes.studies._progress import FILE, Told
from anabranch.recipes.studies._shared import once
from anabranch.recipes.studies.composition_toy import NOVEL, Toy, settings_of
from anabranch.runs import RunFolder


def cell(root, name, problem, method, seed=0, **options):
    folder = root / problem / method / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell(
        problem, method, seed, "smoke", {**recipe(name).options(problem, method, "smoke"), **options}, folder, 1
    )


def figures(rows):
    return {row["metric"]: row["value"] for row in rows}


def quick(root, problem, method, **options):
    small = {"partition": problem, "samples": 60, "nfe": 10, "count": 300}
    return cell(root, "dcfm-toy", problem, method, steps=30, toy=small, **options)


# What cells share


def test_a_result_is_computed_once_for_all_cells_and_again_for_other_options(tmp_path):
    one, two = (cell(tmp_path, "dcfm-toy", "iid", method) for method in ("ddm", "dfd"))
    calls = []

    def compute(value=1.0):
        calls.append(value)
        return {"x": torch.tensor([value])}

    first = once(one, "thing", {"seed": 0}, compute)
    again = once(two, "thing", {"seed": 0}, lambda: compute(2.0))
    assert len(calls) == 1 and torch.equal(first["x"], again["x"])
    assert float(once(one, "thing", {"seed": 1}, lambda: compute(3.0))["x"]) == 3
    assert float(once(one, "other", {"seed": 0}, lambda: compute(4.0))["x"]) == 4
    assert {path.parent for path in tmp_path.rglob("*.tensors")} == {tmp_path / "shared"}


def test_what_failed_or_was_damaged_is_computed_again(tmp_path):
    place = cell(tmp_path, "dcfm-toy", "iid", "ddm")

    def broken():
        raise AnabranchError("It broke.")

    with pytest.raises(AnabranchError):
        once(place, "thing", {}, broken)
    once(place, "thing", {}, lambda: {"x": torch.ones(3)})
    (path,) = tmp_path.rglob("*.tensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert float(once(place, "thing", {}, lambda: {"x": torch.zeros(3)})["x"].sum()) == 0


def _slowly(root, log):
    def compute():
        with (root / "log").open("a") as file:
            file.write("computed\n")
        time.sleep(0.5)
        return {"x": torch.ones(1)}

    once(cell(root, "dcfm-toy", "iid", "ddm"), "thing", {}, compute)
    log.put(time.time())


def test_a_second_process_waits_for_the_first(tmp_path):
    context = multiprocessing.get_context("fork")
    log = context.Queue()
    workers = [context.Process(target=_slowly, args=(tmp_path, log)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert (tmp_path / "log").read_text() == "computed\n" and log.qsize() == 3


# The toy


@pytest.mark.parametrize("partition, held", [("iid", [3, 3]), ("non-iid", [2, 2])])
def test_no_silo_has_the_missing_combination_and_all_others_are_there_in_equal_number(partition, held):
    silos = Toy(partition, count=400).silos(0)
    counts = {silo.name: torch.bincount(silo.data.label, minlength=4) for silo in silos}
    coverage = Coverage(CORNERS, counts)
    assert coverage.novel.tolist() == [NOVEL] and coverage.problems() == []
    assert [int((count > 0).sum()) for count in counts.values()] == held
    assert sorted(sum(counts.values()).tolist()) == [0, 400, 400, 400]
    for silo in silos:
        near = (silo.data.x - corner_modes()[silo.data.label]).norm(dim=1)
        assert float((near < 0.6).double().mean()) > 0.97
    assert torch.equal(corner_modes()[NOVEL], torch.tensor([1.0, 1.0]))


def test_every_stage_has_the_same_number_of_steps():
    for method in recipe("dcfm-toy").methods:
        settings = settings_of(method, recipe("dcfm-toy").options("iid", method, "small"))
        assert method in COMPOSITIONS and settings.experts.steps == 1200
        assert settings.federated.rounds * settings.federated.local_steps in (0, 1200)
        assert settings.peers.rounds * settings.peers.steps in (0, 1200) or not settings.peers.rounds
        assert settings.student.steps in (0, 1200)
        assert settings.experts.penalty == (0 if method in ("fedflow", "ddm", "dfd") else 5)


def test_samples_of_the_truth_are_at_the_floor_and_others_are_not():
    toy = Toy("iid")
    truth = {label: toy.truth(torch.full((500,), label), 3, "samples") for label in range(4)}
    free = toy.truth(torch.tensor(toy.observed).repeat_interleave(500), 3, "free")
    found = composition_toy._quality(toy, truth, free, 0)
    assert found["hit_novel"] == pytest.approx(0.989, abs=0.015) and found["miss_novel"] == 1 - found["hit_novel"]
    assert found["w2_novel"] == pytest.approx(found["w2_floor"], abs=0.03)
    assert found["w2_known"] == pytest.approx(found["w2_floor"], abs=0.02) and found["w2_floor"] < 0.08
    assert found["reach"] == pytest.approx(1, abs=0.03)
    shifted = {**truth, NOVEL: truth[NOVEL] + torch.tensor([0.9, 0.9])}
    off = composition_toy._quality(toy, shifted, free + 3, 0)
    assert off["hit_novel"] < 0.05 and off["reach"] == pytest.approx(1.9, abs=0.03)
    assert off["w2_novel"] == pytest.approx(0.9 * 2**0.5, abs=0.03)  # W2 of a shift is its length
    assert off["w2_known"] == found["w2_known"]
    assert off["w2_unconditional"] == pytest.approx(3 * 2**0.5, abs=0.2) and found["w2_unconditional"] < 0.4


def test_methods_share_stage_one_and_its_cost_counts_for_each(tmp_path):
    ddm, b = (figures(composition_toy.run(quick(tmp_path, "non-iid", method))) for method in ("ddm+l", "dcfm-b"))
    assert len(list((tmp_path / "shared").glob("experts-*.tensors"))) == 1
    composition_toy.run(quick(tmp_path, "non-iid", "ddm"))
    assert len(list((tmp_path / "shared").glob("experts-*.tensors"))) == 2  # without the penalty they are others
    assert 1 <= ddm["theta_units"] < 1.3 and b["theta_units"] == pytest.approx(ddm["theta_units"] + 1, abs=0.05)
    assert (ddm["forward"], ddm["backward"]) == (4, 4) and b["forward"] == pytest.approx(4.98)
    assert ddm["w2_novel"] != b["w2_novel"]


def test_stage_one_shared_gives_what_stage_one_alone_gives(tmp_path):
    place = quick(tmp_path, "non-iid", "dfd+l")
    settings = settings_of(place.method, place.options)
    toy = Toy(**place.options["toy"])
    shared = composition_toy.trained(place, toy, settings, Told(place))
    alone = train_composition(toy.silos(0), settings, 0, CORNERS)
    for silo, own in alone.experts.items():
        assert all(torch.equal(tensor, shared.experts[silo][name]) for name, tensor in own.items())
    units = alone.ledger.bytes() / 2 / (4 * shared.parameters)
    assert shared.theta_units == pytest.approx(
        units, rel=1e-4
    )  # the random number of a silo is text, now and then shorter


def test_what_follows_shared_stages_is_what_follows_them_in_one_run(tmp_path):
    """Experts, peers and a student, each read from another cell's work, or all in one run: the same to the bit."""
    place = quick(tmp_path, "non-iid", "hybrid")
    settings, toy = settings_of(place.method, place.options), Toy(**place.options["toy"])
    composition_toy.run(quick(tmp_path, "non-iid", "dcfm-a"))
    before = sorted(path.name.split("-")[0] for path in (tmp_path / "shared").glob("*.tensors"))
    assert before == ["experts", "peers"]
    shared, alone = (
        composition_toy.trained(place, toy, settings, Told(place)),
        train_composition(toy.silos(0), settings, 0, CORNERS),
    )
    after = sorted(path.name.split("-")[0] for path in (tmp_path / "shared").glob("*.tensors"))
    assert after == ["experts", "peers", "student"]
    y, x0 = torch.tensor([[1, 1]]).expand(50, 2), torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    found = [flow.mixture.sample(y, torch.Generator(), 10, x0=x0).x1 for flow in (shared, alone)]
    assert torch.equal(*found)
    units = alone.ledger.bytes() / 2 / (4 * shared.parameters)
    assert shared.theta_units == pytest.approx(units, rel=1e-3)  # all but Stage I's questions


@pytest.mark.parametrize("method", ["fedflow", "dcfm-b", "hybrid"])
def test_the_last_stage_goes_on_where_it_was_killed(tmp_path, monkeypatch, method):
    """FedFlow, or a student: cut off after a round, it is what it would have been, and takes no round twice."""
    monkeypatch.setattr("anabranch.recipes.studies._shared.KEPT_EVERY", 0.0)
    whole, cut = (quick(tmp_path / name, "non-iid", method) for name in ("whole", "cut"))
    settings, toy = replace(settings_of(method, cut.options), every=10), Toy(**cut.options["toy"])
    expected = composition_toy.trained(whole, toy, settings, Told(whole))
    within, shares = Told.within, []

    def killed(told, share):
        within(told, share)
        if told.done == told.parts - 2:  # the stage before sampling
            shares.append(share)
            if len(shares) == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Told, "within", killed)
        composition_toy.trained(cut, toy, settings, Told(cut))
    assert len(list((tmp_path / "cut" / "shared").glob("*.unfinished"))) == 1
    rounds = []
    monkeypatch.setattr(Told, "within", lambda told, share: rounds.append(share))
    found = composition_toy.trained(cut, toy, settings, Told(cut))
    assert rounds[0] == shares[1]  # the one that was not kept is taken again, those before are not
    y, x0 = torch.tensor([[1, 1]]).expand(50, 2), torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(flow.mixture.sample(y, torch.Generator(), 10, x0=x0).x1 for flow in (found, expected)))
    assert (found.cost.forward, found.cost.backward) == (expected.cost.forward, expected.cost.backward)
    assert found.theta_units == pytest.approx(expected.theta_units, rel=1e-3)
    assert not list((tmp_path / "cut" / "shared").glob("*.unfinished"))


def test_a_busy_cell_tells_how_far_it_is_and_a_finished_one_leaves_nothing(tmp_path, monkeypatch):
    place, seen = quick(tmp_path, "non-iid", "hybrid"), []
    monkeypatch.setattr("anabranch.recipes.studies._progress.EVERY", 0.0)
    within = Told.within

    def noted(told, part):
        within(told, part)
        seen.append(composition_toy.share(place))

    monkeypatch.setattr(Told, "within", noted)
    assert composition_toy.share(place) == 0
    composition_toy.run(place)
    assert seen == sorted(seen) and len(set(seen)) > 4 and 0 < seen[0] <= 0.25
    assert seen[-1] == 0.75  # experts, peers, student; sampling is left
    assert not (place.folder / FILE).exists() and composition_toy.share(place) == 0


def test_what_a_killed_cell_left_is_forgotten_and_a_full_disk_stops_nobody(tmp_path, monkeypatch):
    place = quick(tmp_path, "non-iid", "ddm")
    (place.folder / FILE).write_text('{"share": 0.7}')
    with Told(place, 4) as told:
        assert composition_toy.share(place) == 0
        told.part()
        assert composition_toy.share(place) == 0.25

        def full(folder, name, value):
            raise RunFolderError("No space left on device.")

        monkeypatch.setattr(RunFolder, "write_json", full)
        told.part()
        assert composition_toy.share(place) == 0.25
    assert composition_toy.share(place) == 0


def test_fedflow_has_no_experts_to_share(tmp_path):
    found = figures(composition_toy.run(quick(tmp_path, "iid", "fedflow")))
    assert [path.name.split("-")[0] for path in (tmp_path / "shared").glob("*.tensors")] == ["federated"]
    assert found["theta_units"] == pytest.approx(2 * 3, rel=0.15) and found["forward"] == 1


def test_pictures_and_tables_of_what_is_there(tmp_path):
    cells = [quick(tmp_path, problem, method) for problem in ("iid", "non-iid") for method in ("ddm+l", "additive")]
    rows = [row for one in cells for row in composition_toy.run(one)]
    drawn = composition_toy.draw(rows, [one.folder for one in cells], tmp_path)
    assert {path.name for path in drawn.values()} == {"data.png", "samples.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn.values())
    (_, quality), (_, aside) = composition_toy.tables(rows)
    assert quality[0][:3] == ["problem", "method", "hit rate, novel"] and len(quality) == 5
    assert "communication (θ)" in aside[0]
    assert composition_toy.draw([], [], tmp_path) == {} and composition_toy.tables([]) == []


# Costs


@pytest.mark.parametrize("method, units", [("fedflow", 20), ("ddm", 1), ("dcfm-a-2", 9), ("dcfm-b", 2)])
def test_bytes_are_those_of_the_protocol(tmp_path, method, units):
    found = figures(composition_cost.run(cell(tmp_path, "dcfm-cost", "silos-2", method, silos=3)))
    assert found["theta_units"] == pytest.approx(units, rel=0.01) and found["theta_units"] > units
    assert found["theta_error"] == pytest.approx(found["theta_units"] / units - 1)
    if method == "ddm":
        assert found["theta_units_sampling"] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("k", [2, 3])
def test_passes_of_a_step(tmp_path, k):
    def counted(method, problem=f"k{k}"):
        found = figures(composition_cost.run(cell(tmp_path, "dcfm-cost", problem, method)))
        return found["forward"], found["backward"]

    assert counted("fedflow") == counted("ddm") == (1, 1)
    assert counted("ddm+l") == counted("fedflow+l") == (k + 2, k + 2)
    forward, backward = counted("dcfm-a-1")
    # Half of the k + 1 terms are the peer's, but for the rare row in which all would be: there one is taken back.
    assert forward == pytest.approx(k + 2)
    assert backward == pytest.approx(1 + (k + 1) / 2 + 0.5 ** (k + 1), abs=0.06)
    if k == 3:
        assert counted("ddm+l", "k3-pairs") == (5, 5)


def test_tables_have_the_papers_figures_beside_ours(tmp_path):
    cells = [
        cell(tmp_path, "dcfm-cost", problem, method) for problem in ("silos-2", "k2") for method in ("ddm", "dcfm-b")
    ]
    rows = [row for one in cells for row in composition_cost.run(one)]
    (_, sent), (_, computed) = composition_cost.tables(rows)
    assert sent[0] == ["problem", "method", "communication (θ)", "communication (θ), paper", *sent[0][4:]]
    assert sent[2][:2] == ["silos-2", "dcfm-b"] and sent[2][3] == "2"
    assert computed[0][2:] == [f"passes, {way}{of}" for way in ("forward", "backward") for of in ("", ", paper")]
    (path,) = composition_cost.draw(rows, [], tmp_path).values()
    assert path.read_bytes().startswith(b"\x89PNG") and composition_cost.draw([], [], tmp_path) == {}
    json.dumps(rows)
