import pytest
import torch
from torch import nn

from anabranch.errors import UsageError
from anabranch.flow.unet import ImagePotential, ImageUNet, flops


def by_hand(field, count):
    """Operations of a pass: two for every weight, place and image; and attention's two products."""
    total = 0

    def add(module, inputs, answer):
        nonlocal total
        if isinstance(module, nn.Conv2d):
            total += 2 * module.weight.numel() * answer.shape[0] * answer.shape[2] * answer.shape[3]
        elif isinstance(module, nn.Linear):
            total += 2 * module.weight.numel() * (answer.numel() // answer.shape[-1])
        elif hasattr(module, "heads"):
            images, channels, height, width = inputs[0].shape
            total += 4 * images * channels * (height * width) ** 2

    for module in field.modules():
        module.register_forward_hook(add)
    field(torch.zeros(count, 128), torch.zeros(count))
    return total


def test_a_pass_is_counted_as_by_hand(build):
    assert flops(build(), batch=3, training=False) == by_hand(build(), 3)


def test_a_training_step_is_three_passes_but_for_the_gradient_in_the_images(build):
    field = build()
    stem = 2 * field.stem.weight.numel() * 64 * 5
    features = 2 * field.time[0].weight.numel() * 5
    assert flops(field, batch=5) == 3 * flops(field, batch=5, training=False) - stem - features
    assert all(parameter.grad is None and parameter.device.type == "cpu" for parameter in field.parameters())


def test_the_papers_network_takes_twelve_billion_a_pass_of_an_image():
    with torch.device("meta"):
        field, potential = ImageUNet(3072), ImagePotential(3072)
    assert flops(field, batch=1, training=False) == pytest.approx(12.44e9, rel=1e-3)
    assert flops(potential, batch=64, training=False) < 64 * 1e9


def test_networks_without_a_shape_and_empty_batches_are_refused(build):
    with pytest.raises(UsageError, match="networks with a shape"):
        flops(nn.Linear(2, 2), batch=1)
    with pytest.raises(UsageError, match="not 0 rows"):
        flops(build(), batch=0)
