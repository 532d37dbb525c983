"""Both sides compute what they are said to compute."""

import sys
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anabranch.bench.images import (
    Case,
    ImageWork,
    OurTraining,
    PlainNetwork,
    PlainTraining,
    operations,
    operations_of_pass,
    plain_sample,
    work_of,
)
from anabranch.bench.images._ours import our_velocity
from anabranch.bench.images._parts import _our_sampling
from anabranch.errors import AnabranchError, RefusedError
from anabranch.federation import Silo
from anabranch.flow import integrate, network
from anabranch.flow.unet import load_torchcfm, to_torchcfm
from anabranch.methods.ffm._half import cost_of_step

CASE = Case(2, 4)


def wide():
    """Wide enough for torchcfm's norms."""
    return work_of("cpu", channels=32, held=16)


def narrow():
    return work_of("cpu", held=16)


def scatter(module):
    """Moves every weight: those that start at zero would hide what the others do."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))


def counted(task):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task()
    return counter.get_total_flops()


def test_the_operations_of_a_step_are_those_of_a_step():
    assert operations(narrow(), CASE) == counted(PlainTraining(narrow(), CASE).step)


def test_our_step_takes_as_many_operations_as_the_plain_one():
    ours = OurTraining(narrow(), CASE, "vanilla")
    assert counted(ours.step) == operations(narrow(), CASE)


def test_the_operations_of_torchcfms_step_are_ours_but_for_attention_written_otherwise():
    pytest.importorskip("torchcfm.models.unet")
    peer = PlainTraining(wide(), CASE)
    assert peer.network.theirs
    assert counted(peer.step) == pytest.approx(operations(wide(), CASE), rel=0.02)


def test_the_operations_of_sampling_are_those_of_a_pass():
    work = narrow()
    field = PlainNetwork(work)
    x0 = torch.zeros(work.samples, work.dimension)
    assert counted(lambda: plain_sample(field, x0, 3)) == 3 * operations_of_pass(work)


def test_torchcfms_network_is_ours_with_the_same_weights():
    pytest.importorskip("torchcfm.models.unet")
    work = wide()
    field = PlainNetwork(work)
    assert field.theirs and field.words == "torchcfm's network in float32"
    own = network("unet", work.dimension, 0, **work.network).eval()
    for name, tensor in to_torchcfm(own).items():
        assert torch.equal(field.module.state_dict()[name], tensor), name
    scatter(field.module)
    load_torchcfm(own, field.module.state_dict())
    field.module.eval()
    x, t = torch.randn(3, work.dimension, generator=torch.Generator().manual_seed(0)), torch.rand(3)
    with torch.no_grad():
        torch.testing.assert_close(field(x, t), own(x, t), rtol=0, atol=1e-5)
        assert own(x, t).std() > 0.01


def test_where_torchcfm_has_no_such_network_ours_stands_in_and_says_so():
    pytest.importorskip("torchcfm.models.unet")
    field = PlainNetwork(narrow())
    assert not field.theirs and "32 groups" in field.words


def test_without_torchcfm_our_network_stands_in_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcfm", None)
    monkeypatch.setitem(sys.modules, "torchcfm.models.unet", None)
    peer = PlainTraining(wide(), CASE)
    assert not peer.network.theirs and "cannot be imported" in peer.network.words
    peer.step()


def test_the_plain_step_trains():
    torch.manual_seed(0)  # of a bias that a norm takes out again rounding alone is left, which may also be none
    peer = PlainTraining(narrow(), CASE)
    before = {name: leaf.detach().clone() for name, leaf in peer.leaves.items()}
    for _ in range(4):  # layers behind others that start at zero have no gradient at first
        peer.step()
    assert not [name for name, leaf in peer.leaves.items() if torch.equal(leaf, before[name])]


def test_both_solvers_take_the_same_steps():
    work = narrow()
    field = PlainNetwork(work)
    field.module.eval()
    scatter(field.module)
    x0 = torch.randn(2, work.dimension, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = integrate(lambda x, t: field(x, t.expand(len(x))), x0, 4).x1
    torch.testing.assert_close(plain_sample(field, x0, 4), expected)
    assert (expected - x0).norm() > 1e-3


@pytest.mark.parametrize("method", ["vanilla", "lot", "got", "sd"])
def test_our_step_serves_silos_together(method):
    ours = OurTraining(narrow(), CASE, method)
    asked = ours.engine.ask
    ours.engine.ask = lambda *arguments: pytest.fail("silos were asked in turn")
    progress = ours.step()
    ours.engine.ask = asked
    assert progress.phase == "flow" and torch.isfinite(progress.metrics["loss"])
    assert ("semidual" in progress.metrics) == (method == "got")


def test_a_step_that_is_not_served_together_is_not_timed(monkeypatch):
    ours = OurTraining(narrow(), CASE, "vanilla")
    monkeypatch.setattr("anabranch.federation._local.fused_answer", lambda kind: None)
    with pytest.raises(AnabranchError, match="could not be served in one pass"):
        ours.step()


@pytest.fixture
def compiling(monkeypatch):
    """Has networks compiled here, too, by what stands in for the compiler."""
    settings = ImageWork.settings

    def compiled(work, *arguments):
        found = settings(work, *arguments)
        return replace(found, flow=replace(found.flow, compile=True))

    def by(backend):
        torch._dynamo.reset()
        monkeypatch.setattr("anabranch.flow._compiled.BACKEND", backend)
        monkeypatch.setattr(ImageWork, "settings", compiled)

    return by


def test_what_is_compiled_says_so(compiling):
    compiling("aot_eager")
    torch._dynamo.utils.counters.clear()
    assert OurTraining(narrow(), CASE, "vanilla").compiled_words() == "compiled"
    work = narrow()
    x0 = torch.zeros(work.samples, work.dimension)
    timed, words = _our_sampling(replace(work, steps=1, turns=1, warm_up=1), x0)
    assert words == "compiled" and timed.milliseconds > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # one trains, one samples


def test_what_could_not_be_compiled_is_not_timed(compiling):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    compiling(broken)
    with pytest.raises(AnabranchError, match="could not be compiled here"):
        OurTraining(narrow(), CASE, "vanilla")
    with pytest.raises(AnabranchError, match="could not be compiled here"):
        _our_sampling(narrow(), torch.zeros(4, narrow().dimension))


def test_our_velocity_is_that_of_the_peers_weights():
    work = narrow()
    x, t = torch.randn(3, work.dimension, generator=torch.Generator().manual_seed(0)), torch.tensor(0.4)
    peer, ours = PlainNetwork(work), our_velocity(work)
    for name, own in peer.module.named_parameters():
        assert torch.equal(ours.parameters[name], own)
    peer.module.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x, t), peer(x, t.expand(3)))


def test_silos_in_turn_draw_the_same_numbers_and_learn_the_same():
    work = replace(narrow(), images=replace(narrow().images, dropout=0.0))
    together, apart = (OurTraining(work, CASE, "vanilla", fused, "float32", warm_up=1) for fused in (True, False))
    for _ in range(5):
        losses = [float(training.step().metrics["loss"]) for training in (together, apart)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(float(together.first.metrics["loss"]), rel=1e-3)  # it has moved since


def test_silos_do_the_papers_step_however_much_it_takes():
    silo = next(iter(OurTraining(narrow(), CASE, "vanilla").engine.silos.values()))
    paper = work_of("cpu", "paper")
    cost = cost_of_step(paper.settings("got", paper.cases[0]), paper.dimension, 1 / 3)
    silo.affords("a step", cost.numbers, cost.work)
    with pytest.raises(RefusedError):  # as a silo on a CPU that nobody told otherwise would
        Silo("usual", torch.zeros(4, 2)).affords("a step", cost.numbers, cost.work)
