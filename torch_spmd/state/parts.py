# SPDX-License-Identifier: Apache-2.0
"""The parts of tensors that this process holds, read and written part by part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _C, _compat
from torch_spmd.processes import agreement
from torch_spmd.sharding.marks import reshard, sharding_of
from torch_spmd.sharding.shards import blocks_apart
from torch_spmd.sharding.spec import blocks
from torch_spmd.state import boxes
from torch_spmd.state.boxes import Box

# Bytes of copies that wait on the host, and of a tensor that is filled in pieces.
_MOST_PENDING = 16 << 20
_LARGE = 16 << 20
_pending = 0


def is_ours(tensor: Tensor) -> bool:
    return tensor.device.type == "spmd"


def mark_text(tensor: Tensor) -> str:
    """What torch.save keeps of a mark; "" if there is none."""
    return next(iter(_compat.utils.get_tensor_metadata(tensor)), "") if is_ours(tensor) else ""


def give_mark(tensor: Tensor, text: str) -> None:
    """Marks a tensor of the host, so that its copy on the device has the mark."""
    if text:
        _C.give_saved_mark(tensor, text)


def resolved(tensor: Tensor) -> Tensor:
    """The tensor without gradients; of a view that is conjugated or negated when it is read, its
    values."""
    return tensor.detach().resolve_conj().resolve_neg()


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
    mine = agreement.local_devices()
    if not is_ours(tensor):
        found = [boxes.whole(tensor.shape)] if agreement.rank() == 0 else []
    else:
        first: dict[Box, int] = {}
        for device, box in _held(tensor):
            first.setdefault(box, device)
        found = [box for box, device in first.items() if mine is None or device in mine]
    return [box for box in found if boxes.elements(box) > 0]


def to_read(tensor: Tensor) -> list[Box]:
    """The boxes that this process needs: those of its devices, or all of a tensor elsewhere."""
    mine = agreement.local_devices()
    if not is_ours(tensor):
        return [boxes.whole(tensor.shape)]
    return list(dict.fromkeys(b for device, b in _held(tensor) if mine is None or device in mine))


def read(tensor: Tensor, box: Box) -> Tensor:
    """A contiguous copy of a part on the host. Requires: it is within one of `to_write`."""
    if not is_ours(tensor):
        part = tensor[tuple(slice(begin, end) for begin, end in box)] if tensor.dim() else tensor
        return part.cpu().resolve_conj().resolve_neg().contiguous()
    if agreement.count() == 1:
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


class Filling:
    """The parts of a tensor that this process holds, while they are filled in their own memory.

    `parts` are their boxes, and where each is in memory: what is written there becomes the tensor's
    with `put`. The memory is the tensor's own if nobody else holds it, so that what is filled is
    in memory once. Requires: the tensor is one that `fillable` returned.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._apart = blocks_apart(tensor.detach())
        self._made = _C.parts_to_fill(self._apart)
        self.parts: dict[Box, Tensor] = {}
        self._others: list[tuple[Tensor, Box]] = []  # replicas in other places
        self._written = False
        for box, tile in self._made.parts:
            for inside, memory in _out_of_blocks(tensor, box, tile):
                if inside in self.parts:
                    self._others.append((memory, inside))
                else:
                    self.parts[inside] = memory

    def write(self, box: Box, host: Tensor) -> None:
        """Writes a part of the tensor to where this process holds it."""
        self._written = True
        for inside, memory in self.parts.items():
            part = boxes.intersection(inside, box)
            if boxes.elements(part):
                memory[boxes.slices(part, inside)].copy_(host[boxes.slices(part, box)])

    def spoil(self) -> None:
        """Where the rest cannot be read, so that nobody takes what was written for a value."""
        for memory in self.parts.values():
            if self._written:
                _spoil(memory)

    def put(self) -> None:
        for memory, box in self._others:
            memory.copy_(self.parts[box])
        self.parts, self._others = {}, []
        _C.put_parts(self._apart, self._made)


def _spoil(memory: Tensor) -> None:
    if memory.is_floating_point() or memory.is_complex():
        memory.fill_(float("nan"))


def _out_of_blocks(tensor: Tensor, box: Box, tile: Tensor) -> Iterator[tuple[Box, Tensor]]:
    """A tile of `blocks_apart(tensor)` in parts that are boxes of the tensor."""
    given = iter(box)
    choices: list[list[tuple[tuple[int, int], tuple[Any, ...]]]] = []
    for size, dim in zip(tensor.shape, sharding_of(tensor).spec):
        (begin, end), n = next(given), dim.n if isinstance(dim, blocks) else 1
        if n == 1:
            choices.append([((begin, end), (slice(None),))])
            continue
        low, high = next(given)
        k = size // n
        choices.append(
            [((i * k + low, i * k + high), (i - begin, slice(None))) for i in range(begin, end)]
        )
    for chosen in itertools.product(*choices):
        index = tuple(itertools.chain.from_iterable(at for _, at in chosen))
        yield tuple(interval for interval, _ in chosen), tile[index]


def fill_in_pieces(
    tensor: Tensor, pieces: Iterable[Box], read: Callable[[Box, Tensor], Tensor]
) -> Callable[[bool], None]:
    """Overwrites the parts of a tensor that this process holds with `pieces`, of which
    `read(box, memory)` reads one: no other is on the host at the same time. Returns a function
    that ends it; it is called with whether all processes have come so far. What was overwritten of
    a tensor that cannot be read to its end is spoilt.

    Requires: the tensor is one that `fillable` returned, or not on the device."""
    filling = Filling(tensor) if is_ours(tensor) else None
    # The same memory for all of them, or the heap would grow by what is between them.
    memory = torch.empty(min(tensor.nbytes, _LARGE), dtype=torch.uint8, device="cpu")
    written = False

    def spoil() -> None:
        with torch.no_grad():
            if filling is not None:
                filling.spoil()
            elif written:
                _spoil(tensor.detach())

    try:
        with torch.no_grad():
            for box in pieces:
                part = read(box, memory)
                written = True
                if filling is not None:
                    filling.write(box, part)
                else:
                    whole = boxes.whole(tensor.shape)
                    tensor.detach()[boxes.slices(box, whole)].copy_(part)
    except BaseException:
        spoil()
        raise

    def end(all_have: bool) -> None:
        if not all_have:
            spoil()
        elif filling is not None:
            filling.put()

    return end


def is_large(nbytes: int) -> bool:
    """Whether a tensor of this size is filled in pieces in one process."""
    return nbytes > _LARGE


def fillable(tensor: Tensor) -> Tensor:
    """What is filled in pieces in place of the tensor, so that what it fills does not depend on
    other tensors of the same memory: the tensor itself, or a new one for a view. Then `put` puts it
    there. All processes call it."""
    _C.sync(True)
    lazy = tensor.is_conj() or tensor.is_neg()
    if not lazy and _C.reads_alone(blocks_apart(tensor.detach())):
        return tensor
    new = like(tensor, tensor.dtype)
    _C.sync(True)
    return new


def put(tensor: Tensor, filled: Tensor) -> None:
    if filled is not tensor:
        with torch.no_grad():
            tensor.detach().copy_(filled)


def like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A new tensor of that dtype with the sharding of `tensor`. What is in it does not matter."""
    return resolved(tensor).to(dtype, copy=True)


def empty(shape: Sequence[int], dtype: torch.dtype, mark: str) -> Tensor:
    """A new tensor on the device, which nobody has written, with a mark that was saved."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device="spmd")
    if mark:
        _C.give_saved_mark(tensor, mark)
    return tensor
