"""The study's encoder: its weights follow from the seed and from nothing else."""

import torch
from torch import nn

from anabranch import seeds
from anabranch.recipes.studies.coreset_classifier import _encoder, _linear


def test_layers_start_as_those_of_torch_do():
    generator = seeds.generator(3, "autoencoder")
    layers = [_linear(7, 5, generator), _linear(5, 2, generator)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(3, "autoencoder"))
        expected = [nn.Linear(7, 5), nn.Linear(5, 2)]
    for layer, other in zip(layers, expected, strict=True):
        assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)


def test_the_global_random_state_is_neither_read_nor_changed():
    x = torch.rand(40, 9, generator=torch.Generator().manual_seed(0))
    options = {"width": 6, "code": 2, "autoencoder_epochs": 1}
    with torch.random.fork_rng(devices=[]):
        codes = []
        for state in (1, 2):
            torch.default_generator.manual_seed(state)
            before = torch.random.get_rng_state()
            codes.append(_encoder(x, options, seed=5)(x))
            assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*codes) and not torch.equal(codes[0], _encoder(x, options, seed=6)(x))
