# SPDX-License-Identifier: Apache-2.0
"""Meshes, and where their axes lie on a torus."""

import itertools
import math

import numpy as np
import pytest
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

N = xr.global_runtime_device_count()
IDS = np.arange(N)


def test_what_a_mesh_says():
    mesh = xs.Mesh(IDS, (1, N), ("a", "b"))
    assert mesh.size() == N and mesh.shape() == {"a": 1, "b": N}
    assert mesh.get_logical_mesh().tolist() == [list(range(N))]
    assert mesh.get_axis_name_idx("b") == 1 and mesh.get_axis_name_idx("c") is None
    bare = xs.Mesh(list(range(N)), (N, 1))
    assert bare.axis_names is None and bare.shape() == {0: N, 1: 1}
    again = xs.Mesh.from_str(str(mesh))
    assert str(again) == str(mesh) and xs.Mesh.from_str("no mesh") is None
    assert xs.get_1d_mesh().mesh_shape == (N,) and xs.get_1d_mesh("x").axis_names == ("x",)
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    xs.set_global_mesh(None)
    assert xs.get_global_mesh() is None


@pytest.mark.parametrize(
    ("ids", "shape", "names", "message"),
    [
        (np.arange(N + 1), (N + 1,), None, "must match the global number of devices"),
        (IDS, (2, N), None, "Number of device IDs .* must match mesh size"),
        (IDS, (1, N), ("a",), "Number of axis names .* must match mesh dimensions"),
        (IDS, (1, N), ("a", "a"), "Axis names must be unique"),
        (IDS + 1, (N,), None, "Device IDs must be less than mesh size"),
        (IDS - 1, (N,), None, "Device IDs must be less than mesh size"),
        *([(np.zeros(N, dtype=int), (N,), None, "Device IDs must be unique")] if N > 1 else []),
    ],
)
def test_wrong_meshes(ids, shape, names, message):
    with pytest.raises(AssertionError, match=message):
        xs.Mesh(ids, shape, names)


def test_a_sharding_is_made_once():
    mesh = xs.Mesh(IDS, (1, N))
    assert mesh.get_op_sharding((0, 1)) is mesh.get_op_sharding((0, 1))
    assert mesh.get_op_sharding((0, 1)) is not mesh.get_op_sharding((1, 0))


def attributes(*coordinates, slices=None):
    """The devices of a torus, or of several, numbered by their names in another order."""
    found = []
    for i, at in enumerate(coordinates):
        device = {"name": f"TPU:{i}", "coords": list(at), "core_on_chip": 0}
        if slices is not None:
            device["slice_index"] = slices[i]
        found.append(device)
    return found[::-1]


@pytest.fixture
def torus(monkeypatch):
    def set_to(found):
        monkeypatch.setattr(xr, "global_runtime_device_attributes", lambda: found)
        monkeypatch.setattr(xr, "global_runtime_device_count", lambda: len(found))

    return set_to


def test_axes_take_whole_axes_of_the_torus(torus):
    grid = list(itertools.product(range(4), range(2), range(2)))
    torus(attributes(*grid))
    mesh = xs.HybridMesh(ici_mesh_shape=(4, 4), axis_names=("data", "model"))
    where = np.array(grid)[mesh.get_logical_mesh()]
    # The last axis chooses first and takes the plane of 2 × 2.
    assert (where[:, :, 0] == np.arange(4)[:, None]).all()
    assert mesh.shape() == {"data": 4, "model": 4}


def test_axes_are_split_where_they_must(torus):
    grid = list(itertools.product(range(8), range(8), range(1)))
    torus(attributes(*grid))
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 2, 16))
    devices = mesh.get_logical_mesh()
    assert sorted(devices.reshape(-1)) == list(range(64))
    where = np.array(grid)[devices]
    for block in where.reshape(4, 16, 3):  # 16 devices are a whole line of 8 and 2 lines
        spread = [len(set(block[:, d])) for d in range(3)]
        assert math.prod(spread) == 16 and 8 in spread


def test_slices_are_outermost(torus):
    square = [(0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 0)]
    torus(attributes(*square, *square, slices=[0] * 4 + [1] * 4))
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))
    assert mesh.get_logical_mesh().tolist() == [[2, 1], [0, 3], [6, 5], [4, 7]]
    mesh = xs.HybridMesh(ici_mesh_shape=(1, 4), dcn_mesh_shape=(1, 2))
    assert (mesh.get_logical_mesh() // 4).tolist() == [[0] * 4 + [1] * 4]
    with pytest.raises(ValueError, match="Provide dcn_mesh_shape to create a mesh for multislice"):
        xs.HybridMesh(ici_mesh_shape=(2, 4))
    with pytest.raises(ValueError, match="Number of slices 2 must equal the product"):
        xs.HybridMesh(ici_mesh_shape=(2, 1), dcn_mesh_shape=(4, 1))


def test_devices_without_coordinates():
    mesh = xs.HybridMesh(ici_mesh_shape=(1, N))
    assert mesh.device_ids.tolist() == list(range(N))
    with pytest.raises(ValueError, match="Invalid dcn_mesh_shape for single slice mesh"):
        xs.HybridMesh(ici_mesh_shape=(1, 1), dcn_mesh_shape=(N, 2))
