"""Hostile messages: nothing is raised, nothing runs for ever, and what is accepted is what it claims to be."""

import json
import time
from dataclasses import replace
from itertools import product

import pytest
import torch

from anabranch.errors import MessageError
from anabranch.federation import (
    KINDS,
    Done,
    Envelope,
    Gathered,
    Join,
    Joined,
    Message,
    Policy,
    Refused,
    RemoteEngine,
    Site,
    decode,
    encode,
    encode_question,
)
from anabranch.federation._encoding import LONGEST_HEADER
from anabranch.federation._means import MOST_NUMBERS, MOST_WORK
from anabranch.methods.ffm import Gradient, GradientReply, Histograms, HistogramsReply, PotentialGradient
from anabranch.methods.ffm import PotentialGradientReply as PotentialReply
from anabranch.methods.tables import Summarise, SummaryReply
from benchmarks.fuzz import attack_server, attack_site, fresh, scenes


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return scenes(tmp_path_factory.mktemp("fuzz"))


def test_every_kind_is_among_the_recorded_messages(real):
    seen = {scene.envelope.question.kind for scene in real} | {decode(scene.answered).kind for scene in real}
    ours = {kind for kind, cls in KINDS.items() if cls.__module__.startswith("anabranch.")}
    assert ours - seen == {"refused"}


@pytest.mark.parametrize("attack", [attack_site, attack_server])
def test_mutated_messages_do_no_harm(real, attack):
    outcome = attack(2000, real, seed=7)
    assert not outcome.wrong
    assert outcome.accepted > 50 and outcome.refused.total() > 500


# Bytes that a decoder must refuse ----------------------------------------------------------------------------------


def raw(header: str, tensors: dict | None = None, numbers: bytes = b"") -> bytes:
    listed = json.dumps(tensors).encode() if tensors else b""
    listed += b" " * (-len(listed) % 8)
    body = len(listed).to_bytes(8, "little") + listed + numbers if tensors else b""
    text = header.replace("{", f'{{"bytes":{len(body)},', 1).encode()
    return len(text).to_bytes(4, "little") + text + body


