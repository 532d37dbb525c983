"""From a config to silos: own data, tables, held-out points, and what cannot be used."""

import numpy as np
import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.runs import build_federation, build_silos, from_dict, train
from tests.runs.tiny import tiny


def test_every_silo_gets_its_number_of_points_of_its_own_component():
    silos, encoder = build_silos(tiny())
    assert [silo.name for silo in silos] == ["silo-1", "silo-2"] and encoder is None
    assert [len(silo) for silo in silos] == [40, 40]
    assert [set(silo.data.label.tolist()) for silo in silos] == [{0}, {1}]


def test_pooled_data_is_the_same_points():
    apart, _ = build_silos(tiny())
    pooled, _ = build_silos(tiny(data={"pooled": True}))
    assert torch.equal(pooled[0].data.x, torch.cat([silo.data.x for silo in apart]))


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_other_partitions_use_every_point(partition):
    silos, _ = build_silos(tiny(data={"partition": partition, "silos": 3, "alpha": 5.0}))
    assert len(silos) == 3 and sum(map(len, silos)) == 120  # forty points for each of three silos


def test_held_out_points_are_not_trained_on():
    silos, _ = build_silos(tiny(data={"held_out": 0.25}))
    for silo in silos:
        assert len(silo.held_out) == 10 and len(silo) == 30
        assert not (torch.cdist(silo.held_out, silo.data.x) == 0).any()


def own(tmp_path, first, second):
    np.save(tmp_path / "a.npy", first)
    np.save(tmp_path / "b.npy", second)
    return {
        "data": {"files": [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], "held_out": 0.2},
        "flow": {"rounds": 6, "batch": 8},
        "evaluation": {"nfe": [1], "points": 64},
    }


def test_own_arrays_train_and_are_judged_by_held_out_points(tmp_path):
    random = np.random.default_rng(0)
    config = from_dict(own(tmp_path, random.normal(size=(50, 3)), random.normal(size=(40, 3))))
    rows = train(config, tmp_path / "run")
    distance, floor = (
        [row["value"] for row in rows if row["metric"] == name] for name in ("sliced_w2", "sliced_w2_floor")
    )
    assert len(distance) == len(floor) == 1
    assert distance[0] > floor[0] > 0  # six rounds are no training: samples are told from held-out points


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (np.zeros((0, 2)), np.ones((9, 2)), "no points"),
        (np.zeros((1, 2)), np.ones((9, 2)), "1 point"),
        (np.full((9, 2), np.nan), np.ones((9, 2)), "not finite"),
        (np.full((9, 2), np.inf), np.ones((9, 2)), "not finite"),
        (np.zeros((9, 2)), np.ones((9, 3)), "all silos must share one space"),
    ],
)
def test_bad_data_gets_a_sentence(tmp_path, first, second, words):
    with pytest.raises(DataError) as error:
        train(from_dict(own(tmp_path, first, second)), tmp_path / "run")
    assert words in str(error.value)


def test_tables_become_points_and_samples_become_tables(tmp_path):
    from anabranch.data import Table
    from anabranch.runs import Sampling, open_file, open_flow, write_drawing

    random = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{random.integers(20, 80)},{random.normal():.3f},{random.choice(['x', 'y'])}" for _ in range(30)]
        (tmp_path / f"{name}.csv").write_text("age,score,group\n" + "\n".join(rows) + "\n")
    values = {"files": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], "held_out": 0.2}
    config = from_dict({"data": values, "flow": {"rounds": 4, "batch": 8}, "evaluation": {"nfe": [1], "points": 32}})
    train(config, tmp_path / "run")
    drawing = open_flow(tmp_path / "run", 7, Sampling(2, "euler"))
    with open_file(str(tmp_path / "samples.csv"), drawing) as file:
        write_drawing(drawing, file)
    table = Table.read(tmp_path / "samples.csv")
    assert table.names == ("age", "score", "group") and len(table) == 7
    assert set(table.columns["group"]) <= {"x", "y"} and all("." not in age for age in table.columns["age"])


def test_a_table_with_gaps_is_refused_or_filled_by_a_named_rule(tmp_path):
    (tmp_path / "a.csv").write_text("age\n1\n\n3\n4\n")
    (tmp_path / "a.csv").write_text("age,b\n1,2\n,3\n3,4\n4,4\n")
    (tmp_path / "b.csv").write_text("age,b\n1,2\n2,3\n3,4\n")
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with pytest.raises(DataError, match="age"):
        build_silos(from_dict({"data": {"files": files}}))
    silos, _ = build_silos(from_dict({"data": {"files": files, "missing": "typical"}}))
    assert abs(float(silos[0].data.x[1, 0])) < 1e-6  # the mean, standardised


@pytest.mark.parametrize(
    ("federation", "words"),
    [
        ({"weights": {"silo-1": 0.5, "silo-2": 0.6}}, "sum to 1.1"),
        ({"weights": {"silo-1": -0.5, "silo-2": 1.5}}, "must be positive"),
        ({"weights": {"silo-1": 1.0}}, "other silos than there are"),
        ({"weighting": "siz"}, "did you mean 'size'"),
        ({"participation": "random"}, "needs a count"),
        ({"participation": "randm", "count": 1}, "did you mean 'random'"),
        ({"quorum": 3}, "quorum of 3"),
    ],
)
def test_bad_federations_get_a_sentence(federation, words):
    config = tiny(federation=federation)
    with pytest.raises(UsageError) as error:
        build_federation(config, build_silos(config)[0]).open("run", 0)
    assert words in str(error.value)


