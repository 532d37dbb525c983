"""Messages: declared fields, one encoding, and refusals in sentences."""

import importlib
import json
import pkgutil
from dataclasses import dataclass, fields, replace
from typing import get_origin

import pytest
import torch
from torch import Tensor

import anabranch.methods
from anabranch.errors import MessageError, NotFiniteError
from anabranch.federation import KINDS, Joined, Message, check, decode, encode, same_shapes, size, tensors_of
from anabranch.federation._message import field_types

for module in pkgutil.walk_packages(anabranch.methods.__path__, "anabranch.methods."):
    importlib.import_module(module.name)

OURS = sorted(kind for kind, cls in KINDS.items() if cls.__module__.startswith("anabranch."))


@dataclass(frozen=True)
class Everything(Message, kind="test.message.everything"):
    """One field of each sort.

    Reveals: nothing; it belongs to the tests.
    """

    tensor: Tensor
    many: dict[str, Tensor]
    number: float
    whole: int
    flag: bool
    text: str
    perhaps: Tensor | None = None
    maybe: str | None = None


DTYPES = [
    torch.float64,
    torch.int64,
    torch.float32,
    torch.int32,
    torch.bfloat16,
    torch.float16,
    torch.uint8,
    torch.bool,
]


def everything(**changes):
    values = {
        "tensor": torch.arange(6.0).reshape(2, 3),
        "many": {"stack.0.weight": torch.ones(2), "β": torch.zeros((), dtype=torch.int64)},
        "number": 0.1,
        "whole": 3,
        "flag": True,
        "text": 'λ = "½"\n',
    }
    return Everything(**{**values, **changes})


def example(cls, dtype=torch.float32, empty=False):
    """Some message of this class, made from nothing but its declared fields."""
    tensor = torch.arange(5).to(dtype)
    plain = {bool: True, int: 2**40, float: 0.25, str: "ein Wörtchen"}
    values = {}
    for name, (hint, optional) in field_types(cls).items():
        if optional and empty:
            values[name] = None
        elif get_origin(hint) is dict:
            values[name] = (
                {} if empty else {"a.weight": tensor.clone(), "b/c": tensor[:0].clone(), "d": tensor.sum().to(dtype)}
            )
        else:
            values[name] = (tensor[:0] if empty else tensor.clone()) if hint is Tensor else plain[hint]
    return cls(**values)


