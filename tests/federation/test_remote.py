"""The server's end of the wire: who gives no answer is left out by name, and the book says so."""

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.federation import AuditLog, Join, RemoteEngine, encode, read_log
from tests.federation.adding import AMOUNT, Sum, connected, site


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
        one = site("a")
        federation = connected(one, site("b"))
        federation.engine.carry = lambda questions, patience: {"a": one.answer(questions["a"]), "b": arrived}
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
        other.silo.trouble = "nan"
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
