# SPDX-License-Identifier: Apache-2.0
"""The parts of tensors that this process holds, read and written part by part."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from torch_spmd import _C
from torch_spmd._state import boxes, processes
from torch_spmd._state.boxes import Box
from torch_spmd.spec import blocks
from torch_spmd.tensors import Shard, blocks_apart, load_local_shards_, sharding_of

_MOST_PENDING = 32 << 20
_pending = 0


def is_ours(tensor: Tensor) -> bool:
    return tensor.device.type == "spmd"


def mark_text(tensor: Tensor) -> str:
    """What torch.save keeps of a mark; "" if there is none."""
    return next(iter(torch._utils.get_tensor_metadata(tensor)), "") if is_ours(tensor) else ""


def give_mark(tensor: Tensor, text: str) -> None:
    """Marks a tensor of the host, so that its copy on the device has the mark."""
    if text:
        torch._utils.set_tensor_metadata(tensor, {text: True})


def _held(tensor: Tensor) -> list[tuple[int, Box]]:
    """(device, box) of all parts. The part of a device of blocks is several boxes."""
    spec = sharding_of(tensor).spec
    found = []
    for device, given in _C.shard_boxes(blocks_apart(tensor)):
        apart = iter([(begin, max(begin, end)) for begin, end in given])
        choices: list[list[tuple[int, int]]] = []
        for size, dim in zip(tensor.shape, spec):
            (begin, end), n = next(apart), dim.n if isinstance(dim, blocks) else 1
            if n == 1:
                choices.append([(begin, end)])
                continue
            low, high = next(apart)
            k = size // n
            choices.append([(i * k + low, i * k + high) for i in range(begin, end)])
        found += [(device, box) for box in itertools.product(*choices)]
    return found


def to_write(tensor: Tensor) -> list[Box]:
    """The boxes that this process writes: those whose first holder is here. Of a tensor that is not
    on the device, all in process 0. Parts without elements are not written."""
    mine = processes.local_devices()
    if not is_ours(tensor):
        found = [boxes.whole(tensor.shape)] if processes.rank() == 0 else []
    else:
        first: dict[Box, int] = {}
        for device, box in _held(tensor):
            first.setdefault(box, device)
        found = [box for box, device in first.items() if mine is None or device in mine]
    return [box for box in found if boxes.elements(box) > 0]


def to_read(tensor: Tensor) -> list[Box]:
    """The boxes that this process needs: those of its devices, or all of a tensor elsewhere."""
    mine = processes.local_devices()
    if not is_ours(tensor):
        return [boxes.whole(tensor.shape)]
    return list(dict.fromkeys(b for device, b in _held(tensor) if mine is None or device in mine))


def read(tensor: Tensor, box: Box) -> Tensor:
    """A contiguous copy of a part on the host. Requires: it is within one of `to_write`."""
    if is_ours(tensor):
        return _C.read_part(tensor, box)
    part = tensor[tuple(slice(begin, end) for begin, end in box)] if tensor.dim() else tensor
    return part.cpu().resolve_conj().resolve_neg().contiguous()


def fill(tensor: Tensor, host: Tensor) -> None:
    """Overwrites a tensor; its device and its mark stay."""
    global _pending
    with torch.no_grad():
        tensor.detach().copy_(host.view(tensor.shape))
    _pending += tensor.nbytes
    if _pending >= _MOST_PENDING and is_ours(tensor):
        _C.sync(True)  # otherwise the copies of many tensors would wait on the host
        _pending = 0


def fill_parts(tensor: Tensor, hosts: dict[Box, Tensor]) -> None:
    """Overwrites the parts of a tensor of which this process holds some only."""
    shards = []
    for device, box in _held(tensor):
        for region, host in hosts.items():
            if boxes.intersection(region, box) == box:
                data = host[boxes.slices(box, region)]
                shards.append(Shard(data, tuple(slice(*dim) for dim in box), device, 0))
    load_local_shards_(tensor, shards)
