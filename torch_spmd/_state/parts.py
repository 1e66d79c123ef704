# SPDX-License-Identifier: Apache-2.0
"""The parts of tensors that this process holds, read and written part by part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torch_spmd import _C
from torch_spmd._state import boxes, processes
from torch_spmd._state.boxes import Box
from torch_spmd.spec import blocks
from torch_spmd.tensors import Shard, blocks_apart, load_local_shards_, reshard, sharding_of

# Bytes of copies that wait on the host, and of a tensor that is filled in pieces.
_MOST_PENDING = 16 << 20
_LARGE = 16 << 20
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


def _in_blocks(tensor: Tensor, box: Box) -> Box:
    """A box of the tensor as a box of `blocks_apart(tensor)`. Requires: it is within one block."""
    found: list[tuple[int, int]] = []
    for size, dim, (begin, end) in zip(tensor.shape, sharding_of(tensor).spec, box):
        if isinstance(dim, blocks) and dim.n > 1:
            k = size // dim.n
            i = begin // k if k else 0
            found += [(i, i + 1), (begin - i * k, end - i * k)]
        else:
            found.append((begin, end))
    return tuple(found)


def readable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with the same values, whose parts `read` reads without other processes: views and
    partial sums are computed. All processes call it, in their scripts."""
    _C.sync(True)
    found = dict(tensors)
    for key, tensor in tensors.items():
        if not is_ours(tensor) or _C.reads_alone(blocks_apart(tensor.detach())):
            continue
        sharding = sharding_of(tensor)
        found[key] = (
            reshard(tensor.detach(), sharding.mesh, sharding.spec)
            if sharding.unreduced
            else tensor.detach().clone(memory_format=torch.contiguous_format)
        )
    _C.sync(True)
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
    if not is_ours(tensor):
        part = tensor[tuple(slice(begin, end) for begin, end in box)] if tensor.dim() else tensor
        return part.cpu().resolve_conj().resolve_neg().contiguous()
    if processes.count() == 1:
        return _C.read_part(tensor, box)
    apart = blocks_apart(tensor)
    if apart is tensor:
        return _C.read_part(tensor, box)
    return _C.read_part(apart, _in_blocks(tensor, box)).view(boxes.sizes(box))


def fill(tensor: Tensor, host: Tensor) -> None:
    """Overwrites a tensor; its device and its mark stay. Requires: this process holds all of it,
    or it is not on the device."""
    global _pending
    with torch.no_grad():
        tensor.detach().copy_(host.view(tensor.shape))
    _pending += tensor.nbytes
    if _pending >= _MOST_PENDING and is_ours(tensor):
        _C.sync(True)  # otherwise the copies of many tensors would wait on the host
        _pending = 0


def fill_in_pieces(
    tensor: Tensor, pieces: Iterable[Box], read: Callable[[Box, Tensor], Tensor]
) -> None:
    """As `fill`, of a large tensor, of which `read(box, memory)` gives the parts `pieces`: no other
    is on the host at the same time, and each is written into the memory that the tensor has."""
    # The same memory for all of them: between the pieces programs are compiled and kept, in the
    # place of a piece that was freed, and the heap would grow by each.
    memory = torch.empty(_LARGE, dtype=torch.uint8)
    for number, box in enumerate(pieces):
        inside = tuple(slice(begin, end) for begin, end in box)
        with torch.no_grad():
            part = tensor.detach()[inside] if inside else tensor.detach()
            if not is_ours(tensor):
                part.copy_(read(box, memory))
                continue
            # With one more result, of a size of its own, no program is like another but for the
            # bounds of a slice. It would take them when it runs, and copy the tensor.
            different = torch.zeros(number + 1, dtype=torch.uint8, device="spmd")
            part.copy_(read(box, memory))
            _C.sync(True)
            del part, different


def is_large(nbytes: int) -> bool:
    """Whether a tensor of this size is filled in pieces."""
    return nbytes > _LARGE and processes.count() == 1


def fillable(tensor: Tensor) -> Tensor:
    """What `fill_parts` fills in place of the tensor, so that what it fills does not depend on
    other tensors of the same memory: the tensor itself, or a new one for a view. Then `put` puts it
    there. All processes call it."""
    _C.sync(True)
    if _C.reads_alone(blocks_apart(tensor.detach())):
        return tensor
    new = like(tensor, tensor.dtype)
    _C.sync(True)
    return new


def put(tensor: Tensor, filled: Tensor) -> None:
    if filled is not tensor:
        with torch.no_grad():
            tensor.detach().copy_(filled)


def fill_parts(tensor: Tensor, hosts: dict[Box, Tensor]) -> None:
    """Overwrites a tensor of which each process holds some parts, those within `hosts`. All
    processes call it."""
    mine = processes.local_devices()
    apart = blocks_apart(tensor)
    shards: dict[Box, Shard] = {}
    for device, box in _held(tensor):
        if (mine is not None and device not in mine) or boxes.elements(box) == 0:
            continue
        for region, host in hosts.items():
            if box not in shards and boxes.intersection(region, box) == box:
                within = box if apart is tensor else _in_blocks(tensor, box)
                data = host[boxes.slices(box, region)].reshape(boxes.sizes(within))
                shards[box] = Shard(data, tuple(slice(*dim) for dim in within), device, 0)
    load_local_shards_(tensor, list(shards.values()))


def like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A new tensor of that dtype with the sharding of `tensor`. What is in it does not matter."""
    return tensor.detach().to(dtype, copy=True)


def empty(shape: Sequence[int], dtype: torch.dtype, mark: str) -> Tensor:
    """A new tensor on the device, which nobody has written, with a mark that was saved."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device="spmd")
    if mark:
        _C.give_saved_mark(tensor, mark)
    return tensor
