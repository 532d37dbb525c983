"""Archives with attributes: what is read, and what is refused with which sentence."""

import numpy as np
import pytest
import torch

from anabranch.data.attributes import (
    Attributed,
    AttributeSpace,
    attributed,
    load_attributed,
    load_silos,
    save_attributed,
)
from anabranch.errors import DataError, UsageError


def write(folder, name="a.npz", **arrays):
    whole = {"x": np.zeros((3, 2)), "digit": np.array([10, 9, 9]), "color": np.array(["red", "blue", "red"])}
    whole.update(arrays)
    np.savez(folder / name, **{key: value for key, value in whole.items() if value is not None})
    return folder / name


def test_numbers_and_texts_become_outcomes_in_order(tmp_path):
    data = load_attributed(write(tmp_path), ["color", "digit"])
    assert data.space.attributes == (("color", ("blue", "red")), ("digit", ("9", "10")))
    assert data.codes.tolist() == [[1, 1], [0, 0], [1, 0]] and data.x.dtype == torch.float32 and data.shape is None
    assert load_attributed(write(tmp_path)).space.names == ("digit", "color")
    assert load_attributed(write(tmp_path, digit=np.array([1.0, 2.0, 2.0]))).space.attributes[0] == (
        "digit",
        ("1", "2"),
    )


def test_what_is_saved_is_read_back(tmp_path):
    images = attributed("colored-digits", count=60, observed="band")
    for data in (attributed("corners", count=50), images):
        save_attributed(tmp_path / "data.npz", data)
        again = load_attributed(tmp_path / "data.npz", space=data.space)
        assert torch.equal(again.x, data.x) and torch.equal(again.label, data.label)
        assert again.space == data.space and again.shape == data.shape


def test_silos_share_one_space_even_if_each_knows_one_outcome(tmp_path):
    north = write(tmp_path, "north.npz", color=np.array(["red"] * 3))
    south = write(tmp_path, "south.npz", color=np.array(["blue"] * 3), digit=np.array([1, 1, 1]))
    silos = load_silos({"north": north, "south": south})
    space = silos["north"].space
    assert space == silos["south"].space and space.attributes[0] == ("digit", ("1", "9", "10"))
    assert {space.describe(label) for label in silos["south"].label.tolist()} == {"digit=1, color=blue"}
    assert [space.describe(label) for label in silos["north"].label.tolist()] == [
        "digit=10, color=red",
        "digit=9, color=red",
        "digit=9, color=red",
    ]
    with pytest.raises(DataError, match="one outcome, 'red'"):
        load_silos({"north": north})
    with pytest.raises(DataError, match=r"does not know 'color=red'"):
        load_attributed(north, space=AttributeSpace.of({"digit": ["9", "10"], "color": ["blue", "green"]}))


def test_silos_that_differ_are_named(tmp_path):
    north, wide = write(tmp_path, "north.npz"), write(tmp_path, "wide.npz", x=np.zeros((3, 4)))
    hue = write(tmp_path, "hue.npz", color=None, hue=np.array(["red", "blue", "red"]))
    with pytest.raises(DataError, match=r"silo 'n' with 'color', 'digit'; silo 'h' with 'digit', 'hue'"):
        load_silos({"n": north, "h": hue})
    with pytest.raises(DataError, match="Silo 'n' holds rows of 2 numbers, silo 'w' rows of 4 numbers"):
        load_silos({"n": north, "w": wide})


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"color": np.array(["red", "", "blue"])}, "Row 2 of 'a.npz' has no 'color'; .* it out"),
        ({"color": np.array(["red", " ", "nan"])}, "Row 2 of 'a.npz' has no 'color', nor has 1 more row; .* them out"),
        ({"color": np.array(["", " ", "nan"])}, "Row 1 of 'a.npz' has no 'color', nor have 2 more rows;"),
        ({"digit": np.array([1, 2, np.nan])}, "Row 3 of 'a.npz' has no 'digit'"),
        ({"digit": np.array([1, -1, 2])}, "Row 2 of 'a.npz' has 'digit' = −1, .* not given; .* as text"),
        ({"digit": np.array([1, 2, -1.0])}, "Row 3 of 'a.npz' has 'digit' = −1"),
        ({"digit": np.array([1, 2, 2.5])}, "not whole"),
        ({"digit": np.array([1, 2, np.inf])}, "not whole"),
        ({"digit": np.array([1, 2])}, "one for each sample"),
        ({"digit": np.array([True, False, True])}, "type bool"),
        ({"color": np.array(["red", None, "blue"], dtype=object)}, "never unpickled"),
        ({"color": np.array(["a=b", "c", "c"])}, "'a.npz' cannot be used.*Rename"),
        ({"color": None}, "'a.npz' has no array 'color'; it holds 'digit', 'x'"),
        ({"x": None}, "no array 'x'"),
        ({"x": np.full((3, 2), np.nan)}, "not finite"),
        ({"shape": np.array([1, 2])}, "channels, height, width"),
        ({"shape": np.array([3, 8, 8])}, "no images of"),
    ],
)
def test_archives_that_cannot_be_used_are_refused(tmp_path, arrays, says):
    with pytest.raises(DataError, match=says):
        load_attributed(write(tmp_path, **arrays), ["digit", "color"])


@pytest.mark.parametrize("digit", [np.array(["-1", "0", "1"]), np.array([-2, -1, 0])])
def test_minus_one_is_an_outcome_where_it_cannot_be_taken_for_none(tmp_path, digit):
    loaded = load_attributed(write(tmp_path, digit=digit), ["digit", "color"])
    assert set(dict(loaded.space.attributes)["digit"]) == {str(value) for value in digit}


def test_files_that_are_no_archives_are_refused(tmp_path):
    (tmp_path / "torn.npz").write_bytes(write(tmp_path).read_bytes()[:200])
    np.save(tmp_path / "bare.npy", np.zeros((3, 2)))
    (tmp_path / "bare.npz").write_bytes((tmp_path / "bare.npy").read_bytes())
    for name, error in (("torn.npz", DataError), ("bare.npz", DataError), ("gone.npz", DataError)):
        with pytest.raises(error, match=name[:4]):
            load_attributed(tmp_path / name)
    with pytest.raises(UsageError, match=r"no \.npz archive"):
        load_attributed(tmp_path / "bare.npy")
    space = AttributeSpace.of({"x": "12", "b": "12"})
    with pytest.raises(DataError, match="rename"):
        save_attributed(tmp_path / "new.npz", Attributed(torch.zeros(1, 2), torch.tensor([0]), space))
