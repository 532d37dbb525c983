"""TorchScript archives: their tensors are read, and nothing in them is run, unpickled, or believed about its size."""

import pickletools
import struct
import tracemalloc
import zipfile

import pytest
import torch

from anabranch.data._pickled import describe
from anabranch.data._torchscript import read_torchscript
from anabranch.errors import DataError
from tests.data.scripted import ROOT, VALUES, Global, archive, opcodes, tensor


def test_tensors_are_read_by_their_paths(tmp_path):
    found = read_torchscript(archive(tmp_path / "net.pt", ROOT, *VALUES))
    assert {name: value.tolist() for name, value in found.items()} == {
        "net.layers.conv.weight": [[1.0, 2.0], [3.0, 4.0]],
        "net.layers.conv.beta": [5.0],
    }


def test_offsets_and_strides_count(tmp_path):
    transposed = tensor("0", 2, 2, stride=(1, 2))
    last = tensor("1", 2, count=3)
    last.arguments = (last.arguments[0], 1, *last.arguments[2:])
    found = read_torchscript(archive(tmp_path / "net.pt", {"a": transposed, "b": last}, VALUES[0], [7.0, 8.0, 9.0]))
    assert found["a"].tolist() == [[1.0, 3.0], [2.0, 4.0]] and found["b"].tolist() == [8.0, 9.0]
    assert all(value.is_contiguous() and value.storage_offset() == 0 for value in found.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_writes_is_read(tmp_path):
    layers = [torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), *(torch.nn.Linear(9, 9) for _ in range(60))]
    module = torch.nn.Sequential(*layers)  # so many that numbers of more than a byte occur
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
        ("__torch__", "Thing"),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused(tmp_path, wanted):
    path = archive(tmp_path / "net.pt", {"weight": Global(*wanted, "whatever")})
    with pytest.raises(DataError, match=f"asks for '{wanted[0]}.{wanted[1]}', which weights do not need"):
        read_torchscript(path)


def test_a_pickle_that_would_run_something_runs_nothing(tmp_path):
    mark = tmp_path / "mark"
    harm = opcodes(Global("os", "system", f"touch {mark}"))
    steps = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(harm + b".")]
    assert steps[0] == ("GLOBAL", "os system") and steps[-2] == ("REDUCE", None)  # an unpickler would run it
    path = archive(tmp_path / "net.pt", {"weight": harm})
    with pytest.raises(DataError, match=r"asks for 'os\.system'"):
        read_torchscript(path)
    assert not mark.exists()


def test_names_that_are_known_are_not_called(tmp_path):
    hooks = Global("collections", "OrderedDict", "no", "arguments", "that", "it", "takes")
    found = read_torchscript(archive(tmp_path / "net.pt", {**ROOT, "hooks": hooks}, *VALUES))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x8c\x02os\x8c\x06system\x93.", "SHORT_BINUNICODE"),
        (b"X\x02\0\0\0osX\x06\0\0\0system\x93.", "STACK_GLOBAL"),
        (b"(X\x01\0\0\0xios\nsystem\n.", "INST"),
        (b"(c__torch__.a\nB\no.", "OBJ"),
        (b"c__torch__.a\nB\n)}\x92.", "NEWOBJ_EX"),
        (b"\x82\x01.", "EXT1"),
        (b"P0\n.", "PERSID"),
        (b"G?\xf0\0\0\0\0\0\0.", "BINFLOAT"),
        (b"\x8a\x01\x05.", "LONG1"),
        (b"N0.", "POP"),
        (b"N2.", "DUP"),
    ],
)
def test_other_opcodes_are_refused_by_name(content, name):
    with pytest.raises(DataError, match=f"holds the opcode {name}, which weights do not need"):
        describe(content, ("os system",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",  # nothing is left
        b"NN.",  # too much is left
        b"t.",  # no mark
        b"h\0.",  # nothing was put there
        b"N)\x81.",  # an object of no class
        b"cos\nsystem\n)\x81.",  # of a class that is not the program's
        b"c__torch__.a\nB\n(Nt\x81.",  # with arguments
        b"c__torch__.a\nB\n)\x81}b}b.",  # with attributes twice
        b"c__torch__.a\nB\n)\x81Nb.",  # with attributes that are none
        b"}}b.",
        b"N)R.",
        b"cos\nsystem\nNR.",
        b"NQ.",
        b"N(Ne.",
        b"N(X\x01\0\0\0aNu.",
        b"}(X\x01\0\0\0au.",  # a key without a value
        b"}(NNu.",  # a key that is no text
        b"X\xff\xff\xff\x7fa.",  # a text that is longer than the pickle
        b"c\xff\n\xff\n.",
        b"\xff.",
    ],
)
def test_what_is_no_pickle_of_weights_is_refused(content):
    with pytest.raises((ValueError, IndexError, KeyError)):
        describe(content, ("os system",))


