# SPDX-License-Identifier: Apache-2.0
"""local_map: regions with DTensor's placements."""

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import torch_spmd as spmd
from torch_spmd import P


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 2), ("a", "b"))


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_placements(mesh):
    """Rows over one axis, the contracted dimension over the other: a partial sum."""
    x, w = numbers(4, 6), numbers(6, 8, seed=1)
    shapes = []

    def product(x, w, options):
        shapes.append((tuple(x.shape), tuple(w.shape)))
        return {"product": x @ w * options["scale"], "name": "n"}

    f = spmd.dtensor.local_map(
        product,
        out_placements=([Shard(0), Partial()], None),
        in_placements=([Shard(0), Shard(1)], [Replicate(), Shard(0)], None),
        device_mesh=mesh,
    )
    ours = [t.to("spmd").requires_grad_() for t in (x, w)]
    theirs = [t.clone().requires_grad_() for t in (x, w)]
    expected = theirs[0] @ theirs[1] * 2
    result = f(*ours, {"scale": 2})
    assert shapes == [((2, 3), (3, 8))] and result["name"] == "n"
    torch.testing.assert_close(result["product"].detach().cpu(), expected.detach())
    expected.sin().sum().backward()
    result["product"].sin().sum().backward()
    for a, b in zip(ours, theirs):  # the whole gradient, whatever devices had a part in it
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("kind", ["sum", "avg", "max", "min"])
def test_partial_results(mesh, kind):
    x = numbers(4, 3)
    f = spmd.dtensor.local_map(
        out_placements=[Partial(kind), Shard(0)],
        in_placements=([Shard(0), Shard(0)],),
        device_mesh=mesh,
    )(lambda t: t)
    reduced = {"sum": torch.sum, "avg": torch.mean, "max": torch.amax, "min": torch.amin}[kind]
    torch.testing.assert_close(f(x.to("spmd")).cpu(), reduced(x.view(2, 2, 3), 0))


def test_placements_of_arguments_are_those_that_they_have(mesh):
    x = spmd.mark_sharding(numbers(4, 6).to("spmd"), mesh, P("b", "a"))
    shapes = []
    f = spmd.dtensor.local_map(
        lambda t: shapes.append(tuple(t.shape)) or t * 2,
        out_placements=[Shard(1), Shard(0)],
        device_mesh=mesh,
    )
    torch.testing.assert_close(f(x).cpu(), numbers(4, 6) * 2)
    assert shapes == [(2, 3)]


def test_errors(mesh):
    x = spmd.mark_sharding(numbers(4, 6).to("spmd"), mesh, P("a", None))
    both, rows = [Shard(0), Shard(1)], [Shard(0), Replicate()]
    for arguments, error, message in (
        (
            {"in_placements": (both,), "out_placements": both},
            ValueError,
            r"argument 0 is sharded as P\('a', None\), and in_placements say P\('a', 'b'\);",
        ),
        (
            {"in_placements": (rows, rows), "out_placements": rows},
            ValueError,
            "in_placements has placements for 2 values, but the function was called with 1",
        ),
        (
            {"in_placements": (rows,), "out_placements": (rows, rows)},
            ValueError,
            "out_placements has placements for 2 values, but the function returned 1",
        ),
        (
            {"in_placements": (rows,), "out_placements": (None,)},
            ValueError,
            "placements for tensors and None for anything else; got None for tensor of shape",
        ),
        (
            {"in_placements": ([Shard(0)],), "out_placements": rows},
            ValueError,
            "in_placements has 1 placements for a mesh with 2 axes",
        ),
        (
            {"in_placements": (["a", "b"],), "out_placements": rows},
            TypeError,
            r"Shard\(dim\), Replicate\(\) or Partial\(\) of torch.distributed.tensor; got 'a'",
        ),
        (
            {"in_placements": ([Partial(), Shard(0)],), "out_placements": rows},
            ValueError,
            "an argument is sharded or replicated",
        ),
        (
            {"in_placements": (rows,), "out_placements": [Replicate(), Replicate()]},
            ValueError,
            "varies along axis 'a'",
        ),
    ):
        with pytest.raises(error, match=message):
            spmd.dtensor.local_map(lambda t: t * 1, device_mesh=mesh, **arguments)(x)
    moved = spmd.dtensor.local_map(
        lambda t: t * 1,
        in_placements=(both,),
        out_placements=both,
        device_mesh=mesh,
        redistribute_inputs=True,
    )
    torch.testing.assert_close(moved(x).cpu(), numbers(4, 6))
