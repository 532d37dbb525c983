"""One contract for every engine: the same seeds and messages end with the same parameters.

In float64, on one thread. Bytes and the order in which answers arrive change nothing, to the bit; one pass for all
silos changes the order of sums, so it may differ by 1e-9 of the way that training went.
"""

import pytest
import torch

from anabranch.federation import KINDS, Federation, Policy, RemoteEngine, Site
from anabranch.methods.ffm import FlowServer

COUPLINGS = ["independent", "minibatch", "potential", "semidiscrete"]
ROUNDS = 20


def through_bytes(silos, order=1):
    """An engine whose silos are reached through bytes only; `order` −1 lets the last silo answer first."""
    policy = Policy(tuple(KINDS), rounds=1000)
    sites = {silo.name: Site(silo, policy) for silo in silos}

    def carry(questions, patience):
        return {name: sites[name].answer(questions[name]) for name in list(questions)[::order]}

    return Federation(RemoteEngine(sites, carry))


ENGINES = {
    "plain": lambda silos: Federation(silos, fused=False),
    "fused": lambda silos: Federation(silos),
    "bytes": through_bytes,
    "bytes, last first": lambda silos: through_bytes(silos, order=-1),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(lab):
    """Parameters before and after training, by engine and coupling; each pair is trained once."""
    known = {}

    def train(engine, coupling, local_steps=0):
        key = engine, coupling, local_steps
        if key not in known:
            settings = lab.settings(coupling, rounds=ROUNDS, precision="float64", local_steps=local_steps)
            federation = ENGINES[engine](lab.silos())
            federation.open("run", seed=5)
            server = FlowServer(settings, federation)
            start = torch.cat([p.flatten().clone() for p in server.parameters.values()])
            lab.train(server)
            known[key] = start, torch.cat([p.flatten() for p in server.parameters.values()]), federation.ledger.state()
        return known[key]

    return train


@pytest.mark.parametrize("local_steps", [0, 2])
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("engine", ["bytes", "bytes, last first"])
def test_bytes_and_their_order_change_nothing(trained, engine, coupling, local_steps):
    _, plain, ledger = trained("plain", coupling, local_steps)
    _, other, counted = trained(engine, coupling, local_steps)
    assert plain.dtype == torch.float64 and torch.equal(plain, other)
    assert counted == ledger  # what is counted without encoding is what was encoded


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_one_pass_for_all_silos_changes_next_to_nothing(trained, coupling):
    start, plain, _ = trained("plain", coupling)
    _, fused, _ = trained("fused", coupling)
    travelled = (plain - start).norm()
    assert travelled > 0.01 and (fused - plain).norm() <= 1e-9 * travelled
