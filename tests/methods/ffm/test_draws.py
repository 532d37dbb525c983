"""Pairs that are drawn and solved for ahead, in threads: the same pairs, few threads, and none left in the end."""

import threading
import time

import pytest
import torch

from anabranch.errors import RefusedError
from anabranch.federation import Participation
from anabranch.methods.ffm import _draws as draws
from anabranch.methods.ffm import half_of
from anabranch.methods.ffm._settings import SHARP
from anabranch.seeds import generator
from anabranch.transport import assignment, half_squared_cost, sinkhorn


@pytest.fixture
def ahead(monkeypatch):
    """Draws ahead on the CPU too, and notes {(silo, round): thread} of what is."""
    found = {}
    draw_one = draws._draw_one

    def noted(silo, half, number, stream):
        found[silo.name, number] = threading.current_thread().name
        time.sleep(
            0.005
        )  # as if there were something to solve: a thread that has nothing to do takes the next one's work
        return draw_one(silo, half, number, stream)

    monkeypatch.setattr(draws, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(draws, "_draw_one", noted)
    return found


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("coupling")]


def ended(left=0):
    """Whether all threads but so many end by themselves."""
    until = time.monotonic() + 5
    while len(workers()) > left and time.monotonic() < until:
        time.sleep(0.01)
    return len(workers()) <= left


def trained(lab, name="minibatch", rounds=6, **options):
    settings = lab.settings(name, rounds=rounds, **options.pop("flow", {}))
    server = lab.server(settings, lab.silos(), **options)
    lab.train(server)
    return torch.cat([tensor.flatten() for tensor in server.parameters.values()])


@pytest.mark.parametrize("name", ["minibatch", "sinkhorn"])
@pytest.mark.parametrize("path", ["linear", "bridge"])
def test_training_is_the_same_to_the_bit(lab, request, name, path):
    flow = {"path": path, "sigma": 0.1 if path == "bridge" else 0.0}
    before = trained(lab, name, flow=flow)
    found = request.getfixturevalue("ahead")
    assert torch.equal(trained(lab, name, flow=flow), before)
    assert found.keys() == {(silo, number) for silo in "abc" for number in range(2, 7)}
    assert ended()


def test_whoever_is_chosen_next_is_drawn_for(lab, request):
    options = {"participation": Participation("random", 2), "rounds": 8}
    before = trained(lab, **options)
    found = request.getfixturevalue("ahead")
    assert torch.equal(trained(lab, **options), before)
    assert sorted(number for _, number in found) == sorted([*range(2, 9)] * 2)  # two silos a round, none in vain
    assert ended()


def test_what_was_begun_is_used(lab, ahead, monkeypatch):
    server = lab.server(lab.settings("minibatch", rounds=5), lab.silos())
    drawn_now = []
    each = draws._draw_each
    monkeypatch.setattr(draws, "_draw_each", lambda *rest: (drawn_now.append(server.federation.round), each(*rest))[1])
    lab.train(server)
    assert drawn_now == [1]


@pytest.mark.parametrize("name", ["balanced", "potential", "semidiscrete"])
def test_what_depends_on_parameters_is_not_begun(lab, ahead, name):
    trained(lab, name, rounds=3)
    assert not ahead


def test_threads_are_few_and_end_with_a_run_that_is_cut_short(lab, ahead, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(draws, "MOST_THREADS", 2)
    server = lab.server(lab.settings("minibatch", rounds=50), lab.silos())
    for progress in server.run():
        assert ended(left=2)  # the next round's
        if progress.round == 5:
            break
    assert ended() and len(set(ahead.values())) > 1


def test_an_error_in_a_thread_is_the_silos_own(lab, ahead):
    silos = lab.silos()
    server = lab.server(lab.settings("minibatch", rounds=6), silos)
    rounds = server.run()
    next(rounds)
    silos[1].smallest_group = 10**6  # from now on it gives no answer that rests on a batch
    failures = [next(rounds).failures for _ in range(3)]
    assert all(set(found) <= {"b"} for found in failures) and failures[-1].keys() == {"b"}
    assert ended()


def test_a_silo_that_began_before_it_went_back_draws_anew(lab, ahead):
    silos = lab.silos()
    server = lab.server(lab.settings("minibatch", rounds=6), silos)
    lab.train(server, until=2)
    silos[0].go_back({})
    assert draws.DRAWN not in silos[0].cache
    with pytest.raises(RefusedError):
        half_of(silos[0])


@pytest.mark.parametrize(
    ("place", "silos", "wanted"), [("cpu", 9, 2), ("cuda", 3, 3), ("cuda", 99, draws.MOST_THREADS)]
)
def test_beside_a_gpu_all_cores_solve(monkeypatch, place, silos, wanted):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(draws, "_cores", lambda: 64)
    assert draws.threads(silos, torch.device(place)) == wanted
    assert draws.threads(1, torch.device(place)) == 1


@pytest.mark.parametrize(
    ("solver", "gpu", "batch", "wanted"),
    [
        ("auto", True, 512, "exact"),
        ("auto", True, 513, "sinkhorn"),
        ("auto", False, 513, "exact"),
        ("exact", True, 2048, "exact"),
        ("sinkhorn", False, 16, "sinkhorn"),
    ],
)
def test_large_batches_are_for_the_gpu_to_solve(lab, solver, gpu, batch, wanted):
    found = lab.settings({"name": "minibatch", "solver": solver}, batch=batch).coupling_on(gpu)
    assert found.solver == wanted
    assert found.epsilon == (0.002 if (solver, wanted) == ("auto", "sinkhorn") else 0.05)  # what was asked for stays


def test_the_sharp_plan_is_nearly_the_exact_one_in_many_dimensions():
    x0, x1 = (torch.randn(200, 3072, generator=generator(number, "many")) for number in range(2))
    cost = half_squared_cost(x0, 0.5 * x1)
    independent, exact = cost.mean(), cost[torch.arange(200), assignment(cost)].mean()
    gains = [
        float((independent - sinkhorn(cost, e * float(independent)).cost) / (independent - exact))
        for e in (SHARP, 0.05)
    ]
    assert gains[0] > 0.9 and gains[1] < 0.3
