"""Archives in the layout of TorchScript, written by hand, so that they can claim anything."""

import pickle
import zipfile

import torch


class Storage:
    """What torch pickles as a reference to the bytes in data/N."""

    def __init__(self, *reference):
        self.reference = reference


class Global:
    """A name that a pickle asks for, called with arguments."""

    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments


def opcodes(value):
    """A pickle written by hand, so that it can ask for any name without there being one; bytes stand for themselves."""
    if isinstance(value, bytes):
        return value
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


def tensor(key, *size, kind=FLOAT, stride=None, count=None):
    stride = stride or ((size[1], 1) if len(size) == 2 else (1,))
    storage = Storage("storage", kind, key, "cpu", torch.Size(size).numel() if count is None else count)
    return Global("torch._utils", "_rebuild_tensor_v2", storage, 0, size, stride)


def archive(path, root, *storages, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("net/data.pkl", b"\x80\x02" + opcodes(root) + b".")
        file.writestr("net/code/program.py", "raise SystemExit")
        for number, values in enumerate(storages):
            file.writestr(f"net/data/{number}", torch.tensor(values).numpy().tobytes())
    return path


ROOT = {"training": False, "net": {"layers": {"conv": {"weight": tensor("0", 2, 2), "beta": tensor("1", 1)}}}}
VALUES = ([1.0, 2.0, 3.0, 4.0], [5.0])