def same(one, other):
    assert type(one) is type(other)
    mine, theirs = tensors_of(one), tensors_of(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape
        assert torch.equal(tensor, theirs[name])
    for field in fields(one):
        value = getattr(one, field.name)
        if not isinstance(value, Tensor | dict):
            assert getattr(other, field.name) == value


@pytest.mark.parametrize("kind", [*OURS, "test.message.everything"])
class TestEveryKind:
    def test_says_what_it_reveals(self, kind):
        says = (KINDS[kind].__doc__ or "").partition("Reveals:")[2]
        assert len(says.split()) >= 2

    @pytest.mark.parametrize("empty", [False, True])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_survives_the_wire_and_its_size_is_known_before(self, kind, dtype, empty):
        message = example(KINDS[kind], dtype, empty)
        data = encode(message)
        same(decode(data), message)
        assert size(message) == len(data)

    def test_is_a_frozen_record(self, kind):
        message = example(KINDS[kind])
        for field in fields(message):
            with pytest.raises(AttributeError):
                setattr(message, field.name, None)


def test_all_methods_are_in_the_list():
    assert {"join", "keep", "rewind", "ffm.gradient", "ffm.lookup.reply", "tables.summarise"} <= set(OURS)


class TestSize:
    def test_counts_shapes_and_names(self):
        for count in (0, 1, 9, 10, 99, 100, 12345):
            message = everything(tensor=torch.zeros(count), many={"n" * (count % 17 + 1): torch.zeros(3, count % 7)})
            assert size(message) == len(encode(message))

    def test_is_not_confused_by_strides(self):
        message = everything(tensor=torch.zeros(4, 6).T[::2])
        assert size(message) == len(encode(message))
        same(decode(encode(message)), message)

    def test_fields_may_be_views_of_the_same_memory(self):
        whole = torch.arange(6.0)
        message = KINDS["ffm.share"]({"a": whole[:4], "b": whole[2:], "c": whole})
        same(decode(encode(message)), message)

    def test_is_right_for_every_mixture_of_types(self):
        wrong = []
        for one in DTYPES:
            for other in DTYPES:
                for count in (1, 3, 100, 1001):
                    message = everything(tensor=torch.zeros(count).to(one), many={"x": torch.zeros(1).to(other)})
                    wrong += [(one, other, count)] if size(message) != len(encode(message)) else []
        assert not wrong


class TestDecode:
    def bytes_of(self, header, tensors=b""):
        text = json.dumps(header).encode()
        return len(text).to_bytes(4, "little") + text + tensors

    @pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\xff" * 40, b"\x80\x04K\x01.", b"GET / HTTP/1.1"])
    def test_garbage_is_refused(self, data):
        with pytest.raises(MessageError, match="no message"):
            decode(data)

    def test_every_truncation_of_a_message_with_tensors_is_refused(self):
        data = encode(everything())
        for end in range(len(data)):
            with pytest.raises(MessageError):
                decode(data[:end])

    def test_a_cut_between_header_and_tensors_is_refused_too(self):
        data = encode(KINDS["ffm.share"]({"w": torch.zeros(2)}))
        with pytest.raises(MessageError):
            decode(data[: 4 + int.from_bytes(data[:4], "little")])

    def test_bytes_after_the_end_are_refused(self):
        for message in (everything(), Joined(1, 2, 3)):
            with pytest.raises(MessageError):
                decode(encode(message) + b"\0")

    def test_a_header_that_is_no_record_is_refused(self):
        for header in (["kind"], "join", None, {}):
            with pytest.raises(MessageError, match="no message"):
                decode(self.bytes_of(header))

    def test_an_unknown_kind_is_refused_with_the_nearest_known(self):
        with pytest.raises(MessageError, match="did you mean 'join'"):
            decode(self.bytes_of({"kind": "joinn"}))

    def test_a_kind_that_is_no_text_is_refused(self):
        with pytest.raises(MessageError):
            decode(self.bytes_of({"kind": ["join"]}))

    def test_a_missing_field_is_refused(self):
        with pytest.raises(MessageError, match=r"incomplete.*seed"):
            decode(self.bytes_of({"kind": "join"}))

    def test_an_unknown_field_is_refused_by_name(self):
        with pytest.raises(MessageError, match="unknown fields: colour"):
            decode(self.bytes_of({"kind": "join", "seed": 1, "colour": 2}))

    def test_an_unknown_tensor_is_refused_by_name(self):
        data = encode(KINDS["ffm.share"]({"w": torch.zeros(2)}))
        start = 4 + int.from_bytes(data[:4], "little")
        with pytest.raises(MessageError, match="unknown fields: potential/w"):
            decode(self.bytes_of({"kind": "done", "bytes": len(data) - start}, data[start:]))

    @pytest.mark.parametrize("seed", ["1", 1.5, None, [1], True])
    def test_a_value_of_another_type_is_refused(self, seed):
        with pytest.raises(MessageError, match="seed of type"):
            decode(self.bytes_of({"kind": "join", "seed": seed}))

    def test_a_truth_value_is_no_number(self):
        with pytest.raises(MessageError):
            decode(self.bytes_of({"kind": "ffm.award.reply", "dual": True, "chi_square": 0.0}))

    def test_a_whole_number_is_a_number(self):
        reply = decode(self.bytes_of({"kind": "ffm.award.reply", "dual": 2, "chi_square": 0.5}))
        assert reply.dual == 2.0 and isinstance(reply.dual, float)

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_numbers_that_are_none_are_refused(self, value):
        text = f'{{"kind":"ffm.award.reply","dual":{value},"chi_square":0.0}}'.encode()
        with pytest.raises(MessageError, match="not a finite number"):
            decode(len(text).to_bytes(4, "little") + text)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_tensors_that_are_not_finite_are_refused(self, bad):
        with pytest.raises(MessageError, match="tensor that are not finite"):
            decode(encode(everything(tensor=torch.tensor([1.0, bad]))))


class TestCheck:
    @pytest.mark.parametrize("thing", [None, 3, {"kind": "join"}, torch.zeros(2)])
    def test_only_messages_are_messages(self, thing):
        with pytest.raises(MessageError, match=f"{type(thing).__name__} arrived"):
            check(thing)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("tensor", [1.0]),
            ("many", torch.zeros(2)),
            ("number", 1),
            ("number", True),
            ("whole", True),
            ("whole", 1.0),
            ("flag", 1),
            ("text", b"x"),
            ("maybe", 1),
            ("tensor", None),
        ],
    )
    def test_every_field_must_be_of_its_type(self, field, value):
        with pytest.raises(MessageError, match=f"{field} of type"):
            check(replace(everything(), **{field: value}))

    def test_what_is_optional_may_be_absent(self):
        check(everything())
        check(everything(perhaps=torch.ones(1), maybe="so"))

    def test_a_dictionary_holds_tensors_only(self):
        with pytest.raises(MessageError, match="many/x, which is no tensor"):
            check(everything(many={"x": 1.0}))

    @pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point])
    def test_only_what_is_not_finite_is_refused_by_its_name(self, dtype):
        """Not what is merely large: its norm may overflow. Nor what is empty."""
        large = torch.full((3,), torch.finfo(dtype).max, dtype=dtype)
        fine = {"a": large, "b": large[:0], "c": torch.ones((), dtype=dtype)}
        check(everything(many=fine))
        for bad in (torch.nan, torch.inf, -torch.inf):
            spoilt = torch.cat([large, torch.tensor([bad], dtype=dtype)])
            with pytest.raises(NotFiniteError, match="numbers in many/d that are not finite"):
                check(everything(many={**fine, "d": spoilt}))

    def test_a_message_is_looked_at_once_however_many_tensors_it_has(self, monkeypatch):
        looks = []
        item = Tensor.__float__
        monkeypatch.setattr(Tensor, "__float__", lambda tensor: looks.append(1) or item(tensor))
        monkeypatch.setattr(Tensor, "__bool__", lambda tensor: pytest.fail("a tensor was looked at by itself"))
        check(everything(many={str(number): torch.ones(3) for number in range(50)}))
        assert len(looks) == 1

    def test_numbers_must_be_finite_wherever_they_are(self):
        for bad in (
            {"number": float("nan")},
            {"tensor": torch.tensor([float("inf")])},
            {"many": {"x": torch.tensor([float("nan")], dtype=torch.bfloat16)}},
        ):
            with pytest.raises(MessageError, match="not"):
                check(everything(**bad))

    def test_answers_must_fit_their_question(self):
        question = KINDS["ffm.gradient"]({"w": torch.zeros(2)}, {})
        reply = KINDS["ffm.gradient.reply"]
        check(reply({"w": torch.ones(2)}, torch.tensor(0.0)), question)
        for wrong in ({"w": torch.ones(3)}, {"v": torch.ones(2)}, {}, {"w": torch.ones(2, dtype=torch.float64)}):
            with pytest.raises(MessageError, match=r"ffm\.gradient\.reply"):
                check(reply(wrong, torch.tensor(0.0)), question)
        lookup = KINDS["ffm.lookup"](torch.tensor([1]), "fit", 1, 4, False)
        with pytest.raises(MessageError, match="scores arrived for 4"):
            check(KINDS["ffm.lookup.reply"](torch.zeros(3)), lookup)
        histograms = KINDS["ffm.histograms"](torch.zeros(2, 3), torch.zeros(2, 5))
        with pytest.raises(MessageError, match=r"\(2, 6\) were expected"):
            check(KINDS["ffm.histograms.reply"](torch.zeros(2, 5, dtype=torch.int64)), histograms)


def test_same_shapes_names_what_differs():
    with pytest.raises(MessageError, match="other tensors than were asked for: b"):
        same_shapes("k", {"a": torch.zeros(1), "b": torch.zeros(1)}, {"a": torch.zeros(1)})
    with pytest.raises(MessageError, match=r"a as torch.float32 \(1,\)"):
        same_shapes("k", {"a": torch.zeros(1)}, {"a": torch.zeros(2)})


def test_two_messages_cannot_share_a_kind():
    with pytest.raises(TypeError, match="'join'"):

        class Other(Message, kind="join"):
            pass

    assert KINDS["join"].__name__ == "Join"


def test_one_tensor_may_stand_in_two_fields():
    tensor = torch.arange(1.0, 4.0)
    message = everything(tensor=tensor, many={"x": tensor, "y": tensor.flip(0)})
    data = encode(message)
    found = decode(data)
    same(found, message)
    assert found.tensor.tolist() == found.many["x"].tolist() == [1.0, 2.0, 3.0] and size(message) == len(data)
    assert found.tensor.data_ptr() != found.many["x"].data_ptr()  # they are two on arrival
