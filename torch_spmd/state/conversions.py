# SPDX-License-Identifier: Apache-2.0
"""Names and forms of the hub's files that differ from those of the model.

transformers knows them for its models: names that have changed, experts that are one tensor each in
a file and one tensor together in the model, projections that are joined or split. All of these say
only which bytes of a file are which box of a tensor, so that nothing is read for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from torch_spmd.state import boxes
from torch_spmd.state.manifest import SavedTensor

_Parts = dict[str, list[SavedTensor]]  # by the pattern of their names


def converted(
    module: nn.Module, names: Mapping[str, Tensor], saved: Mapping[str, SavedTensor]
) -> dict[str, SavedTensor]:
    """The saved tensors under the names of the module. Those that need more than to be put side by
    side, such as a transposition, are left as they are; all are if the module is none of
    transformers'."""
    rules = _rules_of(module)
    if rules is None:
        return dict(saved)
    loading, renamings, converters = rules
    found: dict[str, SavedTensor] = {}
    groups: dict[str, tuple[Any, dict[str, list[str]]]] = {}
    prefix = getattr(module, "base_model_prefix", None)
    for key in sorted(saved, key=loading.dot_natural_key):
        name, pattern = loading.rename_source_key(key, renamings, converters, prefix, names)
        if name not in names and key in names:
            name, pattern = key, None
        if pattern is None:
            found.setdefault(name if name in names else key, saved[key])
            continue
        converter = next(c for c in converters if pattern in c.source_patterns)
        _, of_pattern = groups.setdefault(name, (converter, {}))
        of_pattern.setdefault(pattern, []).append(key)
    for name, (converter, keys) in groups.items():
        given = {pattern: [saved[key] for key in each] for pattern, each in keys.items()}
        made = _converted(converter, name, given, names)
        if made is None:
            made = {key: saved[key] for each in keys.values() for key in each}
        found.update(made)
    return found


def _rules_of(module: nn.Module) -> tuple[Any, list[Any], list[Any]] | None:
    if not hasattr(module, "base_model_prefix") or not hasattr(module, "config"):
        return None
    try:
        mapping: Any = importlib.import_module("transformers.conversion_mapping")
        loading: Any = importlib.import_module("transformers.core_model_loading")
    except ImportError:  # an earlier version, whose models have the names of their files
        return None
    rules = mapping.get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
    return loading, renamings, [rule for rule in rules if isinstance(rule, loading.WeightConverter)]


def _converted(
    converter: Any, name: str, given: _Parts, names: Mapping[str, Tensor]
) -> dict[str, SavedTensor] | None:
    """By name; None if more is to be done than to put tensors side by side."""
    targets = list(converter.target_patterns)
    by_name = [name.replace(targets[0], target, 1) for target in targets]
    order = list(converter.source_patterns)
    for step in converter.operations:
        kind, dim = type(step).__name__, getattr(step, "dim", None)
        if kind == "MergeModulelist" and dim == 0:
            stacked = {pattern: _stacked(parts) for pattern, parts in given.items()}
            if any(tensor is None for tensor in stacked.values()):
                return None
            given = {pattern: [tensor] for pattern, tensor in stacked.items() if tensor}
        elif kind == "Concatenate":
            joined = _joined([t for pattern in order for t in given.get(pattern, [])], step.dim)
            if joined is None:
                return None
            given = {order[0]: [joined]}
        elif kind in ("Chunk", "Split") and dim == 0 and len(targets) > 1:
            [[whole]] = given.values()
            if not whole.shape or any(target not in names for target in by_name):
                return None
            sizes = [names[target].shape[0] for target in by_name]
            if sum(sizes) != whole.shape[0]:
                return None
            return dict(zip(by_name, _split(whole, sizes)))
        else:
            return None
    results = [tensor for parts in given.values() for tensor in parts]
    return {name: results[0]} if len(results) == 1 else None


def _alike(tensors: Sequence[SavedTensor]) -> bool:
    return len({(t.dtype, len(t.shape)) for t in tensors}) == 1


def _stacked(tensors: Sequence[SavedTensor]) -> SavedTensor | None:
    """One behind another in a new first dimension."""
    if len({t.shape for t in tensors}) != 1 or not _alike(tensors):
        return None
    stored = [
        replace(one, box=((i, i + 1), *one.box))
        for i, tensor in enumerate(tensors)
        for one in tensor.stored
    ]
    return replace(tensors[0], shape=(len(tensors), *tensors[0].shape), stored=tuple(stored))


def _joined(tensors: Sequence[SavedTensor], dim: int) -> SavedTensor | None:
    if not _alike(tensors) or not tensors[0].shape:
        return None
    rank = len(tensors[0].shape)
    dim %= rank
    if len({(*t.shape[:dim], *t.shape[dim + 1 :]) for t in tensors}) != 1:
        return None
    at, stored = 0, []
    for tensor in tensors:
        for one in tensor.stored:
            begin, end = one.box[dim]
            box = (*one.box[:dim], (at + begin, at + end), *one.box[dim + 1 :])
            stored.append(replace(one, box=box))
        at += tensor.shape[dim]
    shape = (*tensors[0].shape[:dim], at, *tensors[0].shape[dim + 1 :])
    return replace(tensors[0], shape=shape, stored=tuple(stored))


def _split(tensor: SavedTensor, sizes: Sequence[int]) -> Iterable[SavedTensor]:
    """Rows one behind another. Rows of a box are one behind another in its file."""
    at = 0
    for size in sizes:
        stored = []
        for one in tensor.stored:
            (begin, end), *rest = one.box
            low, high = max(begin, at), min(end, at + size)
            if low < high:
                row = boxes.elements(tuple(rest)) * tensor.itemsize
                whole = (low, high) == (begin, end)
                part = replace(
                    one,
                    box=((low - at, high - at), *rest),
                    begin=one.begin + (low - begin) * row,
                    digests=one.digests if whole else (),
                )
                stored.append(part)
        yield replace(tensor, shape=(size, *tensor.shape[1:]), stored=tuple(stored))
        at += size
