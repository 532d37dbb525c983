"""Weights trained with torchcfm, into our UNet and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from anabranch.errors import CheckpointError
from anabranch.flow.unet._keys import Key, torchcfm_keys
from anabranch.flow.unet._unet import ImageUNet

_NAMED = 4  # keys that an error names before it only counts


def load_torchcfm(network: ImageUNet, state: Mapping[str, Tensor]) -> None:
    """Puts the weights of a `torchcfm.models.unet.UNetModelWrapper` into a UNet of the same configuration.

    `state` is its `state_dict()`, or that of a copy inside `DataParallel`. Names and shapes must match one for one,
    else nothing is changed and the error names what does not. Shapes do not tell everything: give `head_channels` as
    it was trained with (its `num_head_channels`); `use_new_attention_order` must have been off, as it is unless asked
    for. A class table is the only attribute's; where it has no row for "not given", that row becomes zero.
    """
    _check_comparable(network)
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    keys = torchcfm_keys(network)
    _check_names(state, keys)
    own = dict(network.named_parameters())
    given = {key: _fitted(key, state[key.theirs], key.part(own[key.ours])) for key in keys}
    with torch.no_grad():
        for key, tensor in given.items():
            key.part(own[key.ours]).copy_(tensor)


def to_torchcfm(network: ImageUNet) -> dict[str, Tensor]:
    """The network's weights as `UNetModelWrapper.load_state_dict` takes them, copied.

    An attribute of c outcomes becomes a class table of c + 1 rows, the last for "not given".
    """
    _check_comparable(network)
    own = dict(network.named_parameters())
    state = {}
    for key in torchcfm_keys(network):
        tensor = key.part(own[key.ours]).detach().clone(memory_format=torch.contiguous_format)
        state[key.theirs] = tensor.unsqueeze(-1) if key.last else tensor
    return state


def read_weights(path: str | Path, part: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a torch file, by name; no code in the file is run.

    torchcfm's checkpoints hold several: `part` chooses, as in "ema_model" (averaged, for samples) or "net_model".
    """
    found = _read_file(Path(path))
    if part is not None:
        if not isinstance(found, Mapping) or part not in found:
            raise CheckpointError(f"'{path}' has no part '{part}'. It holds: {_listed(found)}.")
        found = found[part]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CheckpointError(f"'{path}' is not one set of weights. Choose a part of it: {_listed(found)}.")
    return {str(name): tensor for name, tensor in found.items()}


def _read_file(path: Path) -> object:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that holds something else fails in whatever way its bytes lead to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"'{path}' cannot be read as weights: {reason.rstrip('.')}.") from error


def _check_comparable(network: ImageUNet) -> None:
    if network.standard.active:
        raise CheckpointError(
            "torchcfm's UNet gives the velocity itself, while a network with a spread adds to that of a Gaussian: the "
            "same weights mean something else. Build the network with spread = 0."
        )
    if len(network.sizes) > 1:
        raise CheckpointError(
            f"torchcfm's UNet knows one attribute at most, the class, while this network has {len(network.sizes)}. "
            "Build it with one size, or none."
        )


def _check_names(state: Mapping[str, Tensor], keys: list[Key]) -> None:
    wanted = dict.fromkeys(key.theirs for key in keys)
    missing = [name for name in wanted if name not in state]
    unused = [name for name in state if name not in wanted]
    if missing or unused:
        told = [f"missing: {_listed(missing)}"] if missing else []
        told += [f"left over: {_listed(unused)}"] if unused else []
        raise CheckpointError(
            f"These weights are not those of torchcfm's UNet with this configuration; {'; '.join(told)}. "
            "Build the network with the multipliers, blocks, attention and sizes it was trained with."
        )


def _fitted(key: Key, tensor: Tensor, own: Tensor) -> Tensor:
    """Their tensor in the shape of ours, which must be the same but for the last axis and the row for "not given"."""
    shape = (*own.shape, 1) if key.last else tuple(own.shape)
    if key.theirs == "label_emb.weight" and tuple(tensor.shape) == (shape[0] - 1, *shape[1:]):
        return torch.cat([tensor, torch.zeros_like(tensor[:1])])
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"'{key.theirs}' has shape {tuple(tensor.shape)}, where this network needs {shape}. "
            "Build the network with the shape and channels it was trained with."
        )
    return tensor.reshape(own.shape)


def _listed(names: object) -> str:
    """A few names, and how many more."""
    every = [str(name) for name in names] if isinstance(names, Iterable) else []
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return (", ".join(every[:_NAMED]) + more) or "nothing by name"
