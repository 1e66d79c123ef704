# SPDX-License-Identifier: Apache-2.0
"""Manual regions: tensors of which every device has a part of its own.

A tensor in a manual region has the shape of one part. Behind it is one tensor with a leading
dimension of one entry per device, sharded over all of them; an op applies to each entry
(`torch.vmap`), and a collective of the region is an op along the leading dimension.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import torch_spmd as spmd
from torch_spmd import _compat
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _tiles
from torch_spmd.torch_xla._tiles import OpSharding

_marked: Any = WeakTensorKeyDictionary()  # plain tensors that every device has as its part
_left: Any = WeakTensorKeyDictionary()  # tensors with which a region ends, with their versions


class ManualTensor(Tensor):
    """A tensor of a manual region; `parts` has those of all devices."""

    parts: Tensor
    _of: tuple[weakref.ref[Tensor], int] | None = None  # what it was made of, and its version

    @staticmethod
    def __new__(cls, parts: Tensor) -> ManualTensor:
        result: ManualTensor = _compat.wrapper_subclass(
            cls, parts.shape[1:], dtype=parts.dtype, device=parts.device
        )
        result.parts = parts
        return result

    def whole(self) -> Tensor | None:
        """Where the region begins, the tensor that this has the parts of, if it has not changed."""
        t = self._of[0]() if self._of is not None else None
        return (
            t
            if self._of is not None and t is not None and _compat.version(t) == self._of[1]
            else None
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ManualTensor({self.parts})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].parts.detach())
        flat, form = pytree.tree_flatten((args, kwargs or {}))
        places = [i for i, value in enumerate(flat) if isinstance(value, ManualTensor)]

        def of_one(*parts: Tensor) -> Any:
            values = list(flat)
            for place, part in zip(places, parts):
                values[place] = part
            its_args, its_kwargs = pytree.tree_unflatten(values, form)
            return func(*its_args, **its_kwargs)

        with torch.overrides.enable_reentrant_dispatch():  # torch.vmap is above this dispatch
            each = torch.vmap(of_one, randomness="different")(*(flat[i].parts for i in places))
        return pytree.tree_map(lambda v: cls(v) if isinstance(v, Tensor) else v, each)


def _spread(parts: Tensor) -> Tensor:
    """Marks parts so that each device holds its own."""
    count = parts.shape[0]
    mesh = spmd.make_mesh((count,), ("devices",))
    return spmd.reshard(parts, mesh, ("devices", *[None] * (parts.dim() - 1)))


def enter(t: Tensor, sharding: OpSharding) -> ManualTensor:
    """The parts of a sharded tensor, padded to equal shapes."""
    shape = _tiles.padded_shape(sharding, t.shape)
    parts = []
    for device in range(spmd.config.device_count()):
        part = t
        if sharding.array is not None:
            box, _ = _tiles.box(sharding, device, t.shape)
            part = t[tuple(slice(s.start, s.stop) for s in box)]
            missing = [size - there for size, there in zip(shape, part.shape)]
            if any(missing):
                part = torch.nn.functional.pad(part, [n for m in missing[::-1] for n in (0, m)])
        parts.append(part)
    begun = ManualTensor(_spread(torch.stack(parts)))
    begun._of = weakref.ref(t), _compat.version(t)
    return begun


def leave(t: Tensor, sharding: OpSharding, shape: Sequence[int]) -> Tensor:
    """The tensor of the given shape whose parts these are. Where copies differ, one of them counts.

    Errors: RuntimeError for a shape that the parts do not fill, or a tensor that is not manual.
    """
    t = _checked(t)
    if _tiles.padded_shape(sharding, shape) != tuple(t.shape):
        raise RuntimeError(
            f"parts of shape {tuple(t.shape)} with the sharding {sharding.text()} are no tensor of "
            f"shape {tuple(shape)}"
        )
    if sharding.array is None:
        return t.parts[0].clone()
    whole = t.parts.new_empty(tuple(shape))
    for device in sharding.array[..., 0].reshape(-1).tolist():
        box, _ = _tiles.box(sharding, device, shape)
        place = tuple(slice(s.start, s.stop) for s in box)
        whole[place] = t.parts[device][tuple(slice(0, s.stop - s.start) for s in box)]
    return whole


_REDUCTIONS = {
    "sum": lambda parts: parts.sum(0),
    "mul": lambda parts: parts.prod(0),
    "and": lambda parts: parts.all(0),
    "or": lambda parts: parts.any(0),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
}


def all_reduce(kind: str, t: Any, scale: float, groups: Sequence[Sequence[int]]) -> ManualTensor:
    """Every device of a group gets the reduction of the group's parts, times `scale`.

    Errors: RuntimeError for a tensor that is not in a manual region; KeyError for another kind.
    """
    parts = _checked(t).parts
    results = list(parts.unbind(0))
    for group in groups or [range(parts.shape[0])]:
        reduced = _REDUCTIONS[kind](parts[list(group)])
        for device in group:
            results[device] = reduced if scale == 1.0 else reduced * scale
    return ManualTensor(_spread(torch.stack(results)))


def reduce_scatter(
    kind: str, t: Any, scale: float, dim: int, count: int, groups: Sequence[Sequence[int]]
) -> ManualTensor:
    """As all_reduce; of the reduction each device of a group keeps its piece along `dim`, one of
    `count`.

    Errors: as all_reduce; RuntimeError if `count` does not divide the dimension.
    """
    reduced = all_reduce(kind, t, scale, groups)
    dim = dim % t.dim()
    if t.shape[dim] % count != 0:
        raise RuntimeError(f"{count} does not divide dimension {dim} of size {t.shape[dim]}")
    size = t.shape[dim] // count
    results = list(reduced.parts.unbind(0))
    for group in groups or [range(len(results))]:
        for position, device in enumerate(group):
            results[device] = results[device].narrow(dim, position % count * size, size)
    return ManualTensor(_spread(torch.stack(results)))


def mark(t: Tensor) -> None:
    """Says that every device's part is this tensor. Kept beside the tensor, which stays plain."""
    _marked[t] = True


def unmark(t: Tensor) -> None:
    _marked.pop(t, None)


def end_region(t: Tensor) -> None:
    """Says that a region ends with this tensor."""
    _left[t] = _compat.version(t)


def is_end(t: Tensor) -> bool:
    """Whether a region ends with this tensor, and no op in place has followed."""
    return bool(_left.get(t) == _compat.version(t))


def is_manual(t: Tensor) -> bool:
    return isinstance(t, ManualTensor) or t in _marked


def _checked(t: Any) -> ManualTensor:
    if isinstance(t, Tensor) and t in _marked:
        return ManualTensor(t.detach().expand(spmd.config.device_count(), *t.shape))
    if not isinstance(t, ManualTensor):
        raise RuntimeError(
            "the tensor is not in a manual region; xs.enable_manual_sharding begins one"
        )
    return t
