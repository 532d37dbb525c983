"""Compositions in run folders: resumed to the bit, sampled without data, and started from experts of another run."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from anabranch.data.attributes import AttributeSpace, attributed, save_attributed
from anabranch.errors import CheckpointError, DataError, RunFolderError, UsageError
from anabranch.federation import Federation, Silo
from anabranch.methods.dcfm import CompositionServer
from anabranch.runs import (
    Checkpoint,
    Computing,
    Notes,
    RunFolder,
    Sampling,
    build_silos,
    draw_composed,
    draw_every,
    draw_samples,
    from_dict,
    from_toml,
    override,
    resume,
    train,
)
from anabranch.runs._evaluate_composition import evaluate_composition
from anabranch.runs._export_composition import composition_card
from anabranch.runs._sample_composition import open_chosen
from anabranch.runs._sample_forms import open_file
from anabranch.runs._stored import facts_of, stored_mixture
from tests.runs.composing import DATA, HELD, NOVEL, STAGES, composing
from tests.runs.test_resume import Killed, assert_same_end, final_state, killer
from tests.runs.tiny import tiny


def figures(rows):
    return [r for r in rows if not r["metric"].startswith("bytes") and "seconds" not in r["metric"]]


def value(rows, metric):
    (found,) = [row["value"] for row in rows if row["metric"] == metric]
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for method in ("dcfm-a", "ddm+l"):
        train(composing(method), folder / method)
    return folder


@pytest.mark.parametrize("method", ["ddm", "fedflow"])
@pytest.mark.parametrize("instead", [DATA, {"target": "mine.npz", "attributes": ["a", "b"], "held_out": 0.2}])
def test_where_silos_tell_no_count_no_sample_is_judged(method, instead):
    data, config = attributed("corners", count=90), composing(method, instead, composition={"force": True})
    parts = {name: data[number::3] for number, name in enumerate("abc")}
    silos = [Silo(name, p.x, p.label, space=p.space, smallest_group=16) for name, p in parts.items()]
    federation = Federation(silos)
    federation.open("run", seed=0)
    server = CompositionServer(config.composed, federation)
    list(server.run())
    assert not server.coverage.observed.any()
    found = evaluate_composition(config, server, ())
    assert figures(found.rows) == [] and found.rows and found.arrays == {}


# Resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*STAGES, "dfd"])
def test_killed_and_resumed_runs_end_bit_equal_in_every_phase(tmp_path, method):
    config = composing(method)
    rows = train(config, tmp_path / "whole")
    phases = [record["phase"] for record in RunFolder(tmp_path / "whole").metrics()]
    for at in range(1, len(phases), 2):  # every phase is cut off, between two checkpoints and right after one
        with pytest.raises(Killed):
            (train if at == 1 else lambda c, p, n: resume(p, n))(config, tmp_path / "killed", killer(at))
    again = resume(tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    assert figures(again) == figures(rows)
    if method == "hybrid":
        assert list(dict.fromkeys(phases)) == ["experts", "peers", "student"]


def test_every_round_is_logged_with_its_passes(trained):
    records = RunFolder(trained / "dcfm-a").metrics()
    assert [record["round"] for record in records] == list(range(1, 9))  # 40 steps in fours, two turns of two silos
    rows = RunFolder(trained / "dcfm-a").read_json("results.json")["rows"]
    assert value(rows, "experts_forward") == 4  # two attributes: joint, both single ones, none
    assert {row["kind"] for row in rows if row["metric"] == "bytes_up"} >= {"experts.expert", "experts.survey.reply"}


def test_known_and_novel_combinations_are_judged_apart(trained):
    rows = RunFolder(trained / "dcfm-a").read_json("results.json")["rows"]
    each = {row["combination"]: row["value"] for row in rows if row["metric"] == "w2_combination"}
    novel = each.pop("horizontal=right, vertical=top")
    assert value(rows, "w2_novel") == novel
    assert value(rows, "w2_known") == pytest.approx(sum(each.values()) / 3)
    assert value(rows, "w2_floor") < value(rows, "w2_known")


def test_more_training_is_seen_by_the_metrics(tmp_path):
    long = {"steps": 600, "batch": 128, "hidden": 48, "rate": 5e-3}
    rows = train(composing("ddm", experts=long, evaluation={"points": 200, "nfe": [20]}), tmp_path)
    assert value(rows, "hit_known") > 0.75 and value(rows, "w2_known") < 0.35  # 40 small steps: .12 and 1.5


# Sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*STAGES, "dfd"])
def test_a_folder_alone_gives_the_samples_of_the_run(tmp_path, method):
    train(composing(method), tmp_path / "run")
    kept = RunFolder(tmp_path / "run").load_arrays("samples.npz")
    for name in ("silos", "samples.npz", "results.json", "metrics.jsonl"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    from anabranch import seeds
    from anabranch.runs._evaluate import REFERENCE_SEED

    seed = seeds.derive(REFERENCE_SEED, "composition", "picture")
    drawn = draw_every(tmp_path / "run", 64, Sampling(nfe=4))
    x0 = torch.randn(len(drawn.x), 2, generator=torch.Generator().manual_seed(seed))
    from anabranch.runs._sample_composition import open_composition

    again = open_composition(tmp_path / "run").mixture.sample(drawn.codes, None, 4, x0=x0).x1
    assert np.array_equal(drawn.space.encode(drawn.codes).numpy(), kept["cell_labels"])
    assert torch.equal(again, torch.as_tensor(kept["cells"]))


def test_a_run_that_could_not_round_as_asked_says_so_once_and_is_sampled(tmp_path):
    said = []
    train(composing("ddm", experts={"precision": "bfloat16"}), tmp_path / "run", Notes(say=said.append))
    assert sum("does not compute in" in sentence for sentence in said) == 1
    assert draw_composed(tmp_path / "run", NOVEL, 5).x.shape == (5, 2)


def test_an_attribute_called_as_a_coordinate_is_not_written_over_it(trained):
    drawn = draw_composed(trained / "dcfm-a", NOVEL, 5)
    space = AttributeSpace.of({"x2": ["left", "right"], "vertical": ["bottom", "top"]})
    renamed = replace(drawn, coverage=replace(drawn.coverage, space=space))
    with pytest.raises(UsageError, match="An attribute is called 'x2', as a coordinate is in a table"):
        renamed.table()
    drawing = open_chosen(trained / "dcfm-a", NOVEL, 5, Sampling(), Computing()).drawing
    with pytest.raises(UsageError, match="An attribute is called 'x2'"):  # before anything is drawn
        open_file("samples.csv", replace(drawing, attributes={"x2": ["left"] * 5}, follow=None))


def test_samples_have_the_attributes_that_were_asked_for(trained):
    drawn = draw_composed(trained / "dcfm-a", NOVEL, 5)
    assert drawn.x.shape == (5, 2) and drawn.codes.tolist() == [[1, 0]] * 5
    assert drawn.table().columns["vertical"] == ["top"] * 5
    half = draw_composed(trained / "dcfm-a", "vertical=top", 2)
    assert half.table().columns["horizontal"] == ["", ""]
    assert torch.equal(drawn.x, draw_composed(trained / "dcfm-a", NOVEL, 5).x)
    composed = draw_composed(trained / "dcfm-a", NOVEL, 5, Sampling(how="composed"))
    assert torch.equal(drawn.x, composed.x)  # a novel combination is composed
    for other in (Sampling(how="joint"), Sampling(seed=1), Sampling(weights=(2.0, 1.0))):
        assert not torch.equal(drawn.x, draw_composed(trained / "dcfm-a", NOVEL, 5, other).x)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("vertical=tp", {}, "did you mean 'top'"),
        ("vertica=top", {}, "did you mean 'vertical'"),
        (NOVEL, {"how": "compose"}, "did you mean 'composed'"),
        (NOVEL, {"weights": (1.0, 2.0, 3.0)}, "3 weights were given; give one for all attributes, or 2"),
    ],
)
def test_what_cannot_be_sampled_gets_a_sentence(trained, text, options, words):
    with pytest.raises(UsageError, match=words):
        draw_composed(trained / "dcfm-a", text, 3, Sampling(**options))


def test_an_outcome_that_no_expert_has_met_is_refused(tmp_path):
    outcomes = {"horizontal": ["left", "right", "middle"], "vertical": ["top", "bottom"]}
    data = attributed("corners", count=60)
    save_attributed(tmp_path / "a.npz", data[:30])
    save_attributed(tmp_path / "b.npz", data[30:])
    files = {"files": [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")], "outcomes": outcomes, "held_out": 0.2}
    config = composing("ddm", files)
    with pytest.raises(DataError, match=r"'horizontal=middle' occurs in no silo.*--force"):
        train(config, tmp_path / "run")
    said = []
    forced = composing("ddm", files, composition={"force": True})
    rows = train(forced, tmp_path / "forced", Notes(say=said.append))
    assert any("'horizontal=middle' occurs in no silo" in sentence for sentence in said)
    assert value(rows, "sliced_w2_known") > 0 and value(rows, "sliced_w2_floor") > 0  # of twelve points: no order
    with pytest.raises(UsageError, match="No silo tells of a sample with horizontal=middle"):
        draw_composed(tmp_path / "forced", "horizontal=middle", 3)
    assert len(draw_every(tmp_path / "forced", 2).x) == 8  # the cells of 'middle' are left out


def test_what_silos_tell_no_count_of_is_remembered_where_samples_are_drawn():
    parts = {"north": 40, "south": 45}
    data = attributed("corners", count=sum(parts.values()))
    silos = [Silo(name, data.x[:n], data.label[:n] * 0 + 1, space=data.space) for name, n in parts.items()]
    silos[1].data.label[:5], silos[1].smallest_group = 0, 6
    federation, config = Federation(silos), composing("ddm", composition={"force": True})
    federation.open("run", seed=0)
    server = CompositionServer(config.composed, federation)
    list(server.run())
    stored = stored_mixture(config, Checkpoint(40, server.state(), facts_of(server, ()) | {"dimension": 2}))
    assert dict(stored.coverage.withheld) == {"south": 5} and stored.coverage.problems() == server.coverage.problems()
    assert any("'south' tells no count of 5 samples" in sentence for sentence in stored.coverage.problems())
    assert "south" not in str(composition_card(config, stored)["attributes"])


def test_a_run_whose_experts_are_not_shared_yet_cannot_be_sampled(tmp_path):
    with pytest.raises(Killed):
        train(composing("ddm"), tmp_path, killer(3))
    with pytest.raises(CheckpointError, match="experts are still in their silos"):
        draw_composed(tmp_path, NOVEL, 3)


def test_runs_of_one_kind_are_not_sampled_like_the_other(trained, tmp_path):
    train(tiny(), tmp_path)
    with pytest.raises(UsageError, match="'vanilla', which knows no attributes"):
        draw_composed(tmp_path, NOVEL, 3)
    with pytest.raises(UsageError, match="composes attributes"):
        draw_samples(trained / "dcfm-a", 3, 2)


# Experts of another run --------------------------------------------------------------------------------------------


def from_run(path, method="dcfm-b", **changes):
    return composing(method, composition={"experts_from": str(path)}, **changes)


def test_another_method_starts_from_the_experts_of_a_run(trained, tmp_path):
    source = RunFolder(trained / "ddm+l")
    config = from_run(source.path)
    rows = train(config, tmp_path / "b")
    assert value(rows, "student_forward") and not any(row["metric"] == "experts_forward" for row in rows)
    theirs, own = final_state(source.path), final_state(tmp_path / "b")
    experts = [name for name in theirs if name.startswith("expert/")]
    assert experts and all(torch.equal(theirs[name], own[name]) for name in experts)
    whole = train(composing("dcfm-b"), tmp_path / "whole")  # which trains the same experts first
    assert_same_end(tmp_path / "b", tmp_path / "whole")
    assert value(rows, "w2_novel") == value(whole, "w2_novel")


def test_the_experts_of_dcfm_a_are_those_before_peers_changed_them(trained, tmp_path):
    train(from_run(trained / "dcfm-a"), tmp_path / "b")
    train(from_run(trained / "ddm+l"), tmp_path / "c")
    assert_same_end(tmp_path / "b", tmp_path / "c")


def test_a_run_from_experts_resumes_without_the_run_that_they_came_from(trained, tmp_path):
    shutil.copytree(trained / "ddm+l", tmp_path / "source")
    config = from_run(tmp_path / "source")
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", killer(4))
    shutil.rmtree(tmp_path / "source")
    resume(tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")


def test_experts_that_do_not_fit_are_refused(trained, tmp_path):
    source = trained / "ddm+l"
    with pytest.raises(UsageError, match=r"experts\.hidden is 9, and 8 in .*make them alike"):
        train(from_run(source, experts={"hidden": 9}), tmp_path / "a")
    with pytest.raises(UsageError, match=r"data\.points is 60, and 120"):
        train(from_run(source, data={"points": 60}), tmp_path / "b")
    train(composing("fedflow"), tmp_path / "fedflow")
    with pytest.raises(UsageError, match="'fedflow', which has no experts"):
        train(from_run(tmp_path / "fedflow"), tmp_path / "c")
    with pytest.raises(Killed):
        train(composing("ddm+l"), tmp_path / "cut", killer(3))
    with pytest.raises(RunFolderError, match="has not trained them to the end"):
        train(from_run(tmp_path / "cut"), tmp_path / "d")
    with pytest.raises(RunFolderError, match=r"nothing at .*nowhere"):
        train(from_run(tmp_path / "nowhere"), tmp_path / "e")
    with pytest.raises(UsageError, match="trains one flow"):
        train(from_run(source, "fedflow"), tmp_path / "f")


def test_experts_of_other_samples_are_refused(tmp_path):
    data = attributed("corners", count=80)
    for name, part in (("a", data[:40]), ("b", data[40:])):
        save_attributed(tmp_path / f"{name}.npz", part)
    files = {"files": [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")], "attributes": list(data.space.names)}
    train(composing("ddm", files), tmp_path / "source")
    save_attributed(tmp_path / "a.npz", data[:39])
    with pytest.raises(UsageError, match="samples of 'a' are not those"):
        train(composing("ddm", files, composition={"experts_from": str(tmp_path / "source")}), tmp_path / "run")


# Settings and data -------------------------------------------------------------------------------------------------


def test_own_toml_starts_from_the_preset_of_a_composition(tmp_path):
    text = 'method = "dcfm-a"\n[data]\ntarget = "corners"\n[data.combinations]\n'
    (tmp_path / "mine.toml").write_text(text.replace("[data.c", 'partition = "combinations"\n[data.c') + 'a = ["x"]\n')
    config = from_toml(tmp_path / "mine.toml")
    assert config.composes and config.peers.rounds == 3 and config.experts.penalty == 5
    assert config.composed.every == 100 and config.data.combinations == {"a": ("x",)}
    assert from_dict(config.to_dict()) == config


def test_bare_keys_look_at_sections_that_the_method_uses():
    changed = from_dict(override({"method": "dcfm-b"}, ["hidden=7", "every=9", "points=40", "student.steps=5"]))
    assert (changed.experts.hidden, changed.flow.hidden, changed.composition.every) == (7, 64, 9)
    with pytest.raises(UsageError, match="no key 'every_'"):
        override({}, ["every_=3"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data": {"partition": "combinations"}}, "belong together"),
        ({"data": {"combinations": {"a": ["x"]}}}, "belong together"),
        ({"data": {"attributes": ["a"], "outcomes": {"b": ["1", "2"]}}}, "the same attributes"),
        ({"method": "dcfm-a", "peers": {"order": "sequental"}}, "did you mean 'sequential'"),
        ({"method": "hybrid", "federated": {"rounds": 3}, "peers": {"rounds": 1}}, "FedFlow trains one flow"),
        ({"data": {"outcomes": {"a": ["1", "2"], "b": ["1"]}}}, "one outcome"),
    ],
)
def test_bad_settings_get_a_sentence(values, words):
    with pytest.raises((UsageError, DataError), match=words):
        from_dict(values)


def test_methods_and_data_must_fit():
    with pytest.raises(UsageError, match="data names none"):
        build_silos(composing("dcfm-b", {"target": "moons"}))
    with pytest.raises(UsageError, match="would not look at them"):
        build_silos(tiny(data={"target": "corners"}))


def test_sources_are_divided_over_combinations(tmp_path):
    silos, _ = build_silos(composing())
    assert {silo.name: sorted(set(silo.data.label.tolist())) for silo in silos} == {"north": [0, 1], "south": [1, 3]}
    assert sum(map(len, silos)) == 120 and set(HELD) == {"north", "south"}
    plain = {**DATA, "combinations": {}, "observed": "band:1", "silos": 3, "held_out": 0.25}
    for partition in ("iid", "dirichlet", "component"):
        silos, _ = build_silos(from_dict({"method": "ddm", "data": {**plain, "partition": partition, "alpha": 5}}))
        assert {label for silo in silos for label in silo.data.label.tolist()} == {0, 3}
        assert all(len(silo.held_out_label) == len(silo.held_out) > 0 for silo in silos)
    pooled, _ = build_silos(from_dict({"method": "ddm", "data": {**plain, "partition": "iid", "pooled": True}}))
    assert [silo.name for silo in pooled] == ["pooled"] and pooled[0].space == silos[0].space


def test_one_archive_is_divided_too(tmp_path):
    save_attributed(tmp_path / "all.npz", attributed("corners", count=60))
    names = ["vertical", "horizontal"]
    data = {"target": str(tmp_path / "all.npz"), "attributes": names, "partition": "iid", "observed": "minimal"}
    silos, _ = build_silos(from_dict({"method": "ddm", "data": data}))
    assert len(silos) == 2 and silos[0].space.attributes[0] == ("vertical", ("bottom", "top"))
    assert {label for silo in silos for label in silo.data.label.tolist()} == {0, 1, 2}
