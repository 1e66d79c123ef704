# SPDX-License-Identifier: Apache-2.0
"""Complex numbers: gradients, random numbers, variances."""

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def test_gradient_of_a_complex_linear():
    torch.manual_seed(0)
    a, w = torch.randn(4, 6, dtype=torch.complex64), torch.randn(3, 6, dtype=torch.complex64)
    out = torch.randn(4, 3, dtype=torch.complex64)
    gradients = []
    for device in ("cpu", "spmd"):
        # Copies, because a host tensor moved to its own device is itself.
        x, y = (t.clone().to(device).requires_grad_() for t in (a, w))
        F.linear(x, y).backward(out.to(device))
        gradients.append((x.grad.cpu(), y.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_complex_random_numbers_have_two_parts():
    x = torch.randn(4000, device="spmd", dtype=torch.complex64).cpu()
    assert abs(x.real.std() - 0.5**0.5) < 0.05 and abs(x.imag.std() - 0.5**0.5) < 0.05
    y = torch.rand(4000, device="spmd", dtype=torch.complex64).cpu()
    assert abs(y.real.mean() - 0.5) < 0.05 and abs(y.imag.mean() - 0.5) < 0.05


def test_complex_variance_along_a_cut_dimension(mesh):
    torch.manual_seed(0)
    c = torch.randn(4, 6, dtype=torch.complex64)
    d = spmd.mark_sharding(c.to("spmd"), mesh, (None, "data"))
    torch.testing.assert_close(d.var(1).cpu(), c.var(1))
    torch.testing.assert_close(d.std(1).cpu(), c.std(1))
