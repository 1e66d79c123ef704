# SPDX-License-Identifier: Apache-2.0
"""The parts of a tensor as torch.distributed.checkpoint writes and reads them, in a job of several
processes (torch_spmd/_distributed.py). Each process writes and reads those of its own devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata, planner, utils
from torch.utils.weak import WeakIdKeyDictionary

from torch_spmd import _C
from torch_spmd._state import boxes, parts, processes
from torch_spmd._state.boxes import Box
from torch_spmd.tensors import blocks_apart

# What is saved of a tensor: one with the same values, whose parts can be read.
_saving: Any = WeakIdKeyDictionary()
# What is loaded into tensors, in the order in which they were asked: the tensor, what is filled in
# its place, and the parts of that.
_loading: list[tuple[Tensor, Tensor, dict[Box, Tensor]]] = []


def _begin(box: Box) -> torch.Size:
    return torch.Size(begin for begin, _ in box)


def _chunk(box: Box) -> metadata.ChunkStorageMetadata:
    return metadata.ChunkStorageMetadata(_begin(box), torch.Size(boxes.sizes(box)))


def create_write_items(tensor: Tensor, name: str, _: object) -> list[planner.WriteItem]:
    _watch()
    saved = tensor.detach()
    if not _C.reads_alone(blocks_apart(saved)):
        saved = parts.readable({name: saved})[name]
    _saving[tensor] = saved
    return [
        planner.WriteItem(
            metadata.MetadataIndex(name, _begin(box)),
            planner.WriteItemType.SHARD,
            tensor_data=planner.TensorWriteData(
                _chunk(box),
                metadata.TensorProperties(tensor.dtype, requires_grad=tensor.requires_grad),
                tensor.size(),
            ),
        )
        for box in _to_write(saved)
    ]


def _to_write(tensor: Tensor) -> list[Box]:
    """A tensor without elements has no parts, and process 0 says that it is there."""
    if tensor.numel() == 0:
        return [boxes.whole(tensor.shape)] if processes.rank() == 0 else []
    return parts.to_write(tensor)


def create_chunk_list(tensor: Tensor) -> list[metadata.ChunkStorageMetadata]:
    _watch()
    _saving.pop(tensor, None)
    filled = parts.fillable(tensor)
    wanted = [box for box in parts.to_read(filled) if boxes.elements(box)]
    hosts = {box: torch.empty(boxes.sizes(box), dtype=tensor.dtype) for box in wanted}
    _loading.append((tensor, filled, hosts))
    return [_chunk(box) for box in wanted]


def get_tensor_shard(tensor: Tensor, index: metadata.MetadataIndex) -> Tensor:
    """To be written, a copy of the part that begins there; to be read, where it is read to."""
    saved = _saving.get(tensor)
    if saved is not None:
        found = [box for box in _to_write(saved) if _begin(box) == index.offset]
        return (
            parts.read(saved, found[0])
            if saved.numel()
            else torch.empty(saved.shape, dtype=saved.dtype)
        )
    hosts = next(hosts for target, _, hosts in reversed(_loading) if target is tensor)
    return next(host for box, host in hosts.items() if _begin(box) == index.offset)


def _watch() -> None:
    """The functions that save and load tell no tensor when they are done, but all processes end
    each of their steps together."""
    wrapper: Any = utils._DistWrapper
    for name, last, end in (("all_gather", "read", _fill), ("all_reduce", "write", _saving.clear)):
        step = getattr(wrapper, name)
        if not getattr(step, "watched", False):
            setattr(wrapper, name, _watched(step, last, end))


def _watched(function: Any, last: str, end: Callable[[], None]) -> Any:
    @functools.wraps(function)
    def watched(self: Any, step: str, *args: Any, **kwargs: Any) -> Any:
        try:
            result = function(self, step, *args, **kwargs)
        except BaseException:
            _saving.clear()
            _loading.clear()
            raise
        if step == last:
            end()
        return result

    watched.watched = True  # type: ignore[attr-defined]
    return watched


def _fill() -> None:
    targets, _loading[:] = list(_loading), []
    for tensor, filled, hosts in targets:
        parts.fill_parts(filled, hosts)
        parts.put(tensor, filled)
