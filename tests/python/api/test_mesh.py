# SPDX-License-Identifier: Apache-2.0
"""Meshes as values, and errors for bad ones."""

import pickle
import sys

import numpy as np
import pytest
import torch
from processes import run_python

import torch_spmd as spmd
from torch_spmd._compat import core, missing
from torch_spmd.sharding.global_mesh import _KEY


def message(error, call):
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)


def test_attributes_of_a_mesh():
    mesh = spmd.Mesh(range(8), (2, 4), ("data", "model"))
    assert mesh.device_ids == tuple(range(8))
    assert mesh.mesh_shape == (2, 4)
    assert mesh.axis_names == ("data", "model")
    assert mesh.size == 8
    assert list(mesh.shape.items()) == [("data", 2), ("model", 4)]
    assert mesh.get_axis_name_idx("model") == 1
    assert mesh.get_logical_mesh().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert str(mesh) == "[data=2, model=4] over devices 0..7"
    assert repr(mesh) == "Mesh([data=2, model=4] over devices 0..7, backend='cpu')"


def test_any_order_any_part_of_the_devices():
    mesh = spmd.Mesh(np.array([[3, 1], [7, 5]]), (2, 2))
    assert mesh.device_ids == (3, 1, 7, 5)
    assert str(mesh) == "[axis0=2, axis1=2] over devices 3, 1, 7, 5"


def test_meshes_are_values():
    a = spmd.make_mesh((2, 2), ("x", "y"))
    b = spmd.Mesh([0, 1, 2, 3], (2, 2), ("x", "y"))
    assert a == b and hash(a) == hash(b)
    assert a != spmd.make_mesh((2, 2), ("y", "x"))
    assert a != spmd.Mesh([1, 0, 2, 3], (2, 2), ("x", "y"))
    assert pickle.loads(pickle.dumps(a)) == a
    assert message(AttributeError, lambda: setattr(a, "size", 3)) == (
        "Mesh is immutable; create a new one to change 'size'"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (range(6), (2, 4)),
            "Mesh: shape (2, 4) needs 8 device ids but 6 were given; give one id per device, or a "
            "shape whose product is 6",
        ),
        (
            ([0, 1, 1, 2], (4,)),
            "Mesh: device id 1 occurs twice, at positions 1 and 2; give each device once",
        ),
        (
            ([0, -1], (2,)),
            "Mesh: device id -1 at position 1 is negative; ids are numbers from 0",
        ),
        (
            (range(4), (2, 2), ("x",)),
            "Mesh: shape (2, 2) has 2 axes but 1 name was given, ('x',); give one name per axis",
        ),
        (
            (range(4), (2, 2), ("x", "x")),
            "Mesh: axes 0 and 1 are both named 'x'; names must differ",
        ),
        (
            ([], (0,)),
            "Mesh: axis 0 of shape (0,) has size 0; sizes must be at least 1",
        ),
    ],
)
def test_bad_meshes(arguments, expected):
    assert message(ValueError, lambda: spmd.Mesh(*arguments)) == expected


def test_axes_may_be_slower():
    mesh = spmd.Mesh(range(8), (2, 4), ("node", "gpu"), axis_bandwidths=(0.1, 1))
    assert mesh.axis_bandwidths == (0.1, 1.0)
    assert str(mesh) == "[node=2@0.1, gpu=4] over devices 0..7"
    assert mesh != spmd.Mesh(range(8), (2, 4), ("node", "gpu"))
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert spmd.make_mesh((2, 4), ("node", "gpu"), axis_bandwidths=(0.1, 1)) == mesh
    with pytest.raises(ValueError, match="the bandwidth of axis 0 is 0; it must be positive"):
        spmd.Mesh(range(2), (2,), ("x",), axis_bandwidths=(0,))


def test_unknown_axis():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    assert message(ValueError, lambda: mesh.get_axis_name_idx("modle")) == (
        "mesh [data=2, model=4] has no axis 'modle'; did you mean 'model'?"
    )


def test_another_backend():
    assert message(ValueError, lambda: spmd.make_mesh((2,), ("x",), backend="mock_tpu:v4-16")) == (
        "Mesh: backend 'mock_tpu:v4-16' was asked for, but this process's backend is 'cpu', and "
        "all meshes of a graph share one; call spmd.config.set_backend('mock_tpu:v4-16') before "
        "the first tensor is created"
    )


def test_a_mesh_larger_than_the_device_count(monkeypatch):
    result = run_python(
        "-c",
        "import torch_spmd as spmd\n"
        "print(spmd.config.device_count())\n"
        "spmd.make_mesh((4,), ('x',))\n"
        "spmd.make_mesh((2, 4), ('x', 'y'))\n",
        SPMD_NUM_DEVICES="4",
    )
    assert result.stdout == "4\n"
    assert result.stderr.splitlines()[-1] == (
        "ValueError: Mesh: mesh [x=2, y=4] over devices 0..7 needs device 7, but backend 'cpu' has "
        "4 devices (0..3); make the mesh smaller or raise the number of devices "
        "(SPMD_NUM_DEVICES, or spmd.config.set_backend(name, devices=…))"
    )


def test_meshes_of_any_size_without_a_device_count():
    assert spmd.make_mesh((256,), ("x",)).size == 256


def test_the_global_mesh():
    mesh = spmd.make_mesh((2,), ("x",))
    assert spmd.get_global_mesh() is None
    with spmd.use_mesh(mesh):
        assert spmd.get_global_mesh() is mesh
        with spmd.use_mesh(spmd.make_mesh((4,), ("x",))):
            assert spmd.get_global_mesh().size == 4
        assert spmd.get_global_mesh() is mesh
    assert spmd.get_global_mesh() is None


def test_no_global_mesh_leaves_nothing_in_the_threads_state():
    """Each node of a backward pass copies what is there (torch_spmd/sharding/mesh.py)."""
    seen = []

    def keys():
        seen.append(core._is_key_in_tls(_KEY))

    with spmd.use_mesh(spmd.make_mesh((2,), ("x",))):
        keys()
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda g: seen.append(spmd.get_global_mesh().size))
        (x * x).sum().backward()
    keys()
    assert seen == [True, 2, "torch._C._remove_obj_from_tls" in missing]


def test_arguments_of_the_wrong_kind_are_named():
    with pytest.raises(TypeError, match="shape must be a sequence of integers; got 8"):
        spmd.make_mesh(8, "x")
    with pytest.raises(TypeError, match="device_ids must be a sequence of integers"):
        spmd.Mesh([0.5, 1.9], (2,), ("a",))
    with pytest.raises(TypeError, match=r"\('ab',\)"):
        spmd.Mesh(range(4), (2, 2), "ab")


def test_a_sharding_knows_the_axes_of_its_mesh():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    with pytest.raises(ValueError, match="did you mean 'data'"):
        spmd.NamedSharding(mesh, spmd.P("dat"))
    with pytest.raises(ValueError, match="occurs twice"):
        spmd.NamedSharding(mesh, spmd.P("data", "data"))


def test_a_global_mesh_is_released_as_often_as_it_is_kept():
    mesh = spmd.make_mesh((8,), ("x",))
    before = sys.getrefcount(mesh), sys.getrefcount(None)
    for _ in range(1000):
        spmd.set_global_mesh(mesh)
        assert spmd.get_global_mesh() is mesh
        spmd.set_global_mesh(None)
    assert sys.getrefcount(mesh) == before[0]
    assert abs(sys.getrefcount(None) - before[1]) < 500
