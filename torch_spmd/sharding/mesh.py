# SPDX-License-Identifier: Apache-2.0
"""Meshes: named axes with sizes over a list of devices."""

from __future__ import annotations

import math
import sys
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch_spmd import _C, _arguments, _loading
from torch_spmd.device.backend import MOST_DEVICES

_loading.refuse_reload(__name__, globals(), "Mesh")

# More than any machine has, so that a typing error does not create a list of billions.
MOST_AXES = 64  # numpy's arrays have no more dimensions


class Mesh:
    """Named axes with sizes over a list of devices, row-major, first axis major.

    Args:
        device_ids: device numbers, in any order, all of the backend's or some; a list or an array
            of up to 1,048,576.
        mesh_shape: the sizes of up to 64 axes; their product is the number of devices.
        axis_names: one name per axis; without them the axes are called "axis0", "axis1", …
        axis_bandwidths: per axis, the bandwidth of the links along it as a multiple of the
            machine's: 0.1 if they are ten times slower, as between nodes. The compiler uses it to
            choose moves and shardings. If several meshes share devices, the smallest value that any
            of them gives applies. The default is 1 for every axis.
        backend: the name of the backend; the default is the process's.

    Immutable, comparable, hashable.

    Errors:
        TypeError: an argument of another kind, or with items of another kind.
        ValueError: the sizes do not multiply to the number of devices; duplicate or negative ids;
            a wrong number of names or repeated ones; a wrong number of bandwidths or one that is
            not a positive number; more devices than the backend has, if their number is fixed;
            another backend than the process's.

    Example:
        >>> import torch_spmd as spmd
        >>> mesh = spmd.Mesh(range(8), (2, 4), ("data", "model"))
        >>> mesh.size, mesh.shape["model"]
        (8, 4)
        >>> print(spmd.Mesh(range(8), (2, 4), ("node", "gpu"), axis_bandwidths=(0.1, 1)))
        [node=2@0.1, gpu=4] over devices 0..7
    """

    __slots__ = ("_backend", "_core", "_text")
    _core: _C.Mesh
    _backend: str
    _text: str  # the argument of ops in traced graphs

    def __init__(
        self,
        device_ids: Any,
        mesh_shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
        *,
        axis_bandwidths: Sequence[float] | None = None,
        backend: str | None = None,
    ) -> None:
        ids = _arguments.integers("Mesh", "device_ids", _flat(device_ids), most_items=MOST_DEVICES)
        sizes = _sizes("Mesh", "mesh_shape", mesh_shape)
        names, speeds = _names_and_speeds("Mesh", axis_names, axis_bandwidths)
        backend = _checked_backend(backend)
        _refuse_late_groups()
        self._set(_C.Mesh(ids, sizes, names, speeds), backend)
        _check_device_count(self._core, self._backend)

    def _set(self, core: _C.Mesh, backend: str) -> None:
        object.__setattr__(self, "_core", core)
        object.__setattr__(self, "_backend", backend)
        object.__setattr__(self, "_text", core.text())

    @classmethod
    def _of(cls, core: _C.Mesh) -> Mesh:
        """The Python object of a mesh that C++ returned."""
        mesh = cls.__new__(cls)
        mesh._set(core, _C.backend_name())
        return mesh

    @property
    def device_ids(self) -> tuple[int, ...]:
        return tuple(self._core.device_ids)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self._core.mesh_shape)

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(self._core.axis_names)

    @property
    def axis_bandwidths(self) -> tuple[float, ...]:
        """The bandwidth per axis, as a multiple of the machine's link bandwidth."""
        return tuple(self._core.axis_bandwidths)

    @property
    def backend(self) -> str:
        return self._backend

    @property
    def size(self) -> int:
        """The number of devices."""
        return _Size(self._core.size())

    @property
    def shape(self) -> OrderedDict[str, int]:
        """The axes' sizes by name, in order."""
        return _Shape(zip(self.axis_names, self.mesh_shape))

    def get_logical_mesh(self) -> Any:
        """The device ids as a numpy array of shape `mesh_shape`."""
        import numpy as np

        return np.array(self.device_ids).reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int:
        """The position of an axis. Errors: ValueError with the name that was probably meant."""
        return int(self._core.axis_index(_arguments.text("get_axis_name_idx", "name", name)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Mesh is immutable; create a new one to change {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return bool(self._core == other._core) and self._backend == other._backend

    def __hash__(self) -> int:
        return hash((hash(self._core), self._backend))

    def __str__(self) -> str:
        return str(self._core)

    def __repr__(self) -> str:
        return f"Mesh({self._core}, backend={self._backend!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _restored,
            (
                self.device_ids,
                self.mesh_shape,
                self.axis_names,
                self._backend,
                self.axis_bandwidths,
            ),
        )


class _Size(int):
    """Can be called, as `mesh.size()` of torch_spmd 0.1."""

    def __call__(self) -> int:
        _called("size")
        return int(self)


class _Shape(OrderedDict[str, int]):
    """Can be called, as `mesh.shape()` of torch_spmd 0.1."""

    def __call__(self) -> OrderedDict[str, int]:
        _called("shape")
        return OrderedDict(self)


def _called(name: str) -> None:
    text = f"torch_spmd: mesh.{name} is a property; write it without ()"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def _restored(
    device_ids: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    backend: str,
    axis_bandwidths: tuple[float, ...],
) -> Mesh:
    """Called by pickle. A process with another backend cannot have the mesh."""
    return Mesh(
        device_ids, mesh_shape, axis_names, axis_bandwidths=axis_bandwidths, backend=backend
    )


def _sizes(caller: str, name: str, sizes: Any) -> list[int]:
    return _arguments.integers(caller, name, sizes, most_items=MOST_AXES)


def _names_and_speeds(
    caller: str, axis_names: Any, axis_bandwidths: Any
) -> tuple[list[str] | None, list[float] | None]:
    names, speeds = None, None
    if axis_names is not None:
        names = _arguments.texts(caller, "axis_names", axis_names, MOST_AXES)
    if axis_bandwidths is not None:
        what = "a sequence of numbers"
        given = _arguments.items(caller, "axis_bandwidths", axis_bandwidths, what, MOST_AXES)
        speeds = [
            _arguments.number(caller, f"axis_bandwidths[{i}]", b) for i, b in enumerate(given)
        ]
    return names, speeds


def make_mesh(
    shape: Sequence[int],
    axis_names: Sequence[str],
    *,
    axis_bandwidths: Sequence[float] | None = None,
    backend: str | None = None,
) -> Mesh:
    """A mesh over the first `prod(shape)` devices of the backend, in order. The other arguments are
    as in `Mesh`.

    Errors: as `Mesh`.

    Example:
        >>> import torch_spmd as spmd
        >>> print(spmd.make_mesh((2, 4), ("data", "model")))
        [data=2, model=4] over devices 0..7
    """
    sizes = _sizes("make_mesh", "shape", shape)
    names, speeds = _names_and_speeds("make_mesh", axis_names, axis_bandwidths)
    count = math.prod(sizes) if all(size > 0 for size in sizes) else 0
    if count > MOST_DEVICES:
        raise ValueError(
            f"make_mesh: shape {_arguments.shown(tuple(sizes))} has "
            f"{_arguments.shown(count)} devices; a mesh has at most {MOST_DEVICES:,}"
        )
    return Mesh(range(count), sizes, names, axis_bandwidths=speeds, backend=backend)


def _flat(device_ids: Any) -> Any:
    if hasattr(type(device_ids), "reshape"):  # numpy arrays and tensors
        with _arguments.reading("Mesh", "device_ids"):
            return device_ids.reshape(-1)
    return device_ids


def _refuse_late_groups() -> None:
    """A process that has used the device alone cannot share it afterwards."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    if dist.get_world_size() > 1 and dist.get_backend() != "fake" and _C.works_alone():
        raise RuntimeError(
            "Mesh: this process has used the device spmd before init_process_group, and works "
            "alone since then. Call init_process_group before the first tensor is on the device; "
            "or set SPMD_DISTRIBUTED=0, with which each process works alone"
        )


def _checked_backend(backend: str | None) -> str:
    default = str(_C.backend_name())
    if backend is not None:
        backend = _arguments.text("Mesh", "backend", backend)
    if backend is not None and backend != default:
        raise ValueError(
            f"Mesh: backend {backend!r} was asked for, but this process's backend is {default!r}, "
            "and all meshes of a graph share one; call "
            f"spmd.config.set_backend({backend!r}) before the first tensor is created"
        )
    return default


def _check_device_count(core: _C.Mesh, backend: str) -> None:
    if not _C.device_count_is_a_limit():
        return
    count = int(_C.device_count())
    highest = max(core.device_ids)
    if highest >= count:
        raise ValueError(
            f"Mesh: mesh {core} needs device {highest}, but backend {backend!r} has {count} "
            f"devices (0..{count - 1}); make the mesh smaller or raise the number of devices "
            "(SPMD_NUM_DEVICES, or spmd.config.set_backend(name, devices=…))"
        )


def checked_axis(caller: str, name: str, mesh: Mesh, axis: Any) -> str:
    """The argument `name` as an axis of the mesh. Errors: TypeError; ValueError if it is none."""
    axis = _arguments.text(caller, name, axis)
    try:
        mesh.get_axis_name_idx(axis)
    except ValueError as error:
        raise ValueError(f"{caller}: {name}: {error}") from None
    return axis
