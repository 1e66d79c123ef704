# SPDX-License-Identifier: Apache-2.0
"""Batches as trees: their tensors, their rows, and the random numbers behind them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from torch_spmd import _arguments
from torch_spmd.sharding.spec import is_spec, to_spec
from torch_spmd.state import randomness


def checked_specs(specs: Any, where: str) -> Any:
    """Errors: TypeError if it is no tree of specs."""
    if specs is None or is_spec(specs):
        return specs if specs is None else to_spec(specs)
    if isinstance(specs, Mapping):
        given = _arguments.mapping("Loader", where, specs, "a spec or a tree of specs")
        return {k: checked_specs(v, f"{where}[{_arguments.plain(k)}]") for k, v in given.items()}
    if isinstance(specs, (list, tuple)):
        given_items = _arguments.items("Loader", where, specs, "a spec or a tree of specs")
        return [checked_specs(v, f"{where}[{i}]") for i, v in enumerate(given_items)]
    raise TypeError(
        f"Loader: {where} must be a spec, a tree of specs or None; got {_arguments.shown(specs)}"
    )


def part_of_specs(specs: Any, key: Any, where: str) -> Any:
    """The specs of an item of a container."""
    if specs is None or is_spec(specs):
        return specs
    try:
        return specs[key]
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"Loader: specs has none for {where}[{key!r}] of a batch; None means no mark"
        ) from None


def first_spec(specs: Any) -> Any:
    if specs is None or is_spec(specs):
        return specs
    for item in specs.values() if isinstance(specs, Mapping) else specs:
        found = first_spec(item)
        if found is not None:
            return found
    return None


def rows_of(item: Any) -> int | None:
    """The size of the first dimension of the first tensor that has one."""
    if isinstance(item, Tensor):
        return item.shape[0] if item.dim() else None
    for part in _items_of(item):
        rows = rows_of(part)
        if rows is not None:
            return rows
    return None


def _items_of(item: Any) -> Iterable[Any]:
    """What a container of a batch has."""
    if moves_itself(item):
        return ()
    if isinstance(item, Mapping):
        return item.values()
    return item if isinstance(item, (list, tuple)) else (fields_of(item) or {}).values()


def moves_itself(item: Any) -> bool:
    """Whether a value that is no mapping, such as a PackedSequence, is moved by its own method."""
    own = not isinstance(item, (Tensor, Mapping, type)) and fields_of(item) is None
    return own and callable(getattr(type(item), "to", None))


def fields_of(item: Any) -> dict[str, Any] | None:
    """The fields of a dataclass that have a value; None of anything else."""
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return None
    names = [field.name for field in dataclasses.fields(item)]
    return {name: getattr(item, name) for name in names if hasattr(item, name)}


def digest(batch: Any) -> str:
    """Of the first row of each tensor of a batch."""
    found = hashlib.blake2b(digest_size=8)

    def add(item: Any) -> None:
        if isinstance(item, Tensor):
            row = item[:1] if item.dim() else item
            found.update(f"{item.dtype} {tuple(item.shape)}".encode())
            if row.layout == torch.strided and row.device.type == "cpu":
                bits = row.detach().resolve_conj().resolve_neg().contiguous().view(-1)
                found.update(bits.view(torch.uint8).numpy().tobytes())
        for part in _items_of(item):
            add(part)

    add(batch)
    return found.hexdigest()


def rebuilt(item: Any, moved: dict[Any, Any]) -> Any:
    """A mapping of the same class, if that takes a dict."""
    try:
        return type(item)(moved)
    except Exception:
        return moved


def length_of(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def random_state_of(loader: Any) -> Any:
    own = [randomness.generator_state(generator) for generator in generators(loader)]
    return {**randomness.host_state(), "own": own}


def generators(loader: Any) -> list[Any]:
    """The generators of a loader and of its samplers, not those of its dataset."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(owner: Any) -> None:
        if id(owner) in seen or not hasattr(owner, "__dict__"):
            return
        seen.add(id(owner))
        for value in list(vars(owner).values()):
            if randomness.generator_state(value) is not None:
                found.setdefault(id(value), value)
            elif isinstance(value, Sampler):
                visit(value)

    if isinstance(loader, DataLoader):
        for owner in (loader, loader.sampler, loader.batch_sampler):
            visit(owner)
    return list(found.values())


def set_own_random_state(loader: Any, states: Any) -> None:
    """Errors: ValueError if the loader has other generators."""
    own = generators(loader)
    if len(own) != len(states):
        raise ValueError(
            f"Loader: the position was saved of a loader that has, with its samplers, "
            f"{len(states)} generators of random numbers; this one has {len(own)}"
        )
    for generator, state in zip(own, states):
        randomness.set_generator_state(generator, state)