def test_more_candidates_than_source_points_are_refused(tmp_path):
    np.save(tmp_path / "source.npy", np.random.default_rng(0).normal(size=(20, 2)))
    config = tiny(
        flow={"source": str(tmp_path / "source.npy")},
        coupling={"name": "potential", "candidates": 21},
        potential={"before": 2},
    )
    with pytest.raises(Exception, match="the pool holds 20"):
        train(config, tmp_path / "run")


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("a/x.npy", "b/x.npy", "b/y.npy", "c/b/x.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, np.random.default_rng(0).normal(size=(50, 2)))
    files = [str(tmp_path / name) for name in ("a/x.npy", "b/x.npy", "b/y.npy")]
    silos, _ = build_silos(from_dict({"data": {"files": files}}))
    assert [silo.name for silo in silos] == ["a-x", "b-x", "y"]
    with pytest.raises(UsageError, match="would both be the data of a silo 'b-x'; rename one"):
        build_silos(from_dict({"data": {"files": [*files, str(tmp_path / "c/b/x.npy")]}}))


def test_a_source_may_be_a_file_of_points(tmp_path):
    np.save(tmp_path / "source.npy", np.random.default_rng(0).normal(size=(50, 2)))
    rows = train(tiny(flow={"source": str(tmp_path / "source.npy")}), tmp_path / "run")
    assert {row["nfe"] for row in rows if row["metric"] == "w2"} == {1, 2}


def test_what_tables_send_is_counted(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("age,b\n1,2\n2,3\n3,4\n4,4\n")
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    config = {"data": {"files": files}, "flow": {"rounds": 2, "batch": 4}, "evaluation": {"nfe": [1], "points": 16}}
    rows = train(from_dict(config), tmp_path / "run")
    assert {row["silo"] for row in rows if row.get("kind") == "tables.summarise.reply"} == {"a", "b"}


WARDS = "age,ward\n20,north\n30,south\n40,north\n50,south\n60,north\n"


def test_one_table_is_divided_by_a_column_which_is_left_out(tmp_path):
    (tmp_path / "all.csv").write_text(WARDS)
    values = {"target": str(tmp_path / "all.csv"), "partition": "attribute", "attribute": "ward"}
    silos, encoder = build_silos(from_dict({"data": values}))
    ages = {silo.name: [round(float(row["age"])) for row in _rows(encoder, silo)] for silo in silos}
    assert ages == {"north": [20, 40, 60], "south": [30, 50]}
    assert [set(row) for silo in silos for row in _rows(encoder, silo)] == [{"age"}] * 5


def _rows(encoder, silo):
    table = encoder.decode(silo.data.x)
    return [dict(zip(table.names, row, strict=True)) for row in zip(*table.columns.values(), strict=True)]


def test_one_table_is_dealt_at_random(tmp_path):
    (tmp_path / "all.csv").write_text("age\n" + "\n".join(str(number) for number in range(9)))
    silos, _ = build_silos(from_dict({"data": {"target": str(tmp_path / "all.csv"), "partition": "iid", "silos": 3}}))
    assert [len(silo) for silo in silos] == [3, 3, 3]


def test_an_archive_is_divided_by_an_array_beside_its_points(tmp_path):
    x = np.arange(10.0).reshape(5, 2)
    np.savez(tmp_path / "all.npz", x=x, site=np.array(["b", "a", "b", "a", "b"]))
    values = {"target": str(tmp_path / "all.npz"), "partition": "attribute", "attribute": "site"}
    silos, _ = build_silos(from_dict({"data": values}))
    assert {silo.name: silo.data.x[:, 0].tolist() for silo in silos} == {"a": [2.0, 6.0], "b": [0.0, 4.0, 8.0]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partition": "attribute"}, "data.attribute does not say which"),
        ({"partition": "attribute", "attribute": "wards"}, "did you mean 'ward'"),
        ({"partition": "shards"}, "a table is divided by 'attribute' or 'iid'"),
        ({"partition": "atribute"}, "did you mean 'attribute'"),
    ],
)
def test_a_table_that_cannot_be_divided_so_gets_a_sentence(tmp_path, values, words):
    (tmp_path / "all.csv").write_text(WARDS)
    with pytest.raises(UsageError) as error:
        build_silos(from_dict({"data": {"target": str(tmp_path / "all.csv"), **values}}))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "attribute", "words"),
    [
        ({"site": np.array(["a"] * 4)}, "site", "it needs 5 values"),
        ({"site": np.array(["a"] * 5)}, "sites", "holds site, x"),
        ({}, "site", "it holds x"),
    ],
)
def test_an_attribute_that_an_archive_lacks_gets_a_sentence(tmp_path, arrays, attribute, words):
    np.savez(tmp_path / "all.npz", x=np.zeros((5, 2)), **arrays)
    values = {"target": str(tmp_path / "all.npz"), "partition": "attribute", "attribute": attribute}
    with pytest.raises((DataError, UsageError)) as error:
        build_silos(from_dict({"data": values}))
    assert words in str(error.value)


@pytest.mark.parametrize("target", ["arrays at sites", "tables at sites"])
def test_data_that_only_sites_know_cannot_be_simulated(target):
    with pytest.raises(UsageError, match="--engine nvflare"):
        build_silos(from_dict({"data": {"target": target}}))


def test_a_shape_has_no_attributes():
    with pytest.raises(UsageError, match="no attributes"):
        build_silos(tiny(data={"partition": "attribute", "attribute": "ward"}))