def test_every_truncation_of_a_pickle_is_refused(tmp_path):
    content = opcodes(ROOT)
    for end in range(len(content)):
        with pytest.raises((ValueError, IndexError, KeyError)):
            describe(content[:end], ("torch._utils _rebuild_tensor_v2", "torch FloatStorage"))


@pytest.mark.parametrize(
    ("root", "storages", "words"),
    [
        ({"weight": tensor("0", 2, 2)}, [[1.0]], "has 4 bytes, not 16"),
        ({"weight": tensor("0", 2, 2)}, [[*VALUES[0], 5.0]], "has 20 bytes, not 16"),
        ({"weight": tensor("7", 2, 2)}, [VALUES[0]], "no item named 'net/data/7'"),
        ({"weight": tensor("../data.pkl", 2, 2)}, [VALUES[0]], "no item named"),
        ({"weight": tensor(("0",), 2, 2)}, [VALUES[0]], "a storage has no name"),
        ({"weight": tensor("0", 2, 2, kind="HalfStorage")}, [VALUES[0]], "something else than float32"),
        ({"weight": tensor("0", 2, 2, kind=Global("torch", "LongStorage", None))}, [VALUES[0]], "torch.LongStorage"),
        ({"weight": tensor("0", 2, 2, count=True)}, [VALUES[0]], "bool stands where a count should"),
        ({"weight": tensor("0", 2, 2, stride=(2, 2))}, [VALUES[0]], "out of bounds"),
        ({"weight": tensor("0", 2, 2, stride=(2, -1))}, [VALUES[0]], "int stands where a count should"),
        ({"weight": tensor("0", 2, 2, stride=(2, 1, 1))}, [VALUES[0]], "no shape"),
        ({"weight": tensor("0", *[1] * 9, stride=(1,) * 9)}, [[1.0]], "no shape"),
        ({"weight": Global("torch._utils", "_rebuild_tensor_v2", tensor("0", 4), 2, (4,), (1,))}, [], "no storage"),
        ({"weight": Global("torch._utils", "_rebuild_tensor_v2", 3, 0, (4,), (1,))}, [], "no storage"),
        ({"weight": Global("torch._utils", "_rebuild_tensor_v2", 3)}, [], "missing 3 required"),
        (3, [], "no attributes"),
    ],
)
def test_tensors_that_cannot_be_are_refused(tmp_path, root, storages, words):
    with pytest.raises(DataError, match=words):
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
    with pytest.raises(DataError, match="pickle exhausted before seeing STOP"):
        read_torchscript(tmp_path / "net.pt")


THING = b"c__torch__.net\nThing\n)\x81}("  # an object, up to its attributes


