# SPDX-License-Identifier: Apache-2.0
"""Shardings as XLA describes them: an array of devices, with one dimension for each of the tensor
and one more for copies.

    (0, None) on a mesh (2, 2)    [[[0, 1]], [[2, 3]]]    {devices=[2,1,2]0,1,2,3
                                                           last_tile_dim_replicate}
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from torch_spmd.torch_xla._sharding_type import ShardingType

REPLICATED = "{replicated}"
MANUAL = "{manual}"


class OpSharding:
    """A sharding of torch_xla: the devices of each tile.

    The arguments are torch_xla's: for TILED the array of devices; for PARTIAL the number of the
    group that holds each tile, and the devices of each group.

    `array` is None if every device holds all; `mesh` and `spec` are the torch_spmd mesh and the
    spec that it was made of, if it was.
    """

    def __init__(
        self,
        tile_assignment: Any,
        group_assignment: Any = (),
        replication_groups: Any = (),
        sharding_type: int = ShardingType.REPLICATED,
    ) -> None:
        self.type = ShardingType(sharding_type)
        self.array: np.ndarray[Any, Any] | None = None
        self.mesh: Any = None
        self.spec: Any = None
        if self.type == ShardingType.TILED:
            self.array = np.asarray(tile_assignment)[..., None]
        elif self.type == ShardingType.PARTIAL:
            groups = np.asarray(replication_groups)
            self.array = groups[np.asarray(group_assignment)]

    @classmethod
    def of(cls, array: Any, mesh: Any = None, spec: Any = None) -> OpSharding:
        """The sharding of an array of devices whose last dimension are copies, or of None."""
        sharding = cls((), (), (), ShardingType.REPLICATED)
        sharding.mesh, sharding.spec = mesh, spec
        if array is not None and math.prod(array.shape[:-1]) > 1:
            sharding.array = array
            partial = array.shape[-1] > 1
            sharding.type = ShardingType.PARTIAL if partial else ShardingType.TILED
        return sharding

    def text(self) -> str:
        """XLA's text."""
        if self.type == ShardingType.MANUAL:
            return MANUAL
        if self.array is None or math.prod(self.array.shape[:-1]) == 1:
            return REPLICATED
        partial = self.array.shape[-1] > 1
        shape = self.array.shape if partial else self.array.shape[:-1]
        sizes = ",".join(map(str, shape))
        ids = ",".join(map(str, self.array.reshape(-1).tolist()))
        return f"{{devices=[{sizes}]{ids}{' last_tile_dim_replicate' if partial else ''}}}"

    def tiles(self, rank: int) -> tuple[int, ...]:
        """The number of tiles along each dimension of a tensor."""
        return (1,) * rank if self.array is None else self.array.shape[:-1]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


_DEVICES = re.compile(r"\{devices=\[([\d,]+)\]([\d,]+)( last_tile_dim_replicate)?\}")
_IOTA = re.compile(
    r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?( last_tile_dim_replicate)?\}"
)


def parse(text: str) -> OpSharding:
    """The sharding of XLA's text, with the devices as a list or as a transposed range.

    Errors: ValueError for another text.
    """
    if text in ("", REPLICATED, "{maximal device=0}"):
        return OpSharding.of(None)
    if text == MANUAL:
        return OpSharding((), (), (), ShardingType.MANUAL)
    if found := _DEVICES.fullmatch(text):
        shape, ids, partial = found.groups()
        devices = np.array(_numbers(ids))
    elif found := _IOTA.fullmatch(text):
        shape, reshaped, order, partial = found.groups()
        sizes = _numbers(reshaped)
        devices = np.arange(math.prod(sizes)).reshape(sizes)
        if order is not None:
            devices = devices.transpose(_numbers(order))
    else:
        raise ValueError(f"sharding {text!r} is not organized as expected: it is no text of XLA's")
    array = devices.reshape(_numbers(shape))
    return OpSharding.of(array if partial else array[..., None])


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def box(sharding: OpSharding, device: int, shape: Sequence[int]) -> tuple[list[slice], int]:
    """The part of a tensor that a device holds, and which of the copies of it. Tiles have equal
    sizes, rounded up, so the last ones may be smaller or empty."""
    assert sharding.array is not None
    (*position, copy) = (int(p[0]) for p in np.nonzero(sharding.array == device))
    part = []
    for index, tiles, size in zip(position, sharding.array.shape, shape):
        step = -(-size // tiles)
        part.append(slice(min(index * step, size), min((index + 1) * step, size), 1))
    return part, copy


def padded_shape(sharding: OpSharding, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of every tile, with padding."""
    return tuple(-(-size // tiles) for size, tiles in zip(shape, sharding.tiles(len(shape))))


def padded(part: Tensor, shape: Sequence[int]) -> Tensor:
    """`part` with zeros at the end of each dimension, as a copy."""
    result = part.new_zeros(tuple(shape))
    result[tuple(slice(0, size) for size in part.shape)] = part
    return result


def array_of(
    devices: np.ndarray[Any, Any], spec: Sequence[tuple[int, ...]]
) -> np.ndarray[Any, Any]:
    """The array for a mesh's devices and, by dimension of a tensor, the mesh axes that shard it."""
    named = [axis for axes in spec for axis in axes]
    others = [axis for axis in range(devices.ndim) if axis not in named]
    sizes = [math.prod(devices.shape[axis] for axis in axes) for axes in spec]
    return devices.transpose(named + others).reshape([*sizes, -1])
