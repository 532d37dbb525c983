"""What people see of one run: on a terminal a bar, in a file lines."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from anabranch.cli import _run_shown
from anabranch.cli._run_shown import training_notes
from anabranch.methods.ffm import Progress

FEDERATION = SimpleNamespace(names=["a", "b"], ledger=SimpleNamespace(bytes=lambda: 2_500_000))


@pytest.fixture
def clock(monkeypatch):
    """Hands of a clock that the test moves."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(_run_shown.time, "monotonic", lambda: hands.now)
    return hands


def screen(monkeypatch, terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    monkeypatch.setattr(_run_shown, "console", console)
    return stream


def rounds(notes, clock, count=3):
    for number in range(1, count + 1):
        clock.now += 1
        notes.progress(Progress(number, count, "flow", {"loss": 0.5, "answered": 2.0}), FEDERATION)


def test_lines_of_a_run_and_of_its_judgement(monkeypatch, clock):
    stream = screen(monkeypatch, terminal=False)
    with training_notes("lot") as notes:
        rounds(notes, clock)
        notes.judged(0, 0)
        for done in range(1, 101):
            clock.now += 1.3
            notes.judged(done, 100)
    facts = "loss 0.5000 · 2/2 silos · 2.5 MB"
    lines = [f"lot: flow 1/3 · {facts}", f"lot: flow 3/3 · {facts}", "lot: evaluating"]
    assert stream.getvalue().splitlines() == [*lines, "lot: evaluating, 47 %", "lot: evaluating, 94 %"]


def test_the_bar_moves_while_a_run_is_judged_and_ends_as_it_trained(monkeypatch, clock):
    stream = screen(monkeypatch, terminal=True)
    with training_notes("lot") as notes:
        rounds(notes, clock)
        notes.judged(0, 0)
        clock.now += 1
        notes.judged(25, 100)
        notes.say("half-way")
    shown = stream.getvalue()
    assert "half-way" in shown and " 25% evaluating" in shown
    assert shown.rindex("100% flow 3/3") > shown.rindex("evaluating")


def test_an_error_before_the_first_round_leaves_no_bar(monkeypatch, clock):
    stream = screen(monkeypatch, terminal=True)
    with pytest.raises(ValueError), training_notes("lot"):
        raise ValueError
    assert "flow" not in stream.getvalue() and stream.getvalue().endswith("\x1b[1A\x1b[2K")


def test_one_interrupted_stays_where_it_was(monkeypatch, clock):
    stream = screen(monkeypatch, terminal=True)
    with pytest.raises(KeyboardInterrupt), training_notes("lot") as notes:
        clock.now += 1
        notes.progress(Progress(1, 4, "flow", {}), FEDERATION)
        raise KeyboardInterrupt
    assert stream.getvalue().splitlines()[-2].endswith(" 25% flow 1/4 · 2.5 MB -:--:--")
