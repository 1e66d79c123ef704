# SPDX-License-Identifier: Apache-2.0
"""Meshes by torch_xla's rules: over all devices, with or without names of axes."""

from __future__ import annotations

import ast
import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

import torch_spmd as spmd
from torch_spmd.torch_xla import _counts, _tiles, runtime
from torch_spmd.torch_xla._internal.utils import parse_xla_device
from torch_spmd.torch_xla._tiles import OpSharding
from torch_spmd.torch_xla.distributed.spmd import _torus

PartitionSpec = tuple[Any, ...]


class Mesh:
    """All devices, in any order, as an array with axes.

    Args:
        device_ids: every device once.
        mesh_shape: the sizes of the axes.
        axis_names: their names, or None.

    Errors: AssertionError for devices, sizes and names that do not fit each other.
    """

    device_ids: np.ndarray[Any, Any]
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...] | None

    def __init__(
        self,
        device_ids: Any,
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        ids = np.asarray(device_ids)
        devices = runtime.global_runtime_device_count()
        assert devices > 0, "This requires XLA supported device(s)."
        assert len(ids) == devices, (
            f"Number of device IDs ({len(ids)}) must match the global number of devices ({devices})"
        )
        if axis_names is not None:
            assert len(mesh_shape) == len(axis_names), (
                f"Number of axis names ({len(axis_names)}) must match mesh dimensions "
                f"({len(mesh_shape)})"
            )
            assert len(set(axis_names)) == len(axis_names), (
                f"Axis names must be unique, got: {axis_names}"
            )
        size = np.prod(mesh_shape)
        assert len(ids) == size, f"Number of device IDs ({len(ids)}) must match mesh size ({size})"
        assert len(np.unique(ids)) == len(ids), f"Device IDs must be unique, got: {ids}"
        assert all(0 <= device < size for device in ids), (
            f"Device IDs must be less than mesh size ({size}), got: {ids}"
        )
        self.device_ids, self.mesh_shape, self.axis_names = ids, mesh_shape, axis_names

    def size(self) -> int:
        return int(np.prod(self.mesh_shape))

    def shape(self) -> OrderedDict[Any, int]:
        """The sizes by name, or by position where axes have no names."""
        names = range(len(self.mesh_shape)) if self.axis_names is None else self.axis_names
        return OrderedDict(zip(names, self.mesh_shape))

    def get_logical_mesh(self) -> np.ndarray[Any, Any]:
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The position of an axis; None if there is none of this name."""
        names = tuple(self.axis_names or ())
        return names.index(name) if name in names else None

    @functools.cached_property
    def _spmd(self) -> spmd.Mesh:
        return spmd.Mesh(self.device_ids.tolist(), self.mesh_shape, self.axis_names)

    @functools.cached_property
    def _shardings(self) -> dict[PartitionSpec, OpSharding]:
        return {}

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """The sharding that a spec means on this mesh. It is kept for the next call.

        Errors: AssertionError for an axis that the mesh does not have or that occurs twice;
        ValueError for a name that it does not have or an entry of another kind.
        """
        known = self._shardings.get(partition_spec)
        if known is None:
            known = self._shardings[partition_spec] = self._op_sharding(partition_spec)
        return known

    get_op_sharding_v2 = get_op_sharding

    def _op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        axes = [self._axes(entry) for entry in partition_spec]
        used = [axis for entry in axes for axis in entry]
        assert all(0 <= axis < len(self.mesh_shape) for axis in used), (
            f"partition_spec ({partition_spec}) contains out of bound index into mesh_shape."
        )
        assert len(set(used)) == len(used), (
            f"Each device mesh dimension should appear at most once in partition_spec "
            f"{partition_spec}."
        )
        _counts.count("CreateOpSharding")
        array = _tiles.array_of(self.get_logical_mesh(), axes)
        spec = tuple(entry or None for entry in axes)
        return OpSharding.of(array, self._spmd, spec)

    def _axes(self, entry: Any) -> tuple[int, ...]:
        """The positions of the axes that an entry of a spec names."""
        if entry is None:
            return ()
        if isinstance(entry, tuple):
            assert not any(isinstance(axis, tuple) for axis in entry), (
                "Partition spec cannot contain nested tuples"
            )
            return tuple(position for axis in entry for position in self._axes(axis))
        if type(entry) is int:
            return (entry,)
        if isinstance(entry, str):
            position = self.get_axis_name_idx(entry)
            if position is None:
                raise ValueError(f"Axis name {entry} is not defined in the given mesh")
            return (position,)
        raise ValueError(f"Spec type {type(entry)} is not supported in partition spec")

    def __str__(self) -> str:
        return (
            f"{{'device_ids': {self.device_ids.tolist()}, 'mesh_shape': {self.mesh_shape}, "
            f"'axis_names': {self.axis_names}}}"
        )

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """The mesh that `str` wrote; None for another text."""
        try:
            fields = ast.literal_eval(mesh_str.replace("Mesh", ""))
            return Mesh(fields["device_ids"], fields["mesh_shape"], fields["axis_names"])
        except (ValueError, SyntaxError, KeyError, TypeError):
            return None


class HybridMesh(Mesh):
    """A mesh whose axes lie well on the tori of one or several slices.

    `ici_mesh_shape` has the sizes of the axes within a slice, `dcn_mesh_shape` those between
    slices; an axis of the mesh has their product, slices outermost. Later axes communicate more.
    Devices without coordinates, such as a CPU's, are taken in order.

    Errors: ValueError for sizes that slices or devices do not have.
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: tuple[int, ...],
        dcn_mesh_shape: tuple[int, ...] | None = None,
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        between = tuple(dcn_mesh_shape or [1] * len(ici_mesh_shape))
        assert len(ici_mesh_shape) == len(between)
        self.ici_mesh_shape, self.dcn_mesh_shape = ici_mesh_shape, between
        self.device_attributes = sorted(
            runtime.global_runtime_device_attributes(),
            key=lambda attributes: parse_xla_device(attributes["name"])[1],
        )
        several = "slice_index" in self.device_attributes[0]
        if several and np.prod(between) == 1:
            raise ValueError("Provide dcn_mesh_shape to create a mesh for multislice")
        if not several and np.prod(between) > 1:
            raise ValueError("Invalid dcn_mesh_shape for single slice mesh")
        if several:
            devices = self._of_slices(ici_mesh_shape, between)
        else:
            devices = self._of_slice(ici_mesh_shape, range(len(self.device_attributes)))
        shape = tuple(inner * outer for inner, outer in zip(ici_mesh_shape, between))
        super().__init__(devices.reshape(-1), shape, axis_names)

    def _of_slices(self, inner: Sequence[int], outer: Sequence[int]) -> np.ndarray[Any, Any]:
        slices: dict[int, list[int]] = {}
        for device, attributes in enumerate(self.device_attributes):
            slices.setdefault(attributes["slice_index"], []).append(device)
        if np.prod(outer) != len(slices):
            raise ValueError(
                f"Number of slices {len(slices)} must equal the product of dcn_mesh_shape {outer}"
            )
        meshes = [self._of_slice(inner, slices[index]) for index in sorted(slices)]
        # Dimensions (outer …, inner …) become (outer, inner) of each axis.
        rank = len(inner)
        stacked = np.stack(meshes).reshape([*outer, *inner])
        order = [d + rank * part for d in range(rank) for part in (0, 1)]
        return stacked.transpose(order).reshape([o * i for o, i in zip(outer, inner)])

    def _of_slice(self, shape: Sequence[int], devices: Sequence[int]) -> np.ndarray[Any, Any]:
        if np.prod(shape) != len(devices):
            raise ValueError(
                f"Number of devices {len(devices)} must equal the product of mesh_shape {shape}"
            )
        if "coords" not in self.device_attributes[devices[0]]:
            return np.array(devices).reshape(tuple(shape))
        coordinates = [tuple(self.device_attributes[d]["coords"]) for d in devices]
        torus = np.empty([c + 1 for c in np.max(coordinates, axis=0)], dtype=int)
        for at, device in zip(coordinates, devices):
            torus[at] = device
        return _torus.assigned(torus, shape)


_global_mesh: Mesh | None = None


def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the mesh that is used where none is given."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    return _global_mesh


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All devices along one axis."""
    count = runtime.global_runtime_device_count()
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))
