"""One pass for all silos gives what the silos' own passes give."""

import pytest
import torch
from torch.func import functional_call

from anabranch.federation import Participation
from anabranch.methods.ffm import Gradient, PotentialGradient, half_of

NAMES = [
    "independent",
    "minibatch",
    "sinkhorn",
    "potential",
    "potential by descent",
    "entropic",
    "balanced",
    "semidiscrete",
    "semidiscrete in groups",
]
WEIGHTS = [None, {"a": 0.2, "b": 0.7, "c": 0.1}]


def both(server, question, **options):
    means = []
    for fused in (True, False):
        server.federation.engine.fused = fused
        means.append(server.federation.mean(question, **options).reply)
    return means


def assert_close(one, other, scalar):
    assert torch.allclose(getattr(one, scalar), getattr(other, scalar), rtol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in other.gradients.values())
    assert largest > 1e-3
    for name, gradient in one.gradients.items():
        assert (gradient - other.gradients[name]).abs().max() <= 1e-5 * largest


@pytest.mark.parametrize("weighting", WEIGHTS, ids=["by size", "given"])
@pytest.mark.parametrize("name", NAMES)
def test_the_flow_gradient(lab, name, weighting):
    server = lab.ready(lab.settings(name), lab.silos(), weighting=weighting or "size")
    for number in (1001, 1002):
        server.federation.start_round(number)
        assert_close(*both(server, Gradient(server.parameters, {})), "loss")


@pytest.mark.parametrize("sigma", [0.0, 0.1], ids=["straight", "with noise"])
@pytest.mark.parametrize("name", ["independent", "minibatch"])
def test_the_flow_gradient_at_other_times(lab, name, sigma):
    losses = []
    for times in ((), (3.0, 0.1)):
        server = lab.ready(lab.settings(name, times=times, sigma=sigma), lab.silos())
        fused, plain = both(server, Gradient(server.parameters, {}))
        assert_close(fused, plain, "loss")
        losses.append(float(plain.loss))
    assert losses[0] != pytest.approx(losses[1], rel=0.01)  # they are other times


@pytest.mark.parametrize("name", ["potential", "entropic", "balanced"])
def test_the_flow_gradient_while_the_potential_travels(lab, name):
    server = lab.ready(lab.settings(name, every=1), lab.silos())
    assert_close(*both(server, Gradient(server.parameters, server.potential.parameters)), "loss")


@pytest.mark.parametrize("weighting", WEIGHTS, ids=["by size", "given"])
@pytest.mark.parametrize("name", ["potential", "potential by descent", "entropic", "balanced"])
def test_the_potential_gradient(lab, name, weighting):
    server = lab.server(lab.settings(name), lab.silos(), weighting=weighting or "size")
    assert_close(*both(server, PotentialGradient(server.potential.parameters)), "value")


@pytest.mark.parametrize("name", ["independent", "minibatch", "balanced"])
def test_some_of_the_silos(lab, name):
    server = lab.ready(lab.settings(name), lab.silos(), participation=Participation("random", 2))
    assert_close(*both(server, Gradient(server.parameters, {}), to=["a", "c"]), "loss")


@pytest.mark.parametrize("name", ["minibatch", "balanced"])
def test_threads_change_nothing(lab, name):
    """Assignments of different silos are solved side by side where there are cores."""
    server = lab.ready(lab.settings(name), lab.silos())
    alone = server.federation.mean(Gradient(server.parameters, {})).reply
    torch.set_num_threads(2)
    try:
        together = server.federation.mean(Gradient(server.parameters, {})).reply
    finally:
        torch.set_num_threads(1)
    assert_close(alone, together, "loss")


@pytest.mark.parametrize("fused", [True, False])
def test_it_is_the_gradient_of_the_pooled_weighted_loss(lab, fused):
    silos = lab.silos((60, 30))
    server = lab.server(lab.settings("independent"), silos, fused=fused)
    reply = server.federation.mean(Gradient(server.parameters, {})).reply
    parameters = {name: p.clone().requires_grad_() for name, p in server.parameters.items()}
    loss = 0.0
    for silo in silos:
        sample = half_of(silo).example(silo)
        error = functional_call(server.network, parameters, (sample.x_t, sample.t)) - sample.u_t
        loss = loss + server.federation.weight[silo.name] * error.square().mean()
    loss.backward()
    assert torch.allclose(reply.loss, loss.detach(), rtol=1e-5)
    assert all(torch.allclose(reply.gradients[n], p.grad, rtol=1e-4, atol=1e-6) for n, p in parameters.items())


@pytest.mark.parametrize("coupling", ["independent", "balanced", "semidiscrete"])
def test_training_does_not_depend_on_the_engine_or_on_the_order_of_silos(lab, coupling):
    settings = lab.settings(coupling, rounds=20)
    runs = []
    for order, fused in ((1, True), (-1, True), (1, False)):
        server = lab.server(settings, lab.silos(order=order), fused=fused)
        lab.train(server)
        runs.append(server.parameters)
    for name, parameter in runs[0].items():
        assert torch.equal(parameter, runs[1][name])
        assert torch.allclose(parameter, runs[2][name], atol=1e-6)
