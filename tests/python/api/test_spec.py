# SPDX-License-Identifier: Apache-2.0
"""Partition specs and shardings as values."""

import pickle

import numpy as np
import pytest

import torch_spmd as spmd
from torch_spmd import UNCONSTRAINED, P
from torch_spmd.sharding.spec import is_spec


def test_entries():
    spec = P("data", None, ("x", "y"), UNCONSTRAINED, np.int64(1), ["x", 0])
    assert spec == ("data", None, ("x", "y"), UNCONSTRAINED, 1, ("x", 0))
    assert repr(spec) == "P('data', None, ('x', 'y'), UNCONSTRAINED, 1, ('x', 0))"
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert P.UNCONSTRAINED is UNCONSTRAINED


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((3.5,), "PartitionSpec: entry 0 is 3.5 (float); "),
        (("x", True), "PartitionSpec: entry 1 is True (bool); "),
        ((("x", None),), "PartitionSpec: entry 0 contains None (NoneType); "),
    ],
)
def test_bad_entries(entries, expected):
    with pytest.raises(TypeError) as raised:
        P(*entries)
    assert str(raised.value) == (
        expected + "an entry is None (not sharded), an axis name or index, a tuple of those (major "
        "first), blocks(n, axes), or UNCONSTRAINED"
    )


def test_trees_of_specs_are_distinguished_from_specs():
    assert is_spec(("x", None)) and is_spec(P()) and is_spec(["x", ("x", "y")])
    assert not is_spec([P("x"), P()]) and not is_spec({"a": P()}) and not is_spec("x")


@pytest.mark.parametrize(
    ("shape", "spec", "expected"),
    [
        ((2, 2), ("x", None), "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
        ((2, 2), (None, None), "{replicated}"),
        ((2, 2), ("y", "x"), "{devices=[2,2]0,2,1,3}"),
        ((2, 2), (("x", "y"),), "{devices=[4]0,1,2,3}"),
    ],
)
def test_xla_text(shape, spec, expected):
    mesh = spmd.make_mesh(shape, ("x", "y"))
    assert spmd.NamedSharding(mesh, spec).hlo_string() == expected


def test_shardings_are_values():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    a = spmd.NamedSharding(mesh, ("x", None), is_committed=True)
    assert a == spmd.NamedSharding(mesh, P("x", None))
    assert hash(a) == hash(spmd.NamedSharding(mesh, P("x", None)))
    assert a != spmd.NamedSharding(mesh, (None, "x"))
    assert repr(a) == "NamedSharding([x=2, y=2], P('x', None), committed)"