def tensor(dtype: str, shape: list[int], size: int) -> dict:
    return {"potential/x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}


POTENTIAL = '{"kind":"ffm.potential"}'
AWARD = '{"kind":"ffm.award","purpose":"","block":0,"step":0.0,"average":false,"store":false}'
WON = {"won": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw('{"kind":"ffm.award.reply","dual":1%s,"chi_square":0.0}' % ("0" * 400)), "float was expected"),
        (raw('{"kind":"ffm.award.reply","dual":NaN,"chi_square":0.0}'), "not a finite number"),
        (raw('{"kind":"join","seed":9%s}' % ("9" * 5000)), "no message"),
        (raw('{"kind":"join","seed":%s}' % ("[" * 50000)), "no message"),
        (raw('{"kind":"refused","error":"","sentence":"\\ud800"}'), "no text"),
        (raw(POTENTIAL, tensor("F32", [1] * 70, 4), bytes(4)), "70 sides"),
        (raw(POTENTIAL, tensor("F32", [0, 2**62], 0)), "shape that no message may hold"),
        (raw(POTENTIAL, tensor("F8_E4M3", [4], 4), bytes(4)), "no message may hold"),
        (raw(AWARD, WON, b"\x00\x01\x02\xff"), "neither true nor false"),
        (b"\xff\xff\xff\xff{}", "cut off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_a_decoder_refuses(data, words):
    with pytest.raises(MessageError, match=words):
        decode(data)


def test_long_headers_are_not_read():
    listed = {"__metadata__": {"a": "b" * LONGEST_HEADER}, **tensor("F32", [1], 4)}
    for data in (raw('{"kind":"%s"}' % ("x" * LONGEST_HEADER)), raw(POTENTIAL, listed, bytes(4))):
        with pytest.raises(MessageError, match="too long"):
            decode(data)


@pytest.mark.parametrize("heads", ["{", "[" * 50000, "[]", '{"a":3}', '{"a":{"kind":"nonsense"}}'])
def test_gathered_nonsense_is_refused(heads):
    with pytest.raises(MessageError):
        Gathered({}, heads).replies()


# Answers that a server must not take -------------------------------------------------------------------------------


def failure(question: Message, reply: bytes) -> str:
    engine = RemoteEngine(["a"], lambda questions, patience: {"a": reply})
    return engine.ask({"a": Envelope("run", 1, 1, question)}).failures["a"]


W = {"w": torch.zeros(2)}
EDGES = Histograms(torch.ones(2, 2), torch.zeros(2, 1))
SUMMARY = {
    "names": ["age", "town"],
    "kinds": {"age": "numeric", "town": "categorical"},
    "count": [2.0],
    "total": [3.0],
    "squares": [1.0],
    "whole": [True],
    "categories": {"town": {"Bonn": 2}},
}


@pytest.mark.parametrize(
    ("question", "reply", "words"),
    [
        (Join(1), Joined(0, 2, 1), "cannot be"),
        (Join(1), Joined(5, 2**40, 1), "cannot be"),
        (Gradient(W, {}), GradientReply(W, torch.zeros(3)), "a number was expected"),
        (Gradient(W, {}), GradientReply(W, torch.tensor(3)), "a number was expected"),
        (PotentialGradient(W), PotentialReply(W, torch.zeros(1)), "a number was expected"),
        (EDGES, HistogramsReply(torch.tensor([[1, 1], [0, 0]])), "hold no points"),
    ],
)
def test_an_answer_that_cannot_be_is_left_out(question, reply, words):
    assert words in failure(question, encode(reply))


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["age", "age"]},
        {"names": [["age"], "town"]},
        {"kinds": {"age": "numeric"}},
        {"kinds": {"age": "numeric", "town": "odd"}},
        {"count": []},
        {"total": [10**400]},
        {"squares": "x"},
        {"categories": {}},
        {"categories": {"town": {"Bonn": "2"}}},
        {"categories": {"town": 3}},
    ],
)
def test_a_summary_that_is_none_is_left_out(change):
    question = Summarise("[]")
    SummaryReply(json.dumps(SUMMARY)).validate(question)
    assert "summary arrived that is none" in failure(question, encode(SummaryReply(json.dumps({**SUMMARY, **change}))))


def test_what_a_site_says_is_fit_for_a_screen():
    said = failure(Join(1), encode(Refused("RefusedError", "\x1b[2J" + "no " * 10**5)))
    assert said.isprintable() and len(said) < 2100 and "no no" in said


# Questions that would cost a site too much -------------------------------------------------------------------------


def ask(scene, numbers_allowed=MOST_NUMBERS, **changes):
    """The recorded question with some fields changed, to a silo with the bounds that every silo has."""
    silo = fresh(scene.silo)
    silo.most_numbers, silo.most_work = numbers_allowed, MOST_WORK
    started = time.process_time()
    data = encode_question(replace(scene.envelope, question=replace(scene.envelope.question, **changes)))
    reply = decode(Site(silo, Policy(tuple(KINDS), 10**6)).answer(data))
    assert time.process_time() - started < 2
    return reply


def of_kind(real, kind):
    return next(scene for scene in reversed(real) if scene.envelope.question.kind == kind)


@pytest.mark.parametrize("number", [2**30, 2**62])
@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        ("ffm.local", "steps", "local steps"),
        ("ffm.lookup", "count", "noises"),
        ("ffm.settle", "block", "awarded others"),
    ],
)
def test_a_question_for_too_much_is_refused(real, kind, field, words, number):
    reply = ask(of_kind(real, kind), **{field: number})
    assert isinstance(reply, Refused) and reply.error == "RefusedError" and words in reply.sentence


