# SPDX-License-Identifier: Apache-2.0
"""Parts of a target: its tensors by name, keys of mappings, state that is set."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _compat
from torch_spmd.state.names import without_wrappers


def half_done(text: str, done: list[str], now: str | None) -> str:
    found = text if text.startswith("load: ") else f"load: {text}"
    if now is not None:
        found += f". Of tensor {now!r} a part may be overwritten; it is NaN if its dtype has that"
    if done:
        names = ", ".join(map(repr, done[:5]))
        more = f" and {len(done) - 5:,} more" if len(done) > 5 else ""
        found += f". {names}{more} had been loaded before"
    return f"{found}. Load a checkpoint that is good before the rest is used" if done else found


def with_keys_of(own: Any, value: Any) -> Any:
    """The value, whose keys are text, with keys as `own` has them; and with its mappings that have
    no items."""
    if isinstance(own, (list, tuple)) and isinstance(value, (list, tuple)):
        count = max(len(own), len(value))
        return type(value)(with_keys_of(o, v) for o, v in zip([*own, *[None] * count], value))
    if not isinstance(own, Mapping) or not isinstance(value, dict):
        return value
    keys: dict[Any, Any] = {str(key): key for key in own}
    numbers = bool(own) and all(type(key) is int for key in own)
    made = {}
    for text, item in value.items():
        number = numbers and re.fullmatch(r"-?\d+", str(text))
        key = keys.get(text, int(text) if number else text)
        made[key] = with_keys_of(own.get(key), item)
    for key, item in own.items():
        if isinstance(item, Mapping) and not item:
            made.setdefault(key, item)
    return collections.Counter(made) if isinstance(own, collections.Counter) else made


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements are in one place."""
    if tensor.numel() < 2:
        return False
    steps = sorted((s, size) for s, size in zip(tensor.stride(), tensor.shape) if size > 1)
    reached = 0  # by the dimensions so far
    for step, size in steps:
        if step <= reached:
            break
        reached += step * (size - 1)
    else:
        return False
    if steps[0][0] == 0:
        return True
    # One dimension goes on within another: rare, so that all places are counted.
    places = torch.zeros(1, dtype=torch.int64, device="cpu")
    for step, size in steps:
        places = (places.unsqueeze(1) + torch.arange(size, device="cpu") * step).flatten()
    return bool(places.unique().numel() < tensor.numel())


def set_state(generator: torch.Generator, state: Callable[[], Any]) -> None:
    generator.set_state(state())


def set_extra(module: nn.Module, value: Callable[[], Any]) -> None:
    module.set_extra_state(value())


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by all of their names."""
    found: dict[str, Tensor] = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, tensor in _compat.parameters(child).items():
            if tensor is not None:
                found[dot + name] = tensor
        for name, buffer in _compat.buffers(child).items():
            if buffer is not None and name not in _compat.transient_buffers(child):
                found[dot + name] = buffer
    return found


def by_identity(names: Mapping[str, Tensor]) -> dict[Tensor, list[str]]:
    found: dict[Tensor, list[str]] = {}
    for name, tensor in names.items():
        found.setdefault(tensor, []).append(name)
    return found


def as_named(there: dict[Any, Any], names: Mapping[str, Any]) -> dict[Any, Any]:
    """What was saved, under the module's names where the two differ only by what
    DistributedDataParallel and others put before names: either may be wrapped, in whole or in
    part."""
    left = {without_wrappers(name): name for name in names if name not in there}
    if not left:
        return there
    found = {}
    for key, node in there.items():
        name = key if key in names else left.get(without_wrappers(str(key)), key)
        found[key if name in found else name] = node
    return found


def replace_tensor(module: nn.Module, names: list[str], old: Tensor, new: Tensor) -> None:
    """Puts a tensor where one on `meta` was, under all of its names."""
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, old.requires_grad)
        new.__dict__.update(old.__dict__)
    for name in names:
        parent, _, last = name.rpartition(".")
        owner = module.get_submodule(parent)
        place: Any = _compat.parameters(owner)
        if last not in place:
            place = _compat.buffers(owner)
        place[last] = new
