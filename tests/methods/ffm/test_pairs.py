"""Semi-discrete pairs: kept as numbers, found again after a restart, made for all silos in one pass."""

import pytest
import torch

from anabranch.errors import RefusedError
from anabranch.federation import Envelope, Federation
from anabranch.methods.ffm import FlowServer, Gradient, Lookup, PotentialGradient, Prepare, half_of, place
from anabranch.methods.ffm import _semidiscrete as exchange
from anabranch.methods.ffm._silo import prepare
from anabranch.seeds import generator
from anabranch.transport import SemiDual

KINDS = ["semidiscrete", "semidiscrete in groups"]


def tables(silos):
    return [half_of(silo).coupling for silo in silos]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_two_numbers(lab, kind):
    silos = lab.silos()
    lab.ready(lab.settings(kind), silos)
    for silo, table in zip(silos, tables(silos), strict=True):
        held = (table.noise.row, table.index)
        assert all(tensor.shape == (len(table.noise),) and tensor.dtype == torch.int64 for tensor in held)
        assert "semidual" not in silo.cache  # as large as the data, and of no more use
        kept = sum(t.numel() * t.element_size() for n, t in silo.state.items() if n.startswith("semidiscrete/atoms"))
        assert kept == 4 * len(table.noise)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_restart_pairs_are_found_and_not_looked_up(lab, kind, monkeypatch):
    """Another device could break a near tie the other way; here every lookup would."""
    silos = lab.silos()
    server = lab.ready(lab.settings(kind), silos)
    before = tables(silos)
    monkeypatch.setattr(SemiDual, "lookup", None)
    monkeypatch.setattr(exchange, "lookup", None)
    for silo in silos:
        silo.cache.clear()
        prepare(silo, Prepare(server.settings.to_json(), server.federation.weight[silo.name], None))
    for old, new in zip(before, tables(silos), strict=True):
        assert torch.equal(old.index, new.index) and torch.equal(old.noise[:], new.noise[:])


@pytest.mark.parametrize("kind", KINDS)
def test_looking_up_a_few_at_a_time_changes_nothing(lab, kind, monkeypatch):
    found = []
    for numbers in (2**25, 64):  # 64 numbers are 32 noises in the plane, of blocks of 200
        monkeypatch.setattr("anabranch.methods.ffm._noise.PASS", numbers)
        silos = lab.silos()
        lab.ready(lab.settings(kind), silos)
        found.append(tables(silos))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.index, other.index) and torch.equal(one.noise.row, other.noise.row)


def test_pairs_of_a_version_that_drew_other_noises_are_refused(lab):
    silos = lab.silos()
    lab.ready(lab.settings("semidiscrete"), silos)
    silo = silos[0]
    for name in [name for name in silo.state if name.startswith("semidiscrete/atoms")]:
        del silo.state[name]
    with pytest.raises(RefusedError, match="Train anew"):
        exchange.table(silo, half_of(silo))


@pytest.mark.parametrize("block", [-1, 2**31, 2**62])
def test_a_block_that_no_stream_has_is_refused(lab, block):
    silos = lab.silos()
    server = lab.server(lab.settings("semidiscrete"), silos)
    question = Lookup(server.federation.numbers, "pool", block, 8, True)
    with pytest.raises(RefusedError, match=f"of block {block}"):
        silos[0].answer(Envelope("run", 1, 900, question))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_source_of_points_is_drawn_from_by_number_too(lab, precision):
    silos, cloud = lab.silos(), torch.randn(50, 2, generator=generator(3))
    federation = Federation(silos)
    federation.open("run", 5)
    server = FlowServer(lab.settings("semidiscrete", precision=precision), federation, cloud)
    lab.train(server)
    for silo, table in zip(silos, tables(silos), strict=True):
        noise = table.noise[:]
        assert noise.dtype == half_of(silo).data.x.dtype
        assert (noise.float()[:, None] == cloud[None]).all(2).any(1).all()
        assert torch.equal(table.index, place(silo, noise.float()).index)
    assert sum(len(table.noise) for table in tables(silos)) == 600


@pytest.mark.parametrize(
    ("kind", "flow", "dual"), [("potential", 1, 1), ("potential by descent", 1, 7), ("entropic", 1, 1)]
)
def test_the_potential_is_asked_once_for_all_silos(lab, kind, flow, dual):
    """In the descent five times, at its end, and at the candidates, however many silos there are."""
    silos = lab.silos()
    server = lab.server(lab.settings(kind, every=1, potential={"before": 0}), silos)
    calls = []
    for silo in silos:
        half_of(silo).potential.register_forward_hook(lambda *_: calls.append(1))
    for question, expected in (
        (Gradient(server.parameters, server.potential.parameters), flow),
        (PotentialGradient(server.potential.parameters), dual),
    ):
        calls.clear()
        server.federation.mean(question)
        assert len(calls) == expected