class TestBombs:
    """Files that claim more than they hold: refused, and before any memory is taken for what they claim."""

    @pytest.fixture(autouse=True)
    def memory(self):
        tracemalloc.start()
        yield
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**25

    def test_a_pickle_of_a_size(self, tmp_path):
        path = archive(tmp_path / "net.pt", b"N" * 2**20)
        with pytest.raises(DataError, match=r"one data\.pkl of a plausible size"):
            read_torchscript(path)

    def test_bytes_that_swell(self, tmp_path):
        path = archive(tmp_path / "net.pt", ROOT, *VALUES, compression=zipfile.ZIP_DEFLATED)
        with pytest.raises(DataError, match=r"'net/data\.pkl' in a file of weights is compressed"):
            read_torchscript(path)
        with zipfile.ZipFile(tmp_path / "net.pt", "w") as file:
            file.writestr("net/data.pkl", opcodes({"weight": tensor("0", 2**20)}) + b".")
            file.writestr("net/data/0", bytes(2**22), zipfile.ZIP_DEFLATED)
        with pytest.raises(DataError, match="asks for more numbers than it holds"):
            read_torchscript(tmp_path / "net.pt")

    @pytest.mark.parametrize(
        ("packed", "size", "words"),
        [(2**31 - 4, 2**31 - 4, "asks for more numbers than it holds"), (2**31 - 4, 4, "is compressed")],
    )
    def test_a_size_that_is_a_lie(self, tmp_path, packed, size, words):
        path = archive(tmp_path / "net.pt", {"weight": tensor("0", size // 4)}, [1.0])
        content = path.read_bytes()
        place = content.rindex(b"PK\x01\x02") + 20  # in the list at the end: both sizes of its last entry, net/data/0
        path.write_bytes(content[:place] + struct.pack("<II", packed, size) + content[place + 8 :])
        with pytest.raises(DataError, match=words):
            read_torchscript(path)

    @pytest.mark.parametrize("stride", [(0, 0), (1, 1)])
    def test_a_tensor_that_repeats_its_numbers(self, tmp_path, stride):
        root = {"weight": tensor("0", 2**12, 2**12, stride=stride, count=4)}
        with pytest.raises(DataError, match=r"has shape \(4096, 4096\) and 4 numbers"):
            read_torchscript(archive(tmp_path / "net.pt", root, VALUES[0]))

    def test_a_storage_that_is_read_again_and_again(self, tmp_path):
        same = {f"weight{number}": tensor("0", 2**12) for number in range(100)}
        with pytest.raises(DataError, match="asks for more numbers than it holds"):
            read_torchscript(archive(tmp_path / "net.pt", same, [0.0] * 2**12))

    def test_objects_within_objects(self, tmp_path):
        twice = b"X\x01\0\0\0ah\x09X\x01\0\0\0bh\x09"  # the one before, under two names
        things = {"0": opcodes({}) + b"q\x09"} | {str(depth): THING + twice + b"ubq\x09" for depth in range(1, 16)}
        with pytest.raises(DataError, match="an object stands in two places"):  # else 2**16 paths are walked
            read_torchscript(archive(tmp_path / "net.pt", things))

    def test_an_object_within_itself(self, tmp_path):
        inner, again = b"c__torch__.net\nThing\n)\x81}q\x08bq\x09", b"h\x08(X\x01\0\0\0ah\x09u"
        with pytest.raises(DataError, match="an object stands in two places"):
            read_torchscript(archive(tmp_path / "net.pt", {"inner": inner, "again": again}))

    def test_a_tower_of_objects(self, tmp_path):
        content = (THING + b"X\x01\0\0\0a") * 5000 + opcodes({}) + b"ub" * 5000
        with pytest.raises(DataError, match="recursion"):
            read_torchscript(archive(tmp_path / "net.pt", content))

    def test_a_name_without_end(self, tmp_path):
        # Each tuple holds the one before twice, so that the text of the last would have 65536 parts.
        content = b"(Nq\x09" + b"(h\x09h\x09tq\x09" * 16 + b"t"
        with pytest.raises(DataError, match="a storage has no name"):
            read_torchscript(archive(tmp_path / "net.pt", {"key": content, "weight": tensor(b"h\x09", 1)}, [1.0]))
