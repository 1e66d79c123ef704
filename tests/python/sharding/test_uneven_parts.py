# SPDX-License-Identifier: Apache-2.0
"""Devices that hold fewer rows than others, one row, or none."""

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def test_concatenated_terms_with_an_empty_part(mesh):
    x = torch.arange(16.0).view(2, 8)
    d = spmd.mark_sharding(x.to("spmd"), mesh, ("data", "model"))
    assert torch.equal(d.sum(0).roll(2).cpu(), x.sum(0).roll(2))


def test_rotated_halves_of_a_product_of_cut_operands(mesh):
    torch.manual_seed(0)
    a, w = torch.randn(2, 8), torch.randn(8, 8)
    h = a @ w
    expected = torch.cat([-h[:, 4:], h[:, :4]], 1)
    a = spmd.mark_sharding(a.to("spmd"), mesh, ("data", "model"))
    w = spmd.mark_sharding(w.to("spmd"), mesh, ("data", "model"))
    h = a @ w
    torch.testing.assert_close(torch.cat([-h[:, 4:], h[:, :4]], 1).cpu(), expected)


def test_scatter_add_with_an_empty_index_tile(mesh):
    torch.manual_seed(0)
    base, source = torch.randn(10, 5), torch.randn(5, 5)
    index = torch.randint(0, 5, (5, 5))
    cut = spmd.mark_sharding(source.to("spmd"), mesh, ("data", "model"))
    result = base.to("spmd").scatter_add(1, index.repeat(2, 1)[:5].to("spmd"), cut)
    torch.testing.assert_close(result.cpu(), base.scatter_add(1, index, source))


def test_convolution_backward_where_a_device_has_no_row():
    mesh = spmd.make_mesh((3,), ("x",))
    torch.manual_seed(0)
    x, w = torch.randn(1, 1, 6, 3), torch.randn(1, 1, 3, 3)
    gradients = []
    for device in ("cpu", "spmd"):
        a, b = (t.clone().to(device).requires_grad_() for t in (x, w))
        if device == "spmd":
            spmd.mark_sharding(a, mesh, (None, None, "x", None))
        F.conv2d(a, b, stride=(3, 1)).sum().backward()
        gradients.append((a.grad.cpu(), b.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_by_index_in_tiles_of_one_row(dtype):
    values = torch.arange(1, 11, dtype=dtype).view(5, 2) / 4
    index = torch.tensor([1, 0, 1])
    factors = torch.tensor([[2.0, 0.5, 1.5]] * 5, dtype=dtype)
    x = spmd.mark_sharding(values.to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None))
    got = x.index_reduce(1, index.to("spmd"), factors.to("spmd"), "prod")
    assert torch.equal(got.cpu(), values.index_reduce(1, index, factors, "prod"))
