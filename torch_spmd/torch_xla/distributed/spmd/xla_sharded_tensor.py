# SPDX-License-Identifier: Apache-2.0
"""A tensor with its mesh and spec, as `xs.mark_sharding` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from torch_spmd import _compat
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _XLAC, runtime
from torch_spmd.torch_xla._sharding_type import ShardingType


@dataclass
class XLAShard:
    """A copy of what one device holds, on the host.

    `data` has the padding of the last tiles, zeros. `indices` has one slice per dimension, of the
    part without padding, or is Ellipsis if each device holds all. `replica_id` is 0 if each part
    exists once, the position among equal parts, or the device's number if each device holds all.
    """

    data: Tensor
    indices: Any
    shard_device: str
    replica_id: int

    def _without_padding(self) -> Any:
        if self.indices is Ellipsis:
            return Ellipsis
        return tuple(slice(0, part.stop - part.start) for part in self.indices)

    @property
    def unpadded_data(self) -> Tensor:
        return self.data[self._without_padding()]

    @unpadded_data.setter
    def unpadded_data(self, t: Tensor) -> None:
        self.data[self._without_padding()] = t


class XLAShardedTensor(DTensor):
    """Stands for `global_tensor`, which it shares; ops on it apply to that and return such a tensor
    again. `mesh_shape` and `partition_spec` are those of the mark, if it is the result of one."""

    global_tensor: Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: tuple[Any, ...] | None
    _mesh: Any
    _cached_spec: Any

    @staticmethod
    def __new__(
        cls,
        elem: Tensor,
        mesh_shape: Any = None,
        partition_spec: Any = None,
        *args: Any,
        requires_grad: bool = False,
        mesh: Any = None,
        **kwargs: Any,
    ) -> XLAShardedTensor:
        inner = elem.global_tensor if isinstance(elem, XLAShardedTensor) else elem
        result: XLAShardedTensor = _compat.wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
            requires_grad=requires_grad,
        )
        result.global_tensor = inner.detach() if requires_grad else inner
        given = elem if isinstance(elem, XLAShardedTensor) else None
        result.mesh_shape = mesh_shape or (given.mesh_shape if given is not None else None)
        result.partition_spec = (
            partition_spec
            if partition_spec is not None
            else (given.partition_spec if given is not None else None)
        )
        result._mesh = mesh
        result._cached_spec = None
        return result

    @property
    def local_shards(self) -> list[XLAShard]:
        """What each device holds. Runs what is pending.

        Errors: RuntimeError for a tensor without a sharding.
        """
        data = _XLAC._get_local_shards([self.global_tensor])[0]
        places = _XLAC._get_local_shard_replica_and_indices([self.global_tensor])[0]
        return [
            XLAShard(part, indices, device, replica)
            for (part, device), (replica, indices) in zip(data, places)
        ]

    def load_local_shards_(self, shards: Sequence[XLAShard]) -> None:
        """Overwrites the tensor with one shard per device, in place.

        Errors: RuntimeError for missing shards, other shapes, or a replicated tensor.
        """
        _XLAC._load_local_shards(
            self.global_tensor, [s.data for s in shards], [s.shard_device for s in shards]
        )
        self.invalidate_spec_cache()

    @property
    def sharding_spec(self) -> str:
        return _XLAC._get_xla_sharding_spec(self.global_tensor)

    @property
    def sharding_type(self) -> ShardingType | None:
        kind = _XLAC._get_xla_sharding_type(self.global_tensor)
        return None if kind is None else ShardingType(kind)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        wrappers: dict[int, XLAShardedTensor] = {}

        def unwrap(t: XLAShardedTensor) -> Tensor:
            wrappers[id(t.global_tensor)] = t
            return t.global_tensor

        def wrap(t: Tensor) -> Tensor:
            # What an op returns of its own arguments, as in-place ops do, keeps its wrapper.
            return wrappers[id(t)] if id(t) in wrappers else XLAShardedTensor(t)

        args, kwargs = pytree.tree_map_only(XLAShardedTensor, unwrap, (args, kwargs or {}))
        result = func(*args, **kwargs)
        return pytree.tree_map_only(Tensor, wrap, result)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super(DTensor, cls).__torch_function__(func, types, args, kwargs)

    @property
    def _spec(self) -> Any:
        """The sharding in DTensor's terms.

        Errors: ValueError if the tensor is not the result of a mark.
        """
        if self._cached_spec is None:
            of = self.global_tensor
            self._cached_spec = _compat.dtensor_spec(
                self._device_mesh_of(),
                self._placements_of(),
                shape=of.shape,
                stride=of.stride(),
                dtype=of.dtype,
            )
        return self._cached_spec

    @_spec.setter
    def _spec(self, value: Any) -> None:
        self._cached_spec = value

    def _device_mesh_of(self) -> DeviceMesh:
        if self.mesh_shape is None:
            raise ValueError(
                "mesh_shape must be specified to create DTensorSpec: the result of an op does not "
                "have it; use wrap_as_sharded_tensor() to set it"
            )
        ids = np.arange(runtime.global_runtime_device_count())
        if self._mesh is not None:
            ids = self._mesh.device_ids
        names = None if self._mesh is None else self._mesh.axis_names
        return DeviceMesh("xla", torch.tensor(ids.reshape(self.mesh_shape)), mesh_dim_names=names)

    def _placements_of(self) -> tuple[Placement, ...]:
        if self.partition_spec is None:
            raise ValueError(
                "partition_spec must be specified to create DTensorSpec: the result of an op does "
                "not have it; use wrap_as_sharded_tensor() to set it"
            )
        assert self.mesh_shape is not None
        placements: list[Placement] = [Replicate()] * len(self.mesh_shape)
        for dim, entry in enumerate(self.partition_spec):
            for axis in entry if isinstance(entry, tuple) else (entry,):
                if isinstance(axis, str) and self._mesh is not None:
                    axis = self._mesh.get_axis_name_idx(axis)
                if isinstance(axis, int):
                    placements[axis] = Shard(dim)
        return tuple(placements)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Errors: ValueError if the tensor is not the result of a mark."""
        try:
            return self._spec.placements
        except ValueError:
            raise ValueError(
                "Placements not available: XLAShardedTensor requires mesh_shape and partition_spec "
                "to be set. Use mark_sharding() to properly initialize sharding information."
            ) from None

    def full_tensor(self, *, grad_placements: Any = None) -> Tensor:
        """The tensor that this one stands for: it has the full shape."""
        return self.global_tensor

    def to_local(self, *, grad_placements: Any = None) -> Any:
        """Errors: NotImplementedError: there is no tensor of one process alone."""
        raise NotImplementedError(
            "to_local: one process has all devices; local_shards has what each of them holds, and "
            "full_tensor() the tensor"
        )

    def invalidate_spec_cache(self) -> None:
        self._cached_spec = None

    def redistribute(  # type: ignore[override]
        self, device_mesh: Any, placements: Sequence[Placement], *, async_op: bool = False
    ) -> XLAShardedTensor:
        """The tensor with the sharding of the placements, one for each axis of the mesh, which may
        be a DeviceMesh, too. It is this tensor, marked anew; with `async_op` a copy.

        Errors: ValueError for another number of placements, NotImplementedError for a partial sum,
        IndexError for a dimension that the tensor does not have.
        """
        if isinstance(device_mesh, DeviceMesh):
            from torch_spmd.torch_xla.distributed.spmd.api import convert_to_xla_mesh

            device_mesh = convert_to_xla_mesh(device_mesh)
        if len(placements) != len(device_mesh.mesh_shape):
            raise ValueError(
                f"Number of placements ({len(placements)}) must match mesh dimensions "
                f"({len(device_mesh.mesh_shape)})"
            )
        axes: list[list[int]] = [[] for _ in self.global_tensor.shape]
        for axis, placement in enumerate(placements):
            if isinstance(placement, Partial):
                raise NotImplementedError(
                    "Partial placement: a tensor that a user has is no partial sum; use Shard or "
                    "Replicate"
                )
            if isinstance(placement, Shard):
                if not -len(axes) <= placement.dim < len(axes):
                    raise IndexError(
                        f"Shard dimension {placement.dim} is out of bounds for a tensor with "
                        f"{len(axes)} dimensions"
                    )
                axes[placement.dim].append(axis)
        spec = tuple(
            None if not entry else entry[0] if len(entry) == 1 else tuple(entry) for entry in axes
        )
        result = self.global_tensor.clone() if async_op else self.global_tensor
        _XLAC._xla_annotate_custom_sharding(result, device_mesh.get_op_sharding(spec))
        return XLAShardedTensor(result, device_mesh.mesh_shape, spec, mesh=device_mesh)
