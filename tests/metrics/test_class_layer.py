"""The layer of classes: which files are taken, and what score it gives."""

import pytest
import torch
from safetensors.torch import save_file

from anabranch.errors import AnabranchError, CheckpointError, DataError
from anabranch.metrics import ClassLayer, class_probabilities, inception_score
from anabranch.seeds import generator


def weight(rows=1008):
    return torch.randn(rows, 2048, generator=generator(0, "weight")) / 45


@pytest.mark.parametrize("name", ["layer.safetensors", "layer.pth", "layer.pt"])
def test_files_with_the_layer_are_read_and_the_bias_is_left_out(tmp_path, name):
    state = {"fc.weight": weight(), "fc.bias": torch.full((1008,), 9.0), "Conv2d_1a_3x3.conv.weight": torch.ones(2)}
    (save_file if name.endswith("safetensors") else torch.save)(state, tmp_path / name)
    layer = ClassLayer.load(tmp_path / name)
    features = torch.rand(40, 2048, generator=generator(0, "features"))
    found = layer.score(features, generator(1))
    assert found == inception_score(class_probabilities(features, weight()), generator(1))
    assert found.splits == 10 and 1 < found.value < 1008
    assert layer.score(features[:3], generator(1)).splits == 3


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"fc.weight": weight(1000)}, r"has shape \(1000, 2048\).*\(1008, 2048\).*another network"),
        ({"logits.weight": weight()}, "has no 'fc.weight', the layer of classes"),
        ({"fc.weight": torch.full((1008, 2048), torch.nan)}, "not finite"),
    ],
)
def test_other_layers_are_refused(tmp_path, state, words):
    torch.save(state, tmp_path / "layer.pth")
    with pytest.raises(DataError, match=words):
        ClassLayer.load(tmp_path / "layer.pth")


class Harmful:
    def __reduce__(self):
        return pytest.fail, ("it was run",)


def test_no_code_in_a_file_is_run(tmp_path):
    torch.save({"fc.weight": weight(), "more": Harmful()}, tmp_path / "layer.pth")
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        ClassLayer.load(tmp_path / "layer.pth")


def test_what_is_no_such_file_is_told(tmp_path):
    for name, text in (("layer.onnx", b"x"), ("layer.pth", b"nonsense"), ("layer.safetensors", b"")):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(AnabranchError, match=r"no file for a layer|cannot be read"):
            ClassLayer.load(tmp_path / name)
    with pytest.raises(AnabranchError, match="cannot be read"):
        ClassLayer.load(tmp_path / "missing.pth")
