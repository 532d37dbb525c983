"""One encoding for every engine: a JSON header, then safetensors bytes.

    4 bytes   length of the header, little endian
    header    {"bytes": length of what follows, "kind": …, scalar fields …}
    tensors   safetensors, absent when the message holds none

`size` is the length of that encoding, computed without encoding: the byte ledger counts what a wire would carry
even where nothing is copied.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_origin

from torch import Tensor

from anabranch.errors import MessageError, unknown
from anabranch.federation._message import KINDS, SCALARS, WIRE_DTYPES, Message, check, field_types, tensors_of

LARGEST = 4 * 2**30  # bytes; more than any sensible message, less than what would exhaust a server
LONGEST_HEADER = 2**24  # bytes, of scalars and of the list of tensors: reading one takes twenty times its length
_sizes: dict[tuple[Any, ...], int] = {}


def encode(message: Message) -> bytes:
    """The message as bytes."""
    from safetensors.torch import save

    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors_of(message).items()}
    seen: set[int] = set()
    for name, tensor in tensors.items():  # two fields may show the same memory; the format wants two
        place = tensor.untyped_storage().data_ptr()
        if place in seen:
            tensors[name] = tensor.clone()
        seen.add(place)
    body = save(tensors) if tensors else b""
    header = _header(message, len(body)).encode()
    return len(header).to_bytes(4, "little") + header + body


def decode(data: bytes) -> Message:
    """The message in the bytes; anything that is not one is refused with a MessageError. Nothing is unpickled."""
    from safetensors.torch import load

    if len(data) > LARGEST:
        raise MessageError(f"A message of {len(data)} bytes arrived; the largest allowed has {LARGEST}.")
    start = 4 + int.from_bytes(data[:4], "little")
    listed = int.from_bytes(data[start : start + 8], "little")
    if start > len(data) or max(start, listed) > LONGEST_HEADER:
        raise MessageError("Bytes arrived that are no message: a header is cut off or too long.")
    try:
        header = json.loads(data[4:start].decode())
        length = header.pop("bytes", 0)
        if length != len(data) - start:
            raise ValueError("cut off")
        tensors = load(data[start:]) if length else {}
    except Exception as error:
        raise MessageError(f"Bytes arrived that are no message ({type(error).__name__}).") from error
    return assemble(header, tensors)


def head(message: Message) -> dict[str, Any]:
    """All of a message but its tensors."""
    scalars = {
        field.name: value
        for field in fields(message)  # type: ignore[arg-type]
        if not isinstance(value := getattr(message, field.name), Tensor | dict)
    }
    return {"kind": message.kind, **scalars}


def assemble(header: Any, tensors: dict[str, Tensor]) -> Message:
    """The message of this `head` with these tensors, named as `tensors_of` names them; checked as on arrival."""
    kind = header.pop("kind", None) if isinstance(header, dict) else None
    if not isinstance(kind, str):
        raise MessageError("Bytes arrived that are no message: they do not say their kind.")
    if kind not in KINDS:
        raise MessageError(str(unknown("kind of message", kind[:80], KINDS)))
    return _build(KINDS[kind], header, tensors)


def _build(cls: type[Message], header: dict[str, Any], tensors: dict[str, Tensor]) -> Message:
    values: dict[str, Any] = {}
    for name, (hint, _) in field_types(cls).items():
        if name in header:
            values[name] = header.pop(name)
            if hint is float and type(values[name]) is int and abs(values[name]) < 2**63:
                values[name] = float(values[name])
        elif get_origin(hint) is dict:
            keys = [key for key in tensors if key.startswith(f"{name}/")]
            values[name] = {key[len(name) + 1 :]: tensors.pop(key) for key in keys}
        elif name in tensors:
            values[name] = tensors.pop(name)
    if header or tensors:
        raise MessageError(f"'{cls.kind}' arrived with unknown fields: {', '.join([*header, *tensors][:4])[:200]}.")
    try:
        message = cls(**values)
    except TypeError as error:
        raise MessageError(f"'{cls.kind}' arrived incomplete: {error}.") from error
    check(message)
    return message


def _header(message: Message, length: int) -> str:
    return json.dumps({"bytes": length, **head(message)}, separators=(",", ":"))


def size(message: Message) -> int:
    """len(encode(message)), without encoding."""
    tensors = tensors_of(message)
    key = (type(message), *((name, t.shape, t.dtype) for name, t in tensors.items()))
    if key in _sizes:
        return _sizes[key]
    body = _safetensors_size(tensors)
    whole = 4 + len(_header(message, body).encode()) + body
    if not any(hint in SCALARS for hint, _ in field_types(type(message)).values()):
        _sizes[key] = whole  # without numbers or text of its own, equal shapes make equal headers
    return whole


def _safetensors_size(tensors: dict[str, Tensor]) -> int:
    if not tensors:
        return 0
    # The format lays tensors out by type, then by name, and pads its header to eight bytes.
    rank = {dtype: number for number, dtype in enumerate(WIRE_DTYPES)}
    order = sorted(tensors, key=lambda name: (rank[tensors[name].dtype], name))
    header, offset = {}, 0
    for name in order:
        code, width = WIRE_DTYPES[tensors[name].dtype]
        end = offset + tensors[name].numel() * width
        header[name] = {"dtype": code, "shape": list(tensors[name].shape), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-length // 8) * 8 + offset
