"""Turns are taken in turn, and the median of them counts."""

import math

import pytest

from anabranch.bench import Budget, _clock, exponent, interleaved


def test_tasks_take_turns():
    order = []
    tasks = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = interleaved(tasks, Budget(seconds=0, repeats=3, slices=2))
    assert order == ["a", "a", "b", "b", *"abababababab"]  # each is warmed up and tried once, then they alternate
    assert set(times) == {"a", "b"}


def test_milliseconds_a_call_are_the_median_over_turns(monkeypatch):
    turns = iter([2.0, 10.0, 4.0, 200.0, 6.0, 8.0])  # the trial, then five turns of ten calls in 20 s
    asked = []

    def seconds(task, calls):
        asked.append(calls)
        return next(turns)

    monkeypatch.setattr(_clock, "_seconds", seconds)
    assert interleaved({"a": lambda: None}, Budget(seconds=20, repeats=5, slices=1)) == {"a": 800.0}
    assert asked == [1, 10, 10, 10, 10, 10]


def test_a_turn_is_the_mean_of_its_slices(monkeypatch):
    slices = iter([1.0, 1.0, 2.0, 6.0])
    monkeypatch.setattr(_clock, "_seconds", lambda task, calls: next(slices))
    assert interleaved({"a": lambda: None}, Budget(seconds=3, repeats=1, slices=3)) == {"a": 3000.0}


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_law(power):
    sizes = [1000, 4000, 16000]
    assert math.isclose(exponent(sizes, [3 * n**power for n in sizes]), power, abs_tol=1e-9)
