"""Rows of FID and KID: named by their reference, equal to the functions they come from."""

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.metrics import Reference, fid_report, frechet_distance, kernel_distance
from anabranch.metrics._fid_report import train_against_test
from anabranch.seeds import generator


def normal(count, *names):
    return torch.randn(count, 4, generator=generator(0, "report", *names), dtype=torch.float64)


def test_every_figure_is_named_by_what_it_was_taken_against():
    train, test, made = normal(300, "train"), normal(100, "test"), normal(200, "made") + 0.3
    rows = fid_report(made, {"train": Reference.of(train), "test": Reference.of(test)})
    found = {row["metric"]: row["value"] for row in rows}
    assert list(found) == [
        *("fid_train", "kid_train", "kid_train_error"),
        *("fid_test", "kid_test", "kid_test_error"),
        "fid_train_test",
    ]
    for name, real in (("train", train), ("test", test)):
        assert found[f"fid_{name}"] == pytest.approx(frechet_distance(real, made))
        kid = kernel_distance(real, made, generator(0, "kid", name))
        assert (found[f"kid_{name}"], found[f"kid_{name}_error"]) == (kid.value, kid.error)
    assert found["fid_train_test"] == pytest.approx(frechet_distance(train, test))
    assert found["fid_train_test"] < 0.2 * found["fid_train"]
    sizes = {row["metric"]: (row["images"], row["real"]) for row in rows}
    assert sizes["fid_train"] == sizes["kid_train_error"] == (200, 300) and sizes["kid_test"] == (200, 100)
    assert sizes["fid_train_test"] == (100, 300)


def test_what_real_images_score_can_be_asked_for_alone():
    references = {"train": Reference.of(normal(300, "train")), "test": Reference.of(normal(100, "test"))}
    every = fid_report(normal(200, "made"), references)
    rest = fid_report(normal(200, "made"), references, sanity=False)
    assert every == [*rest, *train_against_test(references)] and len(every) == len(rest) + 1
    assert train_against_test({"train": references["train"]}) == []


def test_without_features_or_enough_of_them_there_is_no_kid():
    full = Reference.of(normal(100, "train"))
    rows = fid_report(normal(50, "made"), {"test": Reference(full.statistics)})
    assert [row["metric"] for row in rows] == ["fid_test"]
    with pytest.warns(UserWarning, match="19 points in 4 dimensions"):
        assert [row["metric"] for row in fid_report(normal(19, "made"), {"train": full})] == ["fid_train"]


def test_there_must_be_a_reference():
    with pytest.raises(UsageError, match="nothing to compare with"):
        fid_report(normal(50, "made"), {})
