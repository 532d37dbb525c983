"""Both sides can be run; without torchcfm ours is measured alone, and a sentence says so."""

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anabranch import bench
from anabranch.bench import Budget, Measured, Ours, Peer, Row, _steps, compared, lookup_rows, measure, silos_of
from anabranch.bench import _couplings as couplings
from anabranch.cli._verbs import app
from anabranch.errors import AnabranchError

ONCE = Budget(seconds=0, repeats=1)


@pytest.mark.parametrize("method", ["vanilla", "lot"])
def test_our_step_trains_and_samples(method):
    ours = Ours(silos_of(2), method, _steps.SETTINGS)
    before = {name: p.clone() for name, p in ours.server.parameters.items()}
    ours.step()
    assert all(not torch.equal(p, before[name]) for name, p in ours.server.parameters.items())
    assert ours.sample(torch.zeros(5, 2), 3).shape == (5, 2)


@pytest.mark.parametrize("method", ["vanilla", "lot"])
def test_both_sides_have_the_same_network_and_weights(method):
    pytest.importorskip("torchcfm")
    points = silos_of(2)
    peer, ours = Peer(points, method, _steps.SETTINGS), Ours(points, method, _steps.SETTINGS)
    peer.step()
    assert [p.shape for p in peer.network.parameters()] == [p.shape for p in ours.server.parameters.values()]
    assert dict(zip(points, peer.weights, strict=True)) == pytest.approx(ours.server.federation.weight)
    assert peer.sample(torch.zeros(5, 2), 3).shape == (5, 2)


def test_lookups_are_measured_at_every_size(monkeypatch):
    monkeypatch.setattr(couplings, "SIZES", (100, 400))
    monkeypatch.setattr(couplings, "TABLE", 1000)
    rows = lookup_rows(ONCE, lambda what: None)
    judged = [row for row in rows if row.limit is not None]
    assert [row.rule for row in judged] == ["≤", "≤"]
    assert all(row.ours is not None for row in rows if row.limit is None)


def small(monkeypatch):
    """Measurements that take no time, without torchcfm."""
    monkeypatch.setitem(sys.modules, "torchcfm", None)
    monkeypatch.setattr(couplings, "SIZES", (100, 400))
    monkeypatch.setattr(couplings, "TABLE", 1000)
    monkeypatch.setattr(_steps, "LIMITS", {("vanilla", 2): 1.2, ("lot", 2): 1.3})


def test_without_torchcfm_our_side_is_measured_and_judged_by_itself_alone(monkeypatch):
    small(monkeypatch)
    measured = measure(ONCE)
    assert 'pip install "anabranch[bench]"' in measured.note
    assert all(row.peer is None for row in measured.rows)
    assert [row.what for row in measured.rows if row.ours and row.limit is None][:3] == [
        "vanilla step, 2 silos",
        "lot step, 2 silos",
        "exact pairing, 256 with 256",
    ]
    assert [check.name for check in measured.checks] == [row.what for row in measured.rows if row.rule == "≤"]
    assert len(measured.checks) == 2  # how lookups and draws grow, which needs no peer


def test_the_verb_says_what_to_install_and_still_prints_json_last(monkeypatch):
    small(monkeypatch)
    monkeypatch.setattr(bench, "measure", lambda watch: measure(ONCE, watch))
    result = CliRunner().invoke(app, ["bench", "--json"])
    record = json.loads(result.stdout.splitlines()[-1])
    assert "anabranch[bench]" in record["note"] and len(record["rows"]) > 5
    assert result.exit_code == (0 if all(check["ok"] for check in record["checks"]) else 1)
    assert "anabranch[bench]" in result.stderr.replace("\n", "")


def test_a_peer_that_is_not_there_cannot_be_built(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcfm", None)
    with pytest.raises(AnabranchError, match=r'pip install "anabranch\[bench\]"'):
        Peer(silos_of(2), "vanilla", _steps.SETTINGS)


@pytest.mark.parametrize(("ours", "code"), [(2.0, 0), (4.0, 1)])
def test_the_verb_prints_json_last_and_fails_with_a_check(monkeypatch, ours, code):
    measured = Measured([compared("a step", 3.0, ours, 1.2), Row("lookup", ours=1.0)])
    monkeypatch.setattr(bench, "measure", lambda watch: measured)
    result = CliRunner().invoke(app, ["bench", "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout.splitlines()[-1]) == measured.record()


def test_threads_and_global_random_numbers_are_left_as_they_were(monkeypatch):
    inside = []

    def rows(budget, watch):
        inside.append(torch.get_num_threads())
        torch.rand(1)
        np.random.rand()
        return [compared("a step", 3.0, 2.0)]

    run = sys.modules[measure.__module__]
    for name in ("step_rows", "coupling_rows", "lookup_rows", "sampling_rows"):
        monkeypatch.setattr(run, name, rows)
    before = torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()[2]
    assert len(measure(ONCE).rows) == 4
    assert inside == [bench.THREADS] * 4
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[2] == before[2]
