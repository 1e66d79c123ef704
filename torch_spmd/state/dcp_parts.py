# SPDX-License-Identifier: Apache-2.0
"""The parts of a tensor as torch.distributed.checkpoint writes and reads them
(torch_spmd/state/dcp_patches.py). Each process writes and reads those of its own devices, one after
another, and reads them into the memory that the tensor has."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.utils.weak import WeakIdKeyDictionary

from torch_spmd import _C, _compat
from torch_spmd._replace import replace
from torch_spmd.processes import agreement
from torch_spmd.sharding.shards import blocks_apart
from torch_spmd.state import boxes, parts
from torch_spmd.state.boxes import Box


class _Saved(NamedTuple):
    """What is saved of a tensor: one with the same values, whose parts can be read, in these
    boxes."""

    tensor: Tensor
    boxes: list[Box]


_saving: Any = WeakIdKeyDictionary()


class _Thread(threading.local):
    """What the thread that saves or loads has asked for: its functions tell no tensor when they are
    done. Files may be written by others of its threads."""

    def __init__(self) -> None:
        self.saved: list[tuple[str, Tensor]] = []
        # In the order in which they were asked: the tensor, what is filled in its place, and the
        # parts of that.
        self.loaded: list[tuple[Tensor, Tensor, parts.Filling]] = []

    def forget(self) -> None:
        for _, tensor in self.saved:
            _saving.pop(tensor, None)
        self.saved.clear()
        self.loaded.clear()


_thread = _Thread()


def _begin(box: Box) -> torch.Size:
    return torch.Size(begin for begin, _ in box)


def _chunk(box: Box) -> metadata.ChunkStorageMetadata:
    return metadata.ChunkStorageMetadata(_begin(box), torch.Size(boxes.sizes(box)))


def create_write_items(tensor: Tensor, name: str, _: object) -> list[planner.WriteItem]:
    saved = parts.resolved(tensor)
    if not _C.reads_alone(blocks_apart(saved)):
        saved = parts.readable({name: saved})[name]
    _saving[tensor] = _Saved(saved, _to_write(saved))
    _thread.saved.append((name, tensor))
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
        for box in _saving[tensor].boxes
    ]


def _to_write(tensor: Tensor) -> list[Box]:
    """A tensor without elements has no parts, and process 0 says that it is there."""
    if tensor.numel() == 0:
        return [boxes.whole(tensor.shape)] if agreement.rank() == 0 else []
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
        return _read(saved.tensor, next(b for b in saved.boxes if _begin(b) == index.offset))
    filling = next(filling for target, _, filling in reversed(_thread.loaded) if target is tensor)
    return next(memory for box, memory in filling.parts.items() if _begin(box) == index.offset)


def _read(tensor: Tensor, box: Box) -> Tensor:
    """A copy of a part on the host, which may be several of those that are held here."""
    held = parts.to_write(tensor)
    if box in held:
        return parts.read(tensor, box)
    result = torch.empty(boxes.sizes(box), dtype=tensor.dtype, device="cpu")
    for part in held:
        result[boxes.slices(part, box)].copy_(parts.read(tensor, part))
    return result


def one_of_each(items: list[planner.WriteItem]) -> list[planner.WriteItem]:
    """One item for all parts that this process writes of a tensor, for files that have a name once
    each. Called by the thread that has asked for the items.

    Errors: ValueError if the parts of a tensor make up no box.
    """
    ours = dict(_thread.saved)
    found: dict[str, planner.WriteItem] = {}
    others = []
    for item in items:
        name = item.index.fqn
        if name not in ours:
            others.append(item)
        elif name not in found:
            found[name] = _whole(item, name, ours[name])
    return [*found.values(), *others]


def _whole(item: planner.WriteItem, name: str, tensor: Tensor) -> planner.WriteItem:
    saved = _saving[tensor]
    box = boxes.bounding(saved.boxes)
    if boxes.elements(box) != sum(map(boxes.elements, saved.boxes)):
        raise ValueError(
            f"dcp.save: the parts of {name!r} that are in this process, {saved.boxes}, make up no "
            "box, and a file of safetensors has one tensor of a name; spmd.save(…, format='hub') "
            "writes whole tensors, and DCP's own format takes any parts"
        )
    _saving[tensor] = saved._replace(boxes=[box])
    data: Any = item.tensor_data
    return dataclasses.replace(
        item,
        index=metadata.MetadataIndex(name, _begin(box)),
        tensor_data=dataclasses.replace(data, chunk=_chunk(box)),
    )


def watch() -> None:
    """Called once. The functions that save and load tell no tensor when they begin, are done or
    fail; but they consist of steps of one class, which all processes take together."""
    wrapper = _compat.dcp_steps()
    for name in ("reduce_scatter", "all_gather", "all_reduce", "broadcast"):
        replace(wrapper, name, _watched(getattr(wrapper, name)), "dcp()")
    writer = _compat.dcp_file_writer()
    replace(writer, "prepare_local_plan", _with_unique_names(writer.prepare_local_plan), "dcp()")


def _with_unique_names(prepare: Any) -> Any:
    @functools.wraps(prepare)
    def prepared(self: Any, plan: Any) -> Any:
        plan = prepare(self, plan)
        if self.serialization_format != filesystem.SerializationFormat.SAFETENSORS:
            return plan
        return dataclasses.replace(plan, items=one_of_each(plan.items))

    return prepared


def _watched(function: Any) -> Any:
    @functools.wraps(function)
    def watched(self: Any, step: str, *args: Any, **kwargs: Any) -> Any:
        if step == "plan":
            _thread.forget()
        try:
            result = function(self, step, *args, **kwargs)
        except BaseException as error:
            _thread.forget()
            if isinstance(error, RuntimeError):  # of the group: what a step meets is none
                agreement.raise_named(error, f"takes part in dcp.save or dcp.load ({step})")
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
