"""A site behind a wire: what it refuses, what it logs, and that the bytes make no difference."""

import json
import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from anabranch.errors import DataError, MessageError, UsageError
from anabranch.federation import (
    AuditLog,
    Envelope,
    Federation,
    Join,
    Joined,
    Keep,
    Message,
    Noise,
    Policy,
    Refused,
    RemoteEngine,
    Silo,
    Site,
    answers,
    decode,
    decode_question,
    encode,
    encode_question,
    read_log,
)


@dataclass(frozen=True)
class Add(Message, kind="test.site.add"):
    """Asks for the silo's running sum after adding a number.

    Reveals: nothing; it belongs to the tests.
    """

    amount: Tensor


@dataclass(frozen=True)
class Sum(Message, kind="test.site.add.reply"):
    """The sum.

    Reveals: nothing; it belongs to the tests.
    """

    total: Tensor

    def validate(self, question):
        if isinstance(question, Add) and self.total.shape != question.amount.shape:
            raise MessageError("a sum of another shape")


class Trouble:
    """What the silo half does instead of answering well, by silo."""

    by_name: ClassVar[dict] = {}


@answers(Add)
def add(silo: Silo, question: Add) -> Sum:
    trouble = Trouble.by_name.get(silo.name)
    if trouble == "raises":
        raise ValueError("the patient's name is Ada")
    if trouble == "nan":
        return Sum(question.amount * torch.nan)
    if trouble == "shape":
        return Sum(torch.zeros(7))
    if trouble == "kind":
        return Join(3)
    silo.state["sum"] = silo.state.get("sum", torch.zeros(2)) + question.amount
    return Sum(silo.state["sum"])


@pytest.fixture(autouse=True)
def no_trouble():
    Trouble.by_name = {}


KINDS = ("join", "keep", "rewind", "gathered", "test.site.add")
AMOUNT = Add(torch.tensor([1.0, 2.0]))


def site(name="a", points=5, log=None, postprocessors=(), **policy):
    silo = Silo(name, torch.arange(2.0 * points).reshape(points, 2), secret=3)
    return Site(silo, Policy(**{"kinds": KINDS, "rounds": 10, **policy}), log, postprocessors)


def question(message=AMOUNT, round=1, sequence=1, run="run", session=0):
    return encode_question(Envelope(run, round, sequence, message, session))


def connected(*sites, carry=None, **options):
    """A federation that speaks to the sites through bytes."""
    by_name = {one.silo.name: one for one in sites}

    def through(questions, patience):
        return {name: by_name[name].answer(data) for name, data in questions.items()}

    federation = Federation(RemoteEngine(by_name, carry or through, **options))
    federation.open("run", seed=0)
    return federation


class TestWire:
    def test_a_question_survives_the_wire(self):
        sent = Envelope("run", 4, 2, AMOUNT, 77)
        got = decode_question(encode_question(sent))
        assert got.place == sent.place and torch.equal(got.question.amount, AMOUNT.amount)

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            ({"version": "99.0.0"}, "version 99.0.0 arrived at version"),
            ({"version": 3}, "version 3 arrived"),
            ({"round": -1}, "no whole number"),
            ({"round": True}, "no whole number"),
            ({"sequence": 2**63}, "no whole number"),
            ({"session": 1.5}, "no whole number"),
            ({"run": 7}, "no name"),
            ({"run": "x" * 513}, "no name"),
            ({"extra": 1}, "does not say"),
        ],
    )
    def test_a_wrong_header_is_refused(self, header, words):
        data = question()
        length = int.from_bytes(data[:4], "little")
        text = json.dumps({**json.loads(data[4 : 4 + length]), **header}).encode()
        with pytest.raises(MessageError, match=words):
            decode_question(len(text).to_bytes(4, "little") + text + data[4 + length :])

    @pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x02\x00\x00\x00{}"])
    def test_bytes_that_are_no_question_are_refused(self, data):
        with pytest.raises(MessageError):
            decode_question(data)

    def test_a_mutated_question_is_refused_or_fits_the_schema(self):
        random = torch.Generator().manual_seed(0)
        whole, refused = question(), 0
        for _ in range(1500):
            data = bytearray(whole)
            for _ in range(int(torch.randint(1, 4, (1,), generator=random))):
                place = int(torch.randint(len(data), (1,), generator=random))
                choice = int(torch.randint(3, (1,), generator=random))
                if choice == 0:
                    data[place] = int(torch.randint(256, (1,), generator=random))
                elif choice == 1:
                    del data[place:]
                else:
                    data[place:place] = data[: int(torch.randint(20, (1,), generator=random))]
                if not data:
                    break
            try:
                envelope = decode_question(bytes(data))
            except MessageError:
                refused += 1
            else:
                assert envelope.question.amount.isfinite().all() and 0 <= envelope.round < 2**63
        assert refused > 500


