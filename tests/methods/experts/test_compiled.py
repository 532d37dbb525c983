"""Experts for images whose network torch compiles: the same numbers, from as few compilations as there are uses."""

import logging

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from anabranch.data.attributes import CORNERS
from anabranch.federation import Federation, Silo
from anabranch.flow import _compiled as compiled
from anabranch.methods.dcfm import train_composition
from anabranch.methods.experts import ExpertSettings, shared_network
from anabranch.methods.experts import _half as half
from anabranch.seeds import generator

SMALL = {
    "network": "conditional-unet",
    "shape": (1, 4, 4),
    "channels": 4,
    "multipliers": (1, 2),
    "precision": "float64",
    "steps": 3,
    "batch": 8,
    "penalty": 1.0,
    "compared": 0.5,
}


@pytest.fixture
def quick(monkeypatch):
    """The compiler's tracing and differentiation without its last step, which takes minutes."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(half, "compiles", lambda settings, device: settings.compile)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    half._SHARED.clear()  # no network that was compiled before, or given up
    yield torch._dynamo.utils.counters["stats"]
    half._SHARED.clear()


def flow_of(method, choice, **sections):
    held, silos = {"a": (0, 1), "b": (1, 3)}, []
    for name, labels in held.items():
        x = torch.randn(20, 16, generator=generator(0, name), dtype=torch.float64)
        silos.append(Silo(name, x, torch.tensor(labels).repeat(10), space=CORNERS, secret=1))
    return train_composition(Federation(silos), method, 3, experts={**SMALL, "compile": choice}, **sections)


@pytest.mark.parametrize(("method", "networks"), [("dcfm-b", 1), ("additive", 2)])
def test_training_and_sampling_are_the_same_with_it(quick, method, networks):
    student = {"steps": 2, "batch": 6, "trajectories": 10, "path_steps": 2}
    flows = [flow_of(method, choice, student=student) for choice in (True, False)]
    y = CORNERS.combinations()
    for how, rows in (("joint", y), ("composed", y[:3])):
        x0 = torch.randn(len(rows), 16, generator=generator(1), dtype=torch.float64)
        one, other = (flow.mixture.sample(rows, generator(2), 2, how=how, x0=x0).x1 for flow in flows)
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert quick["unique_graphs"] == 2 * networks  # one that trains and one that samples, whatever the number of rows


@pytest.mark.parametrize("part", ["fw_compiler", "bw_compiler"])
def test_where_compiling_fails_training_goes_on_without(quick, monkeypatch, caplog, part):
    def fails(graph, inputs):
        raise RuntimeError("no compiler here")

    parts = {name: lambda graph, inputs: graph.forward for name in ("fw_compiler", "bw_compiler")}
    monkeypatch.setattr(compiled, "BACKEND", aot_autograd(**{**parts, part: fails}))
    with caplog.at_level(logging.WARNING):
        flow = flow_of("ddm+l", True)
    assert [record.getMessage() for record in caplog.records if "could not be compiled" in record.getMessage()]
    assert all(bool(tensor.isfinite().all()) for own in flow.experts.values() for tensor in own.values())


@pytest.mark.parametrize(
    ("choice", "network", "device", "wanted"),
    [
        (True, "conditional-unet", "cuda", True),
        (False, "conditional-unet", "cuda", False),
        (True, "conditional-unet", "cpu", False),
        (True, "conditional-mlp", "cuda", False),
    ],
)
def test_only_images_on_a_gpu_are_compiled_and_only_if_asked_for(choice, network, device, wanted):
    settings = ExpertSettings(**{**SMALL, "compile": choice, "network": network})
    assert half.compiles(settings, torch.device(device)) is wanted


def test_more_levels_have_more_parameters():
    sizes = []
    for multipliers in ((1, 2), (1, 2, 2)):
        network = shared_network(
            ExpertSettings(**{**SMALL, "multipliers": multipliers}), 16, (2, 2), torch.device("cpu")
        )
        sizes.append(sum(p.numel() for p in network.parameters()))
    assert sizes[0] < sizes[1]
