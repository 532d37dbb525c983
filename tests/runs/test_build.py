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
    assert [row["value"] > 0 for row in rows if row["metric"] == "sliced_w2"] == [True]


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
    from anabranch.runs import draw_samples, save_samples

    random = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{random.integers(20, 80)},{random.normal():.3f},{random.choice(['x', 'y'])}" for _ in range(30)]
        (tmp_path / f"{name}.csv").write_text("age,score,group\n" + "\n".join(rows) + "\n")
    values = {"files": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], "held_out": 0.2}
    config = from_dict({"data": values, "flow": {"rounds": 4, "batch": 8}, "evaluation": {"nfe": [1], "points": 32}})
    train(config, tmp_path / "run")
    save_samples(tmp_path / "run", draw_samples(tmp_path / "run", 7, 2).x1, tmp_path / "samples.csv")
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


def test_two_files_of_one_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match="the same name"):
        build_silos(from_dict({"data": {"files": ["a/x.npy", "b/x.npy"]}}))


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