class TestPolicy:
    def refusal(self, one, data):
        reply = decode(one.answer(data))
        assert isinstance(reply, Refused)
        return reply.sentence

    def test_a_kind_that_is_not_listed_is_refused(self):
        assert "does not list it" in self.refusal(site(kinds=("join",)), question())

    def test_a_round_beyond_the_limit_is_refused(self):
        assert isinstance(decode(site().answer(question(round=10))), Sum)
        assert "up to round 10" in self.refusal(site(), question(round=11))

    def test_answers_are_limited(self):
        one = site(limits={"test.site.add": 2})
        for sequence in (1, 2):
            assert isinstance(decode(one.answer(question(sequence=sequence))), Sum)
        assert "at most 2 answers" in self.refusal(one, question(sequence=3))

    def test_a_restart_does_not_refill_a_limit(self, tmp_path):
        for sequence in (1, 2):
            log = AuditLog(tmp_path / "log")
            one = site(limits={"test.site.add": 2}, log=log)
            assert isinstance(decode(one.answer(question(Join(1), sequence=9))), Joined)
            assert isinstance(decode(one.answer(question(sequence=sequence))), Sum)
            log.close()
        one = site(limits={"test.site.add": 2}, log=AuditLog(tmp_path / "log"))
        assert "at most 2 answers" in self.refusal(one, question(sequence=3))
        assert isinstance(decode(one.answer(question(run="another"))), Sum)

    def test_too_few_points_are_not_answered_for(self):
        assert "would rest on 5" in self.refusal(site(smallest_group=6), question(Join(1)))

    def test_a_site_withdraws_and_returns(self, tmp_path):
        one = site(withdrawn=tmp_path / "WITHDRAWN")
        (tmp_path / "WITHDRAWN").touch()
        assert "has withdrawn" in self.refusal(one, question())
        (tmp_path / "WITHDRAWN").unlink()
        assert isinstance(decode(one.answer(question())), Sum)

    @pytest.mark.parametrize("wrong", [{"rounds": 0}, {"smallest_group": 0}, {"limits": {"join": -1}}])
    def test_a_policy_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(UsageError):
            site(**wrong)

    def test_kinds_that_nobody_asks_are_found(self):
        assert Policy(("join", "jion"), 1).unknown_kinds() == ["jion"]


