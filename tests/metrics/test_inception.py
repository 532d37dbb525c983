"""The FID network: its layers, what it takes and refuses and, where the weights are here, its features."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anabranch.data import damage
from anabranch.errors import DataError, UsageError
from anabranch.metrics import Inception
from anabranch.metrics._inception_network import Convolution, network

GOLDEN = [1.929469, 0.585301, 0.127957, 0.145787, 0.000249, 0.125982, 0.138315, 0.014292]
NORM = 20.108627


@pytest.fixture(scope="module")
def small():
    """A network with the right ends that only averages: features are the channels' means, over and over."""

    class Means(nn.Module):
        def forward(self, x):
            assert x.shape[1:] == (3, 299, 299)
            return x.mean((2, 3)).repeat(1, 683)[:, :2048]

    return Inception(Means())


def test_the_layers_are_those_of_the_graph():
    module = network()
    layers = [part for part in module.modules() if isinstance(part, Convolution)]
    assert len(layers) == 94 and sum(layer.weight.numel() for layer in layers) == 21_751_136
    assert isinstance(module.mixed_10.tower_2.pool, nn.MaxPool2d)
    assert all(
        not module.get_submodule(f"{name}.tower_2.pool").count_include_pad
        for name in ("mixed", "mixed_1", "mixed_2", "mixed_4", "mixed_5", "mixed_6", "mixed_7", "mixed_9")
    )
    with torch.no_grad():
        assert module.eval()(torch.zeros(1, 3, 299, 299)).shape == (1, 2048)


def test_a_convolution_is_normalised_without_a_scale():
    layer = Convolution(1, 1, 1)
    for name, value in {"weight": 2.0, "mean": 1.0, "var": 0.249, "beta": 0.5}.items():
        getattr(layer, name).fill_(value)
    found = layer(torch.tensor([0.0, 3.0]).reshape(2, 1, 1, 1)).flatten()
    torch.testing.assert_close(found, torch.tensor([0.0, 5 / 0.5 + 0.5]))


def test_images_are_scaled_and_grey_becomes_three_colours(small):
    grey = torch.tensor([0, 128, 255], dtype=torch.uint8).reshape(3, 1, 1, 1).expand(3, 1, 8, 8)
    told = []
    found = small.features(grey, batch=2, progress=lambda *step: told.append(step))
    torch.testing.assert_close(found[:, 0], torch.tensor([-1.0, 0.0, 127 / 128]))
    assert told == [(2, 3), (3, 3)] and torch.equal(found[:, 0], found[:, 2])
    torch.testing.assert_close(small.features(grey.float()), found)


@pytest.mark.parametrize(("tf32", "expected"), [(False, "ieee"), (True, "tf32")])
def test_convolutions_are_exact_unless_asked_otherwise_and_settings_come_back(tf32, expected):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.backends.cudnn.conv.fp32_precision)
            return torch.zeros(len(x), 2048)

    before, legacy = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.allow_tf32
    Inception(Spy(), tf32=tf32).features(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    assert seen == [expected]
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.allow_tf32) == (before, legacy)


@pytest.mark.parametrize(
    ("device", "deterministic", "expected"),
    [("cuda", False, [True, True, False]), ("cuda", True, [False] * 3), ("cpu", False, [False] * 3)],
)
def test_a_gpu_tries_kernels_for_whole_batches(monkeypatch, device, deterministic, expected):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.backends.cudnn.benchmark)
            return torch.zeros(len(x), 2048)

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    inception = Inception(Spy())
    monkeypatch.setattr(inception, "device", SimpleNamespace(type=device))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, place: tensor)
    inception.features(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), batch=2)
    assert seen == expected and not torch.backends.cudnn.benchmark


def test_what_is_no_image_is_refused(small):
    for wrong in (torch.zeros(4, 192), torch.zeros(2, 4, 8, 8), torch.zeros(0, 3, 8, 8)):
        with pytest.raises(UsageError, match="become images by to_bytes"):
            small.features(wrong)
    with pytest.raises(DataError, match="from -1 to 1"):
        small.features(torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8))
    with pytest.raises(DataError, match="multiply images in"):
        small.features(torch.linspace(0, 1, 128).reshape(2, 1, 8, 8))
    with pytest.raises(DataError, match="nan"):
        small.features(torch.full((2, 1, 8, 8), torch.nan))


def test_weights_that_are_not_there_or_not_these_are_refused(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"are not ready: .* Get them with 'anabranch data get inception'"):
        Inception.load()
    save_file({"conv.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="does not hold the weights of the FID network"):
        Inception.load(tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="cannot be read"):
        Inception.load(tmp_path / "none.safetensors")


@pytest.mark.skipif(damage("inception") is not None, reason="needs 'anabranch data get inception'")
def test_features_are_those_of_the_published_program():
    """The numbers are what its own TorchScript gives for the same images, resized in the same way."""
    places = torch.arange(32.0)
    waves = 127.5 + 127.5 * torch.sin(torch.outer(places, places + 1) / 30 + torch.arange(3.0)[:, None, None])
    found = Inception.load().features(waves[None])[0]
    expected = torch.tensor(GOLDEN)
    torch.testing.assert_close(found[:8], expected, rtol=1e-4, atol=1e-5)
    assert float(found.norm()) == pytest.approx(NORM, rel=1e-4)
