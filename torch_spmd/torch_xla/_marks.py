# SPDX-License-Identifier: Apache-2.0
"""Marks by torch_xla's rules: shardings are compared, not meshes; a replicated mark may be
overwritten; a value that is pending may be marked again."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.torch_xla import _counts, _manual, _tiles
from torch_spmd.torch_xla._tiles import OpSharding

# What `explain` says first of a tensor in these states.
UPLOADED, PENDING = "uploaded:", "pending:"

_cleared: Any = WeakTensorKeyDictionary()  # how many programs had run when a mark was cleared

_marked: Any = WeakTensorKeyDictionary()  # the tensors that `mark` has seen


def state(t: Tensor) -> str:
    """`UPLOADED` for host data, `PENDING` for a value not computed yet, "" for a stored value."""
    text = _C.explain(t)
    if not re.search(r"^(.*: )?marked .* on mesh \[", text):
        return next((state for state in (UPLOADED, PENDING) if text.startswith(state)), "")
    if not asked_of_graph([t])[1][0].startswith("%x"):
        return PENDING
    return "" if len(text.strip().splitlines()) > 1 else UPLOADED


def asked_of_graph(tensors: Sequence[Tensor]) -> tuple[str, list[str]]:
    """The text of the pending graph, and what it calls tensors: "%x0" for an input, else "%0".
    Asked by ops that are recorded and dropped, so for tensors that have a mark or are pending: a
    mark would find an input that is used already."""
    with torch.no_grad():
        asked = [t.detach().ne(0) for t in tensors]
        graph = str(_C.pending_graph())
        found = re.findall(r" = aten::ne\S*\((%\w+)", graph)
    return graph, [str(name) for name in found[-len(asked) :]] if asked else []


def marked() -> list[Tensor]:
    """The tensors that have a mark of `mark`."""
    return [t for t in _marked if spmd.sharding_of(t).is_committed]


def check(t: Any) -> Tensor:
    """Errors: RuntimeError unless it is a tensor on the device; TypeError unless it is one."""
    if not isinstance(t, Tensor):
        raise TypeError(f"expected a tensor on the device 'xla', got {type(t).__name__}")
    if t.device.type != "spmd":
        kind = t.type().rsplit(".", 1)[-1]
        raise RuntimeError(f"Input tensor is not an XLA tensor: {t.device.type.upper()}{kind}")
    return t


def text_of(t: Tensor) -> str:
    """XLA's text of a sharding: of the mark or, for a stored value, of what the compiler chose;
    "" for a value without a mark that is pending or still host data."""
    if _manual.is_manual(t):
        return _tiles.MANUAL
    sharding = spmd.sharding_of(t)
    if sharding.is_committed:
        return sharding.hlo_string()
    if state(t) or _cleared.get(t) == _C.statistics()["runs"]:
        return ""
    return sharding.hlo_string()


def sharding_of(t: Tensor) -> OpSharding | None:
    """The sharding of `text_of`; None if there is none."""
    text = text_of(t)
    if not text:
        return None
    sharding = _tiles.parse(text)
    known = spmd.sharding_of(t)
    sharding.mesh, sharding.spec = known.mesh, known.spec
    return sharding


def mark(t: Tensor, sharding: OpSharding) -> None:
    """Errors: RuntimeError for a stored tensor with another mark that shards it."""
    check(t)
    _counts.count("XlaMarkSharding")
    _marked[t] = True
    marked = spmd.sharding_of(t)
    if marked.is_committed:
        text = marked.hlo_string()
        if text == sharding.text():
            return
        if text != _tiles.REPLICATED and state(t) != PENDING:
            raise RuntimeError(
                f"Existing annotation must be cleared first: the tensor has {text}, and "
                f"{sharding.text()} was given; xs.clear_sharding(t) removes it"
            )
        spmd.clear_sharding(t)
    place(t, sharding)


def place(t: Tensor, sharding: OpSharding) -> None:
    """Marks a tensor that has no mark."""
    spmd.mark_sharding(t, *placement(sharding, t.dim()))
    _counts.settle(t)


def annotate(t: Tensor, sharding: OpSharding) -> None:
    """Marks a tensor, whatever mark it has."""
    check(t)
    spmd.clear_sharding(t)
    place(t, sharding)


def clear(t: Tensor) -> None:
    check(t)
    _manual.unmark(t)
    spmd.clear_sharding(t)
    _cleared[t] = _C.statistics()["runs"]


def placement(sharding: OpSharding, rank: int) -> tuple[spmd.Mesh, spmd.PartitionSpec]:
    """A mesh and a spec for a sharding."""
    if sharding.mesh is not None and len(sharding.spec) == rank:
        return sharding.mesh, spmd.P(*sharding.spec)
    if sharding.array is None:
        return _all_devices(spmd.config.device_count()), spmd.P(*[None] * rank)
    shape = sharding.array.shape
    mesh = spmd.Mesh(sharding.array.reshape(-1).tolist(), shape)
    return mesh, spmd.P(*(d if shape[d] > 1 else None for d in range(rank)))


@functools.cache
def _all_devices(count: int) -> spmd.Mesh:
    return spmd.make_mesh((count,), ("devices",))


def shards(t: Tensor) -> list[tuple[Tensor, Any, int, int]]:
    """(data with padding, indices or Ellipsis, device, replica) of each device, in order."""
    sharding = sharding_of(t)
    if sharding is None:
        raise RuntimeError("Tensor is not sharded: no mark, and no program has stored it")
    whole = t.detach().cpu()
    if sharding.array is None:
        return [(whole.clone(), ..., d, d) for d in range(spmd.config.device_count())]
    shape = _tiles.padded_shape(sharding, t.shape)
    result = []
    for device in sorted(sharding.array.reshape(-1).tolist()):
        part, copy = _tiles.box(sharding, device, t.shape)
        result.append((_tiles.padded(whole[tuple(part)], shape), part, device, copy))
    return result


def indices(t: Tensor) -> list[tuple[int, Any]]:
    """(replica, indices or Ellipsis) of each device, without a copy of the data."""
    sharding = sharding_of(t)
    if sharding is None:
        raise RuntimeError("Tensor is not sharded: no mark, and no program has stored it")
    if sharding.array is None:
        return [(d, ...) for d in range(spmd.config.device_count())]
    boxes = (
        _tiles.box(sharding, device, t.shape)
        for device in sorted(sharding.array.reshape(-1).tolist())
    )
    return [(copy, part) for part, copy in boxes]


def load(t: Tensor, data: list[Tensor], devices: list[str]) -> None:
    """Overwrites a sharded tensor with one padded part per device.

    Errors: RuntimeError for another number of parts or other shapes, and for a replicated tensor.
    """
    sharding = sharding_of(t)
    if sharding is None or sharding.array is None:
        raise RuntimeError("load_local_shards_: the tensor is not sharded, so it has no shards")
    if len(data) != sharding.array.size or len(set(devices)) != len(devices):
        raise RuntimeError(
            f"load_local_shards_: {len(data)} shards of {len(set(devices))} devices were given; "
            f"give one for each of the {sharding.array.size} devices"
        )
    shape = _tiles.padded_shape(sharding, t.shape)
    whole = t.new_empty(t.shape, device="cpu")
    for part, device in zip(data, devices):
        _check_part(part, shape)
        box, _ = _tiles.box(sharding, number_of(device), t.shape)
        whole[tuple(box)] = part[tuple(slice(0, s.stop - s.start) for s in box)]
    with torch.no_grad():
        t.copy_(whole)
    if not spmd.sharding_of(t).is_committed:  # the compiler had chosen it for the old values
        place(t, sharding)


def _check_part(part: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(part.shape) != tuple(shape):
        raise RuntimeError(
            f"a shard has shape {tuple(part.shape)}; with its padding every shard of this sharding "
            f"has {tuple(shape)}"
        )


def device_name(number: int) -> str:
    from torch_spmd.torch_xla import runtime

    return f"{runtime.device_type()}:{number}"


def number_of(device: str) -> int:
    return int(device.rsplit(":", 1)[-1])


def from_shards(parts: list[Tensor], sharding: OpSharding, shape: Any = None) -> Tensor:
    """A tensor on the device from one padded part per device.

    Errors: RuntimeError for another number of parts, or for a shape that they do not fill.
    """
    count = spmd.config.device_count()
    if len(parts) != count:
        raise RuntimeError(f"{len(parts)} shards were given for {count} devices; give one for each")
    rank = parts[0].dim()
    if sharding.array is not None and len(sharding.array.shape) - 1 != rank:
        raise RuntimeError(
            f"the shards have {rank} dimensions, the sharding {len(sharding.array.shape) - 1}"
        )
    tiles = sharding.tiles(rank)
    full = tuple(size * n for size, n in zip(parts[0].shape, tiles))
    wanted = full if shape is None else tuple(shape)
    fits = len(wanted) == rank and all(
        -(-size // n) == part for size, n, part in zip(wanted, tiles, parts[0].shape)
    )
    if not fits:
        raise RuntimeError(
            f"shards of shape {tuple(parts[0].shape)} with the sharding {sharding.text()} are no "
            f"tensor of shape {wanted}"
        )
    whole = parts[0].new_empty(wanted)
    if sharding.array is None:
        whole.copy_(parts[0])
    else:
        for device, part in enumerate(parts):
            _check_part(part, tuple(parts[0].shape))
            box, _ = _tiles.box(sharding, device, wanted)
            whole[tuple(box)] = part[tuple(slice(0, s.stop - s.start) for s in box)]
    result = whole.to("spmd")
    place(result, sharding)
    return result
