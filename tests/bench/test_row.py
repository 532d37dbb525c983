"""Lines, limits and what is printed of them."""

import json

import pytest

from anabranch.bench import Measured, Row, compared


def test_the_ratio_is_the_peers_time_over_ours():
    row = compared("a step", peer=5.0, ours=2.0, limit=2.5)
    assert row.value == 2.5
    assert row.ok
    assert not compared("a step", peer=4.9, ours=2.0, limit=2.5).ok


@pytest.mark.parametrize(
    ("value", "rule", "ok"), [(1.0, "≤", True), (1.1, "≤", False), (1.1, "≥", True), (None, "≥", False)]
)
def test_a_limit_holds_by_its_rule(value, rule, ok):
    assert Row("growth", value=value, limit=1.05, rule=rule).ok is ok


def test_a_line_without_a_limit_is_no_check_and_cannot_fail():
    measured = Measured([compared("shown", 1.0, 2.0), compared("judged", 3.0, 2.0, 1.2)])
    assert measured.rows[0].ok is None
    assert [check.name for check in measured.checks] == ["judged"]
    assert measured.ok


def test_one_missed_limit_fails_the_run():
    assert not Measured([compared("a", 3.0, 2.0, 1.2), compared("b", 1.0, 2.0, 1.2)]).ok


def test_the_record_is_json_with_rows_and_checks():
    measured = Measured([compared("a step", 3.0, 2.0, 1.2), Row("lookup", ours=4.0)])
    record = json.loads(json.dumps(measured.record()))
    assert set(record) == {"rows", "checks"}
    assert record["rows"][0] == {
        "what": "a step",
        "peer_ms": 3.0,
        "ours_ms": 2.0,
        "ratio": 1.5,
        "rule": "≥",
        "limit": 1.2,
        "ok": True,
    }
    assert record["checks"] == [{"name": "a step", "value": 1.5, "limit": 1.2, "ok": True}]


def test_every_line_of_the_table_is_as_long_as_its_header():
    lines = Measured([compared("a step", 3.0, 2.0, 1.2), Row("lookup", ours=4.0)]).lines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[1] == ["a step", "3.000", "2.000", "1.50", "≥ 1.2", "ok"]
    assert lines[2] == ["lookup", "", "4.000", "", "", ""]
