"""Samples of a trained composition, as `ComposedFlow.sample` is asked for them."""

import pytest
import torch

from anabranch import seeds
from anabranch.data.attributes import CORNERS, AttributeSpace, Coverage
from anabranch.errors import UsageError
from anabranch.federation import Ledger
from anabranch.methods.dcfm import ComposedFlow
from anabranch.methods.experts import Holders, Mixture

NOVEL = {"horizontal": "right", "vertical": "top"}
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")
CLASHING = AttributeSpace.of({"how": ["near", "far"], "color": ["red", "blue"]})


def flow_of(space, device=None, field=lambda x, t, y: x * (y + 2).prod(1, keepdim=True)):
    """A flow whose single attributes do not add up to whole labels, so that every way of sampling differs."""
    coverage = Coverage(space, {"a": torch.tensor([30, 10, 0, 40])})
    return ComposedFlow(Mixture({"a": field}, coverage, Holders(coverage), device), 2, Ledger(), [], {})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"how": "joint"},
        {"how": "guided", "weights": 3},
        {"how": "guided", "weights": [3.0], "until": 0.5},
        {"weights": [1.0, 2.0]},
        {"solver": "euler"},
        {"solver": "dopri5", "nfe": None},
    ],
)
def test_options_go_to_the_mixture(options):
    flow = flow_of(CORNERS)
    y = CORNERS.parse("horizontal=right,vertical=top").expand(3, -1)
    usual = {"nfe": 4, **options}
    wanted = flow.mixture.sample(y, seeds.generator(7, "sample"), dimension=2, **usual).x1
    assert torch.equal(flow.sample(3, 7, **usual, **NOVEL), wanted)
    if options:
        assert not torch.allclose(wanted, flow.sample(3, 7, 4, **NOVEL), rtol=1e-3)


def test_an_attribute_with_the_name_of_an_option_is_given_in_a_mapping():
    flow = flow_of(CLASHING)
    for words in ({"how": "far"}, {"how": "joint"}, {"color": "red"}):  # never guessed, however likely
        with pytest.raises(UsageError, match=r"'how' is an attribute here.*an option.*attributes=\{'how': 'near'\}"):
            flow.sample(3, **words)
    y = CLASHING.parse("how=far,color=blue").expand(3, -1)
    wanted = flow.mixture.sample(y, seeds.generator(0, "sample"), 4, how="joint", dimension=2).x1
    assert torch.equal(flow.sample(3, nfe=4, how="joint", attributes={"how": "far", "color": "blue"}), wanted)
    assert torch.equal(flow.sample(3, nfe=4, how="joint", attributes={"how": "far"}, color="blue"), wanted)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"how": "jont"}, "did you mean 'joint'"),
        ({"how": "joint", "weights": 2.0}, "leave one of them out"),
        ({"weights": [1.0, 2.0, 3.0]}, "3 weights were given"),
        ({"until": 0.5}, "and none are given"),
        ({"attributes": "vertical=top"}, "give a mapping"),
        ({"attributes": {"vertical": "top"}, "vertical": "top"}, "twice"),
        ({"size": "large"}, "no attribute 'size'"),
    ],
)
def test_options_that_cannot_be(options, says):
    with pytest.raises(UsageError, match=says):
        flow_of(CORNERS).sample(3, **options)


@pytest.mark.parametrize("count", [-1, 0, True, 2.5, "many"])
def test_a_number_of_samples_that_cannot_be(count):
    with pytest.raises(UsageError, match="ask for a whole number of them, at least one"):
        flow_of(CORNERS).sample(count, **NOVEL)


@pytest.mark.parametrize("asked", [{}, NOVEL, {"vertical": "top"}])
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=ON_GPU)])
def test_noise_goes_to_where_the_experts_are(device, asked):
    """The generator stays on the CPU, so that a seed draws the same numbers; "meta" stands for any other device."""
    seen = set()

    def field(x, t, y):
        seen.update((x.device.type, y.device.type))
        return torch.zeros_like(x)

    found = flow_of(CORNERS, torch.device(device), field).sample(3, 7, 4, **asked)
    assert found.device.type == device and seen == {device}
    if device != "meta":
        assert torch.equal(found.cpu(), flow_of(CORNERS, None, field).sample(3, 7, 4, **asked))