class TestSite:
    def test_a_repeated_question_gets_the_same_bytes_and_changes_nothing(self):
        one = site(postprocessors=[Noise(1.0, ("test.site.add.reply",))])
        first = one.answer(question())
        assert one.answer(question()) == first
        assert torch.equal(one.silo.state["sum"], AMOUNT.amount)
        assert one.answer(question(sequence=2)) != first

    def test_another_question_at_the_same_place_is_not_taken_for_a_repetition(self):
        one = site()
        one.answer(question())
        other = decode(one.answer(question(replace(AMOUNT, amount=torch.ones(2)))))
        assert isinstance(other, Refused) and "two questions at one place" in other.sentence

    def test_what_a_failure_says_stays_at_the_site(self, tmp_path):
        Trouble.by_name = {"a": "raises"}
        one = site(log=AuditLog(tmp_path / "log"))
        reply = decode(one.answer(question()))
        assert isinstance(reply, Refused) and "Ada" not in reply.sentence and "ValueError" in reply.sentence
        (entry,) = read_log(tmp_path / "log")
        assert "Ada" in entry["cause"] and entry["verdict"] == "refused"

    @pytest.mark.parametrize("trouble", ["nan", "shape", "kind"])
    def test_nonsense_does_not_leave_the_site(self, trouble):
        Trouble.by_name = {"a": trouble}
        assert isinstance(decode(site().answer(question())), Refused)

    def test_questions_that_arrive_together_are_answered_in_turn(self):
        one = site()
        threads = [threading.Thread(target=one.answer, args=(question(sequence=n),)) for n in range(1, 21)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.equal(one.silo.state["sum"], 20 * AMOUNT.amount)


class TestAuditLog:
    def test_every_question_is_logged_with_the_hash_of_its_answer(self, tmp_path):
        import hashlib

        one = site(log=AuditLog(tmp_path / "log"))
        sent = [
            one.answer(question()),
            one.answer(question()),
            one.answer(question(Keep(0), round=99)),
            one.answer(b"?"),
        ]
        entries = list(read_log(tmp_path / "log"))
        assert [entry["verdict"] for entry in entries] == ["answered", "repeated", "refused", "refused"]
        assert [entry["answer"] for entry in entries] == [hashlib.sha256(data).hexdigest() for data in sent]
        first = entries[0]
        assert (first["kind"], first["round"], first["sequence"]) == ("test.site.add", 1, 1)
        assert first["shapes"] == {"total": "float32 (2,)"} and first["bytes_out"] == len(sent[0])

    def test_the_log_goes_on_after_a_restart(self, tmp_path):
        for number in range(3):
            log = AuditLog(tmp_path / "log")
            log.add(number=number)
            log.close()
        assert [entry["number"] for entry in read_log(tmp_path / "log")] == [0, 1, 2]

    def test_half_a_line_left_by_a_crash_is_dropped(self, tmp_path):
        log = AuditLog(tmp_path / "log")
        log.add(number=0)
        log.close()
        with (tmp_path / "log").open("a") as file:
            file.write('{"number": 1, "af')
        AuditLog(tmp_path / "log").add(number=2)
        assert [entry["number"] for entry in read_log(tmp_path / "log")] == [0, 2]

    def test_two_writers_are_one_too_many(self, tmp_path):
        log = AuditLog(tmp_path / "log")
        with pytest.raises(DataError, match="Another process answers"):
            AuditLog(tmp_path / "log")
        threading.Timer(0.2, log.close).start()
        AuditLog(tmp_path / "log", patience=5.0).add(number=0)

    @pytest.mark.parametrize("change", ["edit", "remove", "swap"])
    def test_a_change_shows(self, tmp_path, change):
        log = AuditLog(tmp_path / "log")
        for number in range(4):
            log.add(number=number)
        lines = (tmp_path / "log").read_text().splitlines()
        if change == "edit":
            lines[1] = lines[1].replace('"number": 1', '"number": 9')
        elif change == "remove":
            del lines[1]
        else:
            lines[1], lines[2] = lines[2], lines[1]
        (tmp_path / "log").write_text("\n".join(lines) + "\n")
        with pytest.raises(DataError, match=r"Line [23]"):
            list(read_log(tmp_path / "log"))


class TestRemoteEngine:
    def test_answers_come_back_sorted_by_name(self):
        federation = connected(site("b"), site("a", 9))
        replies = federation.ask(AMOUNT)
        assert list(replies.answers) == ["a", "b"] and federation.weight == {"a": 9 / 14, "b": 5 / 14}

    @pytest.mark.parametrize(
        ("arrived", "words"),
        [
            (TimeoutError(), "did not answer in time"),
            (RuntimeError("gone"), "could not be asked: gone"),
            (None, "nothing came back"),
            (b"junk", "was refused: Bytes arrived"),
            ({"answer": 1}, "answered with a dict"),
            (encode(Join(3)), "answered with a 'join'"),
            (encode(Sum(torch.zeros(7))), "another shape"),
        ],
    )
    def test_who_gives_no_answer_is_left_out_by_name(self, arrived, words):
        sites = {one.silo.name: one for one in (site("a"), site("b"))}

        federation = connected(*sites.values())
        federation.engine.carry = lambda questions, patience: {"a": sites["a"].answer(questions["a"]), "b": arrived}
        replies = federation.ask(AMOUNT)
        assert list(replies.answers) == ["a"] and words in replies.failures["b"] and "'b'" in replies.failures["b"]

    def test_numbers_that_are_not_finite_are_refused_on_arrival(self):
        data = bytearray(encode(Sum(torch.ones(2))))
        data[-4:] = b"\x00\x00\xc0\x7f"  # a float32 that is not a number, as the last one
        federation = connected(site())
        federation.engine.carry = lambda questions, patience: {"a": bytes(data)}
        assert "not finite" in federation.ask(AMOUNT).failures["a"]

    def test_the_book_says_who_was_asked_whose_answer_counts_and_who_was_left_out(self, tmp_path):
        book = []
        one, other = site("a", log=AuditLog(tmp_path / "log")), site("b")
        federation = connected(one, other, book=book.append)
        Trouble.by_name = {"b": "nan"}
        federation.start_round(3)
        federation.ask(AMOUNT)
        *_, asked, accepted, left_out = book
        assert asked["asked"] == ["a", "b"] and left_out["left_out"] == "b" and "not finite" in left_out["why"]
        assert {entry["round"] for entry in (asked, accepted, left_out)} == {3}
        *_, logged = read_log(tmp_path / "log")
        assert accepted["accepted"] == "a" and accepted["answer"] == logged["answer"]
        assert [accepted[key] for key in ("session", "sequence")] == [logged[key] for key in ("session", "sequence")]

    def test_what_is_asked_is_written_down_before_it_leaves(self):
        book = []
        federation = connected(site("a"), book=book.append)

        def cut_off(questions, patience):
            raise KeyboardInterrupt

        federation.engine.carry = cut_off
        with pytest.raises(KeyboardInterrupt):
            federation.ask(AMOUNT)
        assert book[-2]["asked"] == ["a"]
        assert book[-1]["left_out"] == "a" and "cut off" in book[-1]["why"]

    def test_patience_is_the_questions_own_or_the_engines(self):
        seen = []
        one = site()

        def carry(questions, patience):
            seen.append(patience)
            return {"a": one.answer(questions["a"])}

        federation = connected(one, carry=carry, patience=5.0)
        federation.ask(AMOUNT, timeout=0.5)
        assert seen == [5.0, 0.5]

    def test_an_engine_without_silos_is_refused(self):
        with pytest.raises(UsageError):
            RemoteEngine([], lambda questions, patience: {})


@pytest.fixture(params=["local", "wire"])
def federation(request):
    sites = [site(name) for name in "abc"]
    if request.param == "wire":
        return connected(*sites), [one.silo for one in sites]
    federation = Federation([one.silo for one in sites])
    federation.open("run", seed=0)
    return federation, [one.silo for one in sites]


class TestGather:
    def test_every_silo_receives_all_answers(self, federation):
        joint, silos = federation
        replies = joint.gather(AMOUNT)
        for silo in silos:
            assert list(silo.gathered["test.site.add.reply"]) == ["a", "b", "c"]
            for name, reply in silo.gathered["test.site.add.reply"].items():
                assert torch.equal(reply.total, replies.answers[name].total)

    def test_who_fails_is_in_nobodys_hands(self, federation):
        Trouble.by_name = {"b": "nan"}
        joint, silos = federation
        replies = joint.gather(AMOUNT)
        assert "b" in replies.failures
        assert [list(silo.gathered.get("test.site.add.reply", {})) for silo in silos] == [["a", "c"], [], ["a", "c"]]

    def test_nothing_gathered_reaches_into_another_run(self, federation):
        joint, silos = federation
        joint.gather(AMOUNT)
        joint.open("another", seed=0)
        assert all(not silo.gathered for silo in silos)

    def test_one_by_one_asks_in_turn(self, federation):
        joint, _ = federation
        times = []
        before = joint.engine.ask
        joint.engine.ask = lambda envelopes, timeout: times.append(list(envelopes)) or before(envelopes, timeout)
        assert list(joint.ask(AMOUNT, one_by_one=True).answers) == ["a", "b", "c"]
        assert times == [["a"], ["b"], ["c"]]
