"""What every engine but the local one shares: the book of answers, and who is present."""

import json

import pytest

from anabranch.engines._remote import assemble_remote
from anabranch.errors import QuorumError
from anabranch.runs import RunFolder, from_dict

PLACE = {"run": "r", "session": 1, "round": 3, "sequence": 1}
ASKED = {"asked": ["a", "b", "c"], **PLACE}
ACCEPTED = {"accepted": "b", "kind": "k", "answer": "h", **PLACE}


def written(folder, entries, tail=""):
    text = "".join(json.dumps(entry) + "\n" for entry in entries) + tail
    (folder / "answers.jsonl").write_text(text)
    assemble_remote(["a", "b", "c"], lambda questions, patience: {})(from_dict({}), RunFolder(folder))
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_whom_a_crash_cut_off_is_named_when_the_run_goes_on(tmp_path):
    lines = written(tmp_path, [ASKED, ACCEPTED], tail='{"left_ou')
    assert lines[:2] == [ASKED, ACCEPTED]
    assert [line["left_out"] for line in lines[2:]] == ["a", "c"] and lines[2]["round"] == 3


def test_a_book_in_order_stays_as_it_is(tmp_path):
    entries = [{"asked": ["b"], **PLACE}, ACCEPTED]
    assert written(tmp_path, entries) == entries


def test_too_few_sites_are_told_at_once(tmp_path):
    config = from_dict({"federation": {"quorum": 3}})
    with pytest.raises(QuorumError, match="Only 2 sites are present, 3 are needed"):
        assemble_remote(["a", "b"], lambda questions, patience: {})(config, RunFolder(tmp_path))
