"""The follower tells every round once, also when a run goes back or a line is still being written."""

import json

import pytest

from anabranch.engines._progress import Follower
from anabranch.federation import write_atomically
from anabranch.runs import Notes


def line(number):
    record = {"round": number, "rounds": 9, "phase": "flow", "loss": 0.5, "seconds": 1.0}
    return json.dumps({**record, "bytes_up": 10 * number, "bytes_down": 20 * number}) + "\n"


@pytest.fixture
def followed(tmp_path):
    told = []
    follower = Follower(
        tmp_path, Notes(lambda progress, seen: told.append((progress.round, seen.ledger.bytes()))), "ab"
    )
    return tmp_path / "metrics.jsonl", follower, told


def test_rounds_are_told_once(followed):
    path, follower, told = followed
    follower.look()
    path.write_text(line(1) + line(2))
    follower.look()
    follower.look()
    with path.open("a") as file:
        file.write(line(3))
    follower.look()
    assert told == [(1, 30), (2, 60), (3, 90)]


def test_a_line_that_is_still_being_written_waits(followed):
    path, follower, told = followed
    path.write_text(line(1) + line(2)[:20])
    follower.look()
    with path.open("a") as file:
        file.write(line(2)[20:])
    follower.look()
    assert [number for number, _ in told] == [1, 2]


def test_a_run_that_went_back_is_followed_from_where_it_is(followed):
    path, follower, told = followed
    path.write_text("".join(map(line, range(1, 6))))
    follower.look()
    write_atomically(path, (line(1) + line(2)).encode())
    with path.open("a") as file:  # by now it is longer than it was
        file.write("".join(map(line, range(3, 8))))
    follower.look()
    with path.open("a") as file:
        file.write(line(8))
    follower.look()
    assert [number for number, _ in told] == [1, 2, 3, 4, 5, 7, 8]
