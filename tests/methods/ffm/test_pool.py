"""Balanced pairs of points with many numbers: one pool a round for all silos, on every engine."""

import pytest
import torch

from anabranch.coupling._pool import BY_NUMBER
from anabranch.federation import KINDS, Federation, Policy, RemoteEngine, Silo, Site
from anabranch.methods.ffm import FlowServer, half_of
from anabranch.methods.ffm._draws import draw
from anabranch.seeds import generator

DIMENSION = BY_NUMBER + 4
SIZES = {"a": 2000, "b": 1000, "c": 1000}  # shares without rounding; few batches with a point twice, which makes a tie


def silos_of():
    return [
        Silo(name, torch.randn(size, DIMENSION, generator=generator(number, "pool")) + number, secret=number)
        for number, (name, size) in enumerate(SIZES.items())
    ]


def through_bytes(silos):
    sites = {silo.name: Site(silo, Policy(tuple(KINDS), rounds=1000)) for silo in silos}
    return RemoteEngine(
        sites, lambda questions, patience: {name: sites[name].answer(questions[name]) for name in sites}
    )


def server_of(lab, federation, **flow):
    federation.open("run", 5)
    settings = lab.settings("balanced", every=1, potential={"before": 2, "batch": 8}, batch=8, **flow)
    return FlowServer(settings, federation)


@pytest.fixture(scope="module")
def trained(lab):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    engines = {"plain": lambda silos: Federation(silos, fused=False), "fused": Federation}
    engines["bytes"] = lambda silos: Federation(through_bytes(silos))
    found = {}
    for name, build in engines.items():
        server = server_of(lab, build(silos_of()), rounds=6, precision="float64")
        start = torch.cat([p.flatten().clone() for p in server.parameters.values()])
        lab.train(server)
        found[name] = torch.cat([p.flatten() for p in server.parameters.values()]) - start
    torch.set_num_threads(before)
    return found


def test_bytes_change_nothing(trained):
    assert torch.equal(trained["plain"], trained["bytes"]) and trained["plain"].norm() > 0.01


def test_one_pass_for_all_changes_only_the_order_of_sums(trained):
    assert (trained["plain"] - trained["fused"]).norm() < 1e-9 * trained["plain"].norm()


@pytest.mark.parametrize("threads", [1, 2])
def test_pairs_of_all_silos_are_those_of_each(lab, threads):
    silos = silos_of()
    server_of(lab, Federation(silos))
    halves = [half_of(silo) for silo in silos]
    for silo in silos:
        silo.round = 9
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    together = draw(silos, halves)
    torch.set_num_threads(before)
    for silo, half, drawn in zip(silos, halves, together, strict=True):
        own = silo.generator("batch", 0)
        alone = half.draw(silo, own)
        assert torch.equal(drawn.pairs.x0, alone.x0) and torch.equal(drawn.pairs.index1, alone.index1)
        assert torch.equal(own.get_state(), drawn.generator.get_state())  # what is drawn next is the same too
