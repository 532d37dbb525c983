"""What a run says when memory runs out, and when a device cannot do what was asked for."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from anabranch.errors import ExhaustedError
from anabranch.methods.ffm import FlowServer, ImageSettings, half_of
from anabranch.methods.ffm import _half as halves
from anabranch.methods.ffm._memory import remedy
from anabranch.methods.ffm._server import warnings_of


def full(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("fused", [True, False])
def test_training_names_the_batch(lab, fused, monkeypatch):
    silos = lab.silos()
    server = lab.server(lab.settings("minibatch"), silos, fused=fused)
    monkeypatch.setattr(type(half_of(silos[0])), "velocity", full)
    with pytest.raises(ExhaustedError) as caught:
        lab.train(server)
    sentence = str(caught.value)
    assert "in the phase 'flow'" in sentence and "anabranch resume" in sentence
    assert "flow.passes (1)" in sentence and "flow.batch (24)" in sentence and "flow.hidden (16)" in sentence


def test_images_name_their_channels(lab):
    settings = lab.settings("potential", every=1)
    pictures = replace(settings, flow=replace(settings.flow, network="unet"), images=ImageSettings((3, 32, 32)))
    sentence = remedy(pictures, "flow")
    assert "images.channels (128)" in sentence and "potential.batch (24) or coupling.candidates (" in sentence


def test_the_potential_names_its_own_batch(lab, monkeypatch):
    server = lab.server(lab.settings("potential"), lab.silos())
    monkeypatch.setattr("anabranch.methods.ffm._potential._duals", full)
    with pytest.raises(ExhaustedError, match=r"phase 'potential'.*potential.batch \(24\)"):
        lab.train(server)


def test_lookups_name_their_block(lab, monkeypatch):
    server = lab.server(lab.settings("semidiscrete"), lab.silos())
    monkeypatch.setattr("anabranch.methods.ffm._semidiscrete.shared_noise", full)
    with pytest.raises(
        ExhaustedError, match=r"phase 'duals'.*semidiscrete.block \(200\) or semidiscrete.count \(128\)"
    ):
        lab.train(server)


def test_other_errors_stay_what_they_are(lab, monkeypatch):
    server = lab.server(lab.settings("semidiscrete"), lab.silos())

    def odd(number):
        raise ZeroDivisionError

    monkeypatch.setattr(server.semidiscrete, "fit", odd)
    server.phases = server._phases()
    with pytest.raises(ZeroDivisionError):
        lab.train(server)


@pytest.mark.parametrize(("supported", "device", "said"), [(False, "cuda", 1), (True, "cuda", 0), (True, "cpu", 1)])
def test_half_precision_that_cannot_be_had_is_said(lab, monkeypatch, supported, device, said):
    # An older GPU imitates bfloat16, which torch counts as support unless told otherwise.
    monkeypatch.setattr(
        halves.torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or supported
    )
    monkeypatch.setattr(halves.torch.cuda, "device", lambda device: nullcontext())
    server = lab.server(lab.settings(), lab.silos())
    server.federation.device = torch.device(device)
    settings = replace(
        server.settings,
        flow=replace(server.settings.flow, network="unet", precision="bfloat16"),
        images=ImageSettings((1, 4, 4)),
    )
    found = warnings_of(settings, server.federation)
    assert len(found) == said and all("computed in float32" in sentence for sentence in found)
    assert warnings_of(server.settings, server.federation) == []  # nobody asked for it


def test_a_server_without_trouble_has_no_warnings(lab):
    assert isinstance(server := lab.server(lab.settings(), lab.silos()), FlowServer) and server.warnings == []


@pytest.mark.parametrize(
    ("coupling", "noises", "share"),
    [
        ("semidiscrete", 135, "37%"),
        ("semidiscrete", 270, "14%"),
        ("semidiscrete", 405, ""),
        ("semidiscrete in groups", 135, ""),  # there points are fitted to the very noises that are won
    ],
)
def test_points_that_will_have_no_noise_are_told_of(lab, coupling, noises, share):
    server = lab.server(lab.settings(coupling, semidiscrete={"noises": noises}), lab.silos())
    assert ["silos hold 135 points" in said and f"about {share} of these" in said for said in server.warnings] == (
        [True] if share else []
    )


def test_points_of_silos_that_weigh_little_for_their_size_have_fewer_noises(lab):
    server = lab.server(lab.settings("semidiscrete", semidiscrete={"noises": 540}), lab.silos())
    assert warnings_of(server.settings, server.federation) == []
    server.federation.weight = {"a": 0.02, "b": 0.49, "c": 0.49}
    (said,) = warnings_of(server.settings, server.federation)
    assert f"about {60 / 135 * math.exp(-540 * 0.02 / 60):.0%} of these" in said
