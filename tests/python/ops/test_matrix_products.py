# SPDX-License-Identifier: Apache-2.0
"""Products of batches of matrices, which the device takes apart in another way than PyTorch's
kernel: values, gradients, strides, errors, and what is sent."""

import itertools

import pytest
import torch
from autograd_steps import nodes_of_regions_are_seen, steps_behind

import torch_spmd as spmd
from torch_spmd import P

SHAPES = [
    ((3, 4), (2, 4, 5)),
    ((3, 4), (2, 6, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((4,), (2, 4, 5)),
    ((3, 4), (0, 4, 5)),
    ((0, 4), (2, 4, 5)),
    ((3, 0), (2, 0, 5)),
]
GRADIENTS = list(itertools.product([True, False], repeat=2))


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("needs", GRADIENTS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_values_gradients_and_strides(shapes, needs, transposed):
    def run(device):
        leaves = [
            numbers(*shape, seed=i).to(device).requires_grad_(need)
            for i, (shape, need) in enumerate(zip(shapes, needs))
        ]
        a, b = leaves
        if transposed:  # as shards of columns lie in the whole
            b = b.transpose(0, -2).contiguous().transpose(0, -2)
        c = torch.matmul(a, b)
        if any(needs):
            c.mul(numbers(*c.shape, seed=2).to(device)).sum().backward()
        return c, [t.grad for t in leaves]

    (ours, our_gradients), (theirs, gradients) = run("spmd"), run("cpu")
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
    assert ours.stride() == theirs.stride()
    for mine, expected in zip(our_gradients, gradients):
        assert (mine is None) == (expected is None)
        if mine is not None:
            torch.testing.assert_close(mine.cpu(), expected)


@pytest.mark.parametrize("shapes", SHAPES[:3], ids=str)
def test_derivatives_of_all_kinds(shapes):
    a, b = (numbers(*shape, seed=i).to("spmd") for i, shape in enumerate(shapes))
    leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    assert torch.autograd.gradgradcheck(torch.matmul, leaves)
    tangents = (torch.ones_like(a), torch.ones_like(b))
    _, tangent = torch.func.jvp(torch.matmul, (a, b), tangents)
    host = [t.cpu() for t in (a, b, *tangents)]
    expected = host[2] @ host[1] + host[0] @ host[3]
    torch.testing.assert_close(tangent.cpu(), expected)
    # a tangent of something that requires a gradient
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(leaves[0], tangents[0])
        result = torch.autograd.forward_ad.unpack_dual(dual @ leaves[1])
    torch.testing.assert_close(result.tangent.detach().cpu(), host[2] @ host[1])
    complex_a = torch.complex(a, a + 1).requires_grad_()
    complex_b = torch.complex(b, b - 1)
    torch.testing.assert_close(
        (complex_a @ complex_b).detach().cpu(), complex_a.detach().cpu() @ complex_b.cpu()
    )


@pytest.mark.parametrize("shapes", [((3, 4), (2, 5, 6)), ((2, 3, 4), (2, 5, 6)), ((), (2, 3, 4))])
def test_errors_are_those_of_the_cpu(shapes):
    def message(device):
        a, b = (torch.ones(shape).to(device).requires_grad_() for shape in shapes)
        with pytest.raises(RuntimeError) as raised:
            torch.matmul(a, b)
        return str(raised.value)

    assert message("spmd") == message("cpu")


def test_how_products_are_recorded():
    """Two batches of equally many matrices are one op; a matrix that requires a gradient and a
    batch are four, since nothing is merged."""

    def nodes(a, b):
        names, node = [], (a @ b).grad_fn
        while node is not None and "Accumulate" not in node.name():
            names.append(node.name())
            node = node.next_functions[0][0]
        return names

    matrix, batch = (numbers(*shape).to("spmd").requires_grad_() for shape in [(4, 4), (2, 4, 4)])
    assert nodes(batch, batch) == ["BmmBackward0"]
    assert nodes(matrix, batch) == [
        "CloneBackward0",
        "TransposeBackward0",
        "LinearBackward0",
        "TransposeBackward0",
    ]
    assert "LinearBackward0" not in nodes(batch, matrix)


def test_a_matrix_and_a_batch_that_is_sharded_twice_send_nothing():
    """No dimensions are merged: a device multiplies its columns of its part of the batch."""
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    a = spmd.mark_sharding(numbers(8, 8).to("spmd"), mesh, P(None, None)).requires_grad_()
    b = spmd.mark_sharding(numbers(4, 8, 16, seed=1).to("spmd"), mesh, P("x", None, "y"))
    spmd.sync(wait=True)
    c = a @ b
    spmd.sync(wait=True)
    assert list(spmd.debug.collectives()) == []
    assert spmd.sharding_of(c).spec == P("x", None, "y")
    c.sum().backward()
    spmd.sync(wait=True)
    assert [row.kind for row in spmd.debug.collectives() if row.bytes > 64] == ["all_reduce"]
    torch.testing.assert_close(a.grad.cpu(), numbers(4, 8, 16, seed=1).sum((0, 2)).expand(8, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("needs", GRADIENTS, ids=str)
def test_a_matrix_and_lanes_of_a_region(needs, dtype):
    """The product is one step of autograd, with PyTorch's derivatives of each order and its rules
    for what is kept of the operands."""
    mesh = spmd.make_mesh((2,), ("x",))
    a, b = numbers(3, 4, dtype=dtype), numbers(4, 6, seed=1, dtype=dtype)
    product = spmd.shard_map(lambda a, b: a @ b, mesh, (P(), P(None, "x")), P(None, "x"))
    leaves = [t.to("spmd").requires_grad_(need) for t, need in zip((a, b), needs)]
    for _ in range(2):
        c = product(*leaves)
        torch.testing.assert_close(c.detach().cpu(), a @ b)
        assert c.requires_grad == any(needs)
    if not any(needs):
        return
    assert torch.autograd.gradcheck(product, leaves) and torch.autograd.gradgradcheck(
        product, leaves
    )
    with nodes_of_regions_are_seen():
        c = product(*leaves)
    assert any("LanesProduct" in name for name in steps_behind(c))
    c = product(*leaves)
    c.abs().sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        c.abs().sum().backward()

    # A factor that the gradient of the other one needs must not be overwritten.
    def overwrites(a, b):
        b = b * 1
        result = a @ b
        b.mul_(2)
        return result

    c = spmd.shard_map(overwrites, mesh, (P(), P(None, "x")), P(None, "x"))(*leaves)
    if needs[0]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            c.abs().sum().backward()
    else:
        c.abs().sum().backward()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        product(*leaves)
    assert len(packed) == sum(needs)
