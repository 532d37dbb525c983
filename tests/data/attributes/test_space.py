"""Labels and codes, words, and what other institutions may send."""

import json

import pytest
import torch

from anabranch.data.attributes import NULL, AttributeSpace, union
from anabranch.errors import DataError, UsageError

SPACE = AttributeSpace.of({"digit": ["0", "1", "2"], "color": ["red", "blue"], "size": ["s", "m", "l", "xl"]})


def test_labels_and_codes_are_inverse_and_the_last_attribute_runs_fastest():
    codes = SPACE.combinations()
    assert codes.shape == (24, 3) and len(SPACE) == 24 and SPACE.sizes == (3, 2, 4)
    assert torch.equal(codes, torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(4)))
    assert torch.equal(SPACE.encode(codes), torch.arange(24)) and SPACE.encode(codes).dtype == torch.int64
    assert torch.equal(SPACE.decode(SPACE.encode(codes.flip(0))), codes.flip(0))
    assert SPACE.encode(codes.reshape(4, 6, 3)).shape == (4, 6)


def test_every_combination_in_words_is_read_back():
    for label in range(len(SPACE)):
        assert int(SPACE.encode(SPACE.parse(SPACE.describe(label)))) == label
    assert SPACE.parse(" size = xl ,digit=2 ").tolist() == [2, NULL, 3]
    assert SPACE.parse("").tolist() == [NULL] * 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour=red", "did you mean 'color'"),
        ("color=reb", "did you mean 'red'"),
        ("red", "'red' names no outcome"),
        ("color=red,color=blue", "twice"),
    ],
)
def test_words_that_name_nothing_are_refused(text, says):
    with pytest.raises(UsageError, match=says):
        SPACE.parse(text)


def test_partial_and_impossible_combinations_have_no_label():
    with pytest.raises(UsageError, match="without 'color'"):
        SPACE.encode(torch.tensor([[0, NULL, 0]]))
    for bad in ([0, 2, 0], [0, -2, 0]):
        with pytest.raises(UsageError, match="outside 0 … 1"):
            SPACE.encode(torch.tensor([bad]))
    for codes in (torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)):
        with pytest.raises(UsageError, match="row of 3 whole numbers"):
            SPACE.encode(codes)
    for label in (24, -1):
        with pytest.raises(UsageError, match=f"1 label of 3 that names no combination, the first in row 2 .*: {label}"):
            SPACE.decode(torch.tensor([23, label, 0]))
    with pytest.raises(UsageError, match="3 labels of 4 that name no combination, the first in row 2"):
        SPACE.decode(torch.tensor([[0, -1], [-1, 24]]))
    with pytest.raises(UsageError, match=r"type torch.float32; such a one names no combination"):
        SPACE.decode(torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({}, "nothing to compose"),
        ({"a": "12"}, "nothing to compose"),
        ({"a": "12", "b": "1"}, "'b' has one outcome"),
        ({"a": "12", "b": ""}, "no outcomes"),
        ({"a": "12", "b": "11"}, "'1' twice"),
        ({"a": "12", "b=": "12"}, "Rename"),
        ({"a": "12", "b": ["x,y", "z"]}, "Rename"),
        ({"a": "12", "b": [" x", "z"]}, "Rename"),
        ({"a": "12", "b": ["\x1b[31m", "z"]}, "Rename"),
        ({"a": "12", "b": ["", "z"]}, "0 characters"),
        ({"a": "12", "b": ["y" * 101, "z"]}, "101 characters"),
        ({"a": "12", "b": [1, 2]}, "not a text"),
        ({"a": "12", "b": [str(i) for i in range(257)]}, "is it a measurement"),
        ({str(i): [str(j) for j in range(200)] for i in range(3)}, "8000000 combinations"),
        ({str(i): "12" for i in range(65)}, "65 attributes"),
    ],
)
def test_a_space_that_cannot_be_composed_is_refused(attributes, says):
    with pytest.raises(DataError, match=says):
        AttributeSpace.of(attributes)


def test_a_space_survives_json_and_a_silo_may_know_one_outcome():
    assert AttributeSpace.from_json(SPACE.to_json()) == SPACE
    lonely = AttributeSpace((("wind", ("strong",)), ("rain", ("no", "yes"))))
    assert AttributeSpace.from_json(lonely.to_json()) == lonely
    with pytest.raises(DataError, match="one outcome"):
        lonely.check()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[" * 100_000,
        "{}",
        "[1, 2]",
        '[["a", ["1", "2"]]]',
        '[["a", "12"], ["b", ["1", "2"]]]',
        '[["a", [1, 2]], ["b", ["1", "2"]]]',
        '[["a", ["1", "2"], 3], ["b", ["1", "2"]]]',
        '[["a", ["1", "2"]], ["a", ["1", "2"]]]',
        '[["a", ["1", "\\ud800"]], ["b", ["1", "2"]]]',
        json.dumps([["a", ["1", "2"]], ["b", ["x" * 10**7]]]),
        json.dumps([[str(i), ["1", "2"]] for i in range(30)]),
        7,
    ],
)
def test_what_others_send_is_refused_with_a_sentence(text):
    with pytest.raises(DataError, match=r"\.$"):
        AttributeSpace.from_json(text)


def test_a_text_too_long_is_not_even_parsed():
    with pytest.raises(DataError, match="at most 4194304 characters"):
        AttributeSpace.from_json(SPACE.to_json() + " " * 2**22)


def test_recoding_keeps_the_words():
    other = AttributeSpace.of({"size": ["xl", "s", "xs", "l", "m"], "digit": ["2", "1", "0"], "color": ["blue", "red"]})
    labels = torch.arange(len(SPACE))
    recoded = SPACE.recode(labels, other)
    for mine, theirs in zip(labels.tolist(), recoded.tolist(), strict=True):
        assert set(SPACE.describe(mine).split(", ")) == set(other.describe(theirs).split(", "))
    assert torch.equal(other.recode(recoded, SPACE), labels)


def test_recoding_refuses_what_the_other_space_lacks_only_if_a_sample_has_it():
    other = AttributeSpace.of({"digit": ["0", "1"], "color": ["red", "blue"], "size": ["s", "m", "l", "xl"]})
    with pytest.raises(DataError, match="does not know 'digit=2'"):
        SPACE.recode(torch.tensor([0, 23]), other)
    assert int(SPACE.recode(torch.tensor(8), other)) == 8
    with pytest.raises(DataError, match="not the same everywhere"):
        SPACE.recode(torch.tensor([0]), AttributeSpace.of({"digit": "012", "color": ["red", "blue"]}))


def test_a_union_holds_all_outcomes_and_names_who_disagrees():
    north = AttributeSpace((("digit", ("9", "10")), ("color", ("red",))))
    south = AttributeSpace((("color", ("blue",)), ("digit", ("2",))))
    assert union({"n": north, "s": south}).attributes == (("digit", ("2", "9", "10")), ("color", ("blue", "red")))
    with pytest.raises(DataError, match="one outcome, 'red'"):
        union({"n": north})
    west = AttributeSpace((("digit", ("1",)), ("hue", ("red",))))
    with pytest.raises(DataError, match=r"silo 'n', silo 's' with 'color', 'digit'; silo 'w' with 'digit', 'hue'"):
        union({"n": north, "s": south, "w": west})
