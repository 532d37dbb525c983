"""The potential's exchange when numbers are not finite: looked at at once or late, its steps are the same."""

from dataclasses import replace

import pytest
import torch

from anabranch.errors import UnsoundError
from anabranch.methods.ffm import _draws as draws
from anabranch.methods.ffm import _potential as potential
from anabranch.methods.ffm import half_of
from anabranch.methods.ffm._half import FlowHalf

TROUBLES = {
    "one silo": {("b", 3)},
    "two rounds in a row": {("a", 2), ("b", 3)},
    "all silos": {(name, 4) for name in "abc"},
    "the last round": {("c", 7)},
    "the last round of all": {(name, 7) for name in "abc"},
}


@pytest.fixture
def trouble(monkeypatch):
    """Where (silo, round) is in this set, the silo's part of the semi-dual is not a number."""
    found, duals = set(), potential._duals

    def troubled(silos, halves, module):
        factors = [float("nan") if (silo.name, silo.round) in found else 1.0 for silo in silos]
        return duals(silos, halves, module) * torch.tensor(factors)

    monkeypatch.setattr(potential, "_duals", troubled)
    return found


@pytest.fixture
def bad_pairs(monkeypatch):
    """The same for the pairs that a flow's gradient rests on, drawn together or by each silo."""
    found, together, alone = set(), draws.draw_all, FlowHalf.draw

    def poisoned(silo, pairs):
        return replace(pairs, x1=pairs.x1 * float("nan")) if (silo.name, silo.round) in found else pairs

    def draw_all(silos, *rest):
        return [poisoned(*one) for one in zip(silos, together(silos, *rest), strict=True)]

    monkeypatch.setattr(draws, "draw_all", draw_all)
    monkeypatch.setattr(FlowHalf, "draw", lambda half, silo, *rest: poisoned(silo, alone(half, silo, *rest)))
    return found


def server_of(lab, late, coupling="potential", every=1, before=0):
    settings = lab.settings(coupling, every=every, rounds=7 - before, potential={"before": before})
    server = lab.server(settings, lab.silos())
    server.following.late = server.potential.following.late = late
    return server


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("coupling", ["potential", "balanced"])
@pytest.mark.parametrize("options", [{"every": 1}, {"every": 2}, {"every": 0, "before": 5}, {"every": 1, "before": 3}])
@pytest.mark.parametrize("name", TROUBLES)
def test_late_steps_are_the_same_steps(lab, trouble, name, options, coupling):
    trouble |= TROUBLES[name]
    prompt, late = (server_of(lab, mode, coupling, **options) for mode in (False, True))
    for server in (prompt, late):
        lab.train(server)
    for parameters in (prompt.parameters, prompt.potential.parameters):
        assert all(torch.isfinite(tensor).all() for tensor in parameters.values())
    # Without asking for a state, which settles: the last round has done so.
    assert equal(prompt.parameters, late.parameters)
    assert equal(prompt.potential.parameters, late.potential.parameters)
    assert equal(prompt.state(), late.state())


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("bad", [{("b", 4)}, {("a", 3), ("a", 4)}, {(name, 5) for name in "abc"}])
@pytest.mark.parametrize("name", ["one silo", "all silos"])
def test_nor_do_those_of_the_flow_that_rest_on_it(lab, trouble, bad_pairs, name, bad, every):
    """Also where its step is repeated after the potential has moved on."""
    trouble |= TROUBLES[name]
    bad_pairs |= bad
    prompt, late = (server_of(lab, mode, every=every) for mode in (False, True))
    for server in (prompt, late):
        lab.train(server)
    assert prompt.optimizer.steps == 7 - (len(bad) == 3)
    assert equal(prompt.state(), late.state())


@pytest.mark.parametrize("late", [False, True])
def test_a_round_in_which_nobodys_numbers_can_be_used_is_skipped(lab, trouble, late):
    trouble |= TROUBLES["all silos"]
    server = server_of(lab, late, every=0, before=6)
    seen = {progress.round: progress for progress in server.run()}
    assert len(seen) == 7 and server.potential.optimizer.steps == 5
    assert any(set(progress.failures) == set("abc") for progress in seen.values())
    if not late:
        assert seen[4].metrics == {"answered": 0} and "semidual" in seen[5].metrics


def test_a_few_such_rounds_in_a_row_end_the_run(lab, trouble):
    trouble |= {(name, number) for name in "abc" for number in range(3, 9)}
    with pytest.raises(UnsoundError, match="3 rounds in a row"):
        lab.train(server_of(lab, False, every=0, before=6))


@pytest.mark.parametrize("late", [False, True])
def test_who_is_at_fault_is_named_while_the_flow_trains(lab, trouble, late):
    trouble |= TROUBLES["one silo"]
    named = {p.round: set(p.failures) for p in server_of(lab, late).run() if p.failures}
    assert named == {4 if late else 3: {"b"}}


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_state_holds_no_step_that_is_in_doubt(lab, trouble, stop):
    trouble |= TROUBLES["one silo"]
    whole, first, again = server_of(lab, False), server_of(lab, True), server_of(lab, True)
    lab.train(whole)
    lab.train(first, until=stop)
    again.load(first.state())
    lab.train(again, done=stop)
    assert equal(whole.state(), again.state())


def test_going_back_forgets_a_step_in_doubt(lab, trouble):
    trouble |= TROUBLES["one silo"]
    whole, late = server_of(lab, False), server_of(lab, True)
    lab.train(whole)
    lab.train(late, until=2)
    state = late.state()
    lab.train(late, done=2, until=3)
    late.load(state)
    lab.train(late, done=2)
    assert equal(whole.state(), late.state())


def test_what_is_handed_out_is_settled(lab, trouble):
    trouble |= {("b", 5)}
    prompt, late = (server_of(lab, mode, every=0, before=5) for mode in (False, True))
    for server in (prompt, late):
        lab.train(server, until=5)
        for silo in server.federation.engine.silos.values():
            held = dict(half_of(silo).potential.named_parameters())
            assert equal({name: p.detach() for name, p in held.items()}, prompt.potential.parameters)
