# SPDX-License-Identifier: Apache-2.0
"""The parts of a tensor as torch.distributed.checkpoint writes and reads them
(torch_spmd/_distributed.py). Each process writes and reads those of its own devices, one after
another, and reads them into the memory that the tensor has."""

from __future__ import annotations

import functools
import threading
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


class _Thread(threading.local):
    """What the thread that saves or loads has asked for: its functions tell no tensor when they are
    done. Files may be written by others of its threads."""

    def __init__(self) -> None:
        self.saved: list[Tensor] = []
        # In the order in which they were asked: the tensor, what is filled in its place, and the
        # parts of that.
        self.loaded: list[tuple[Tensor, Tensor, parts.Filling]] = []

    def forget(self) -> None:
        for tensor in self.saved:
            _saving.pop(tensor, None)
        self.saved.clear()
        self.loaded.clear()


_thread = _Thread()


def _begin(box: Box) -> torch.Size:
    return torch.Size(begin for begin, _ in box)


def _chunk(box: Box) -> metadata.ChunkStorageMetadata:
    return metadata.ChunkStorageMetadata(_begin(box), torch.Size(boxes.sizes(box)))


def create_write_items(tensor: Tensor, name: str, _: object) -> list[planner.WriteItem]:
    saved = tensor.detach()
    if not _C.reads_alone(blocks_apart(saved)):
        saved = parts.readable({name: saved})[name]
    _saving[tensor] = saved
    _thread.saved.append(tensor)
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
    _saving.pop(tensor, None)
    filled = parts.fillable(tensor)
    filling = parts.Filling(filled)
    _thread.loaded.append((tensor, filled, filling))
    return [_chunk(box) for box in filling.parts]


def get_tensor_shard(tensor: Tensor, index: metadata.MetadataIndex) -> Tensor:
    """To be written, a copy of the part that begins there; to be read, where it is in memory."""
    saved = _saving.get(tensor)
    if saved is not None:
        found = [box for box in _to_write(saved) if _begin(box) == index.offset]
        return (
            parts.read(saved, found[0])
            if saved.numel()
            else torch.empty(saved.shape, dtype=saved.dtype)
        )
    filling = next(filling for target, _, filling in reversed(_thread.loaded) if target is tensor)
    return next(memory for box, memory in filling.parts.items() if _begin(box) == index.offset)


def watch() -> None:
    """Called once. The functions that save and load tell no tensor when they begin, are done or
    fail; but they consist of steps of a `_DistWrapper`, which all processes take together."""
    wrapper: Any = utils._DistWrapper
    for name in ("reduce_scatter", "all_gather", "all_reduce", "broadcast"):
        setattr(wrapper, name, _watched(getattr(wrapper, name)))


def _watched(function: Any) -> Any:
    @functools.wraps(function)
    def watched(self: Any, step: str, *args: Any, **kwargs: Any) -> Any:
        if step == "plan":
            _thread.forget()
        try:
            result = function(self, step, *args, **kwargs)
        except BaseException:
            _thread.forget()
            raise
        if step == "read":
            _put()
        elif step == "write":
            _thread.forget()
        return result

    return watched


def _put() -> None:
    targets, _thread.loaded[:] = list(_thread.loaded), []
    for tensor, filled, filling in targets:
        filling.put()
        parts.put(tensor, filled)