@pytest.mark.parametrize(("noises", "block"), [(2**62, 64), (2**62, 2**62), (2**62, 1), (0, 64), (64, 0), (64, -1)])
def test_noises_that_were_not_awarded_are_not_made_up(real, noises, block):
    assert isinstance(ask(of_kind(real, "ffm.settle"), noises=noises, block=block), Refused)


GREEDY = [
    *product(["flow"], ["hidden", "layers"], [10**6, 10**9, 10**12, 2**62, 10**30]),
    *product(["flow"], ["batch"], [10**9, 10**12, 2**62, 10**30]),
    *product(["potential"], ["hidden", "layers", "batch"], [10**9, 2**62]),
    *product(["coupling"], ["candidates", "descent_steps"], [10**12, 2**62]),
    ("flow", "hidden", "x"),
    ("flow", "batch", True),
    ("flow", "rate", []),
]


@pytest.mark.parametrize(("section", "key", "value"), GREEDY)
def test_settings_beyond_a_silos_means_are_refused(real, section, key, value):
    scene = of_kind(real, "ffm.prepare")
    settings = json.loads(scene.envelope.question.settings)
    settings["coupling"]["name"] = "potential"
    settings["coupling"]["transform"] = "descent"
    assert isinstance(ask(scene, settings=json.dumps(settings)), Done)
    settings[section][key] = value
    reply = ask(scene, settings=json.dumps(settings))
    assert isinstance(reply, Refused) and reply.error in ("RefusedError", "UsageError")


def test_a_narrow_share_makes_no_endless_pool(real):
    scene = of_kind(real, "ffm.prepare")
    settings = json.loads(scene.envelope.question.settings)
    settings["coupling"]["name"] = "balanced"
    settings["flow"]["batch"] = 10**4
    assert isinstance(ask(scene, settings=json.dumps(settings), weight=0.5), Done)
    assert "training step" in ask(scene, settings=json.dumps(settings), weight=1e-300).sentence


def test_local_rounds_are_bounded(real):
    scene = of_kind(real, "ffm.settle")
    half = scene.silo.cache["ffm"]
    many = replace(half.settings.semidiscrete, local_rounds=2**62)
    scene.silo.cache["ffm"] = replace(half, settings=replace(half.settings, semidiscrete=many))
    try:
        assert "rounds of its own" in ask(scene).sentence
    finally:
        scene.silo.cache["ffm"] = half


@pytest.mark.parametrize("kind", ["ffm.gradient", "ffm.local", "ffm.potential", "ffm.share"])
def test_parameters_of_another_shape_are_refused(real, kind):
    scene = of_kind(real, kind)
    name = "parameters" if kind in ("ffm.gradient", "ffm.local") else "potential"
    tensors = getattr(scene.envelope.question, name)
    first = next(iter(tensors))
    for wrong in (torch.zeros(9, 9), tensors[first].double()):
        assert ask(scene, **{name: {**tensors, first: wrong}}).error == "MessageError"
    assert ask(scene, **{name: {**tensors, "more": torch.zeros(1)}}).error == "MessageError"
    assert not isinstance(ask(scene), Refused)


def test_a_seed_of_too_many_numbers_is_refused(real):
    scene = of_kind(real, "ffm.lookup")
    own = scene.envelope.question.numbers
    for numbers in (own.expand(2, -1), torch.cat([own, torch.zeros(2**20, dtype=torch.long)])):
        assert "not one of each silo" in ask(scene, numbers=numbers.contiguous()).sentence


def test_wide_encodings_and_many_directions_are_refused(real):
    wide = {"name": "shift", "categories": [str(n) for n in range(30000)], "counts": [1] * 30000}
    scene = of_kind(real, "tables.encode")
    encoder = [json.loads(scene.envelope.question.encoder)[0], wide]
    assert "30001 coordinates" in ask(scene, encoder=json.dumps(encoder)).sentence
    scene = of_kind(real, "ffm.histograms")
    directions = torch.ones(1000, scene.envelope.question.directions.shape[1])
    assert "1000 directions" in ask(scene, numbers_allowed=5000, directions=directions).sentence
