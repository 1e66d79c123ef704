# SPDX-License-Identifier: Apache-2.0
"""Normalization layers in half precision, of permuted inputs, in several programs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from processes import run_script
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(8)])
def test_norms_in_half_precision(make, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 8).to(dtype)
    norm = make().to(dtype)
    other = copy.deepcopy(norm).to("spmd")
    a, b = x.clone().requires_grad_(), x.to("spmd").requires_grad_()
    expected, result = norm(a), other(b)
    torch.testing.assert_close(result.cpu(), expected)
    expected.float().square().sum().backward()
    result.float().square().sum().backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad, atol=2e-2, rtol=2e-2)


def test_group_norm_of_a_permuted_input(mesh):
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 2, 6), torch.randn(6), torch.randn(6)
    d = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None, None))
    result = F.group_norm(d.permute(1, 2, 0), 2, w.to("spmd"), b.to("spmd"))
    torch.testing.assert_close(result.cpu(), F.group_norm(x.permute(1, 2, 0), 2, w, b))


def test_layer_norm_statistics_that_an_earlier_program_made(mesh):
    torch.manual_seed(1)
    host = [torch.randn(*size) for size in ((4, 6, 5), (5,), (5,), (4, 6, 5))]

    def gradient(device):
        x, w, b, g = (t.to(device) for t in host)
        x.requires_grad_()
        y = F.layer_norm(x, (5,), w, b)
        if device == "spmd":
            spmd.sync()  # the rest is another program
            spmd.mark_sharding(g, mesh, (None, "data", None))
        return torch.autograd.grad(y, x, g)[0].cpu()

    torch.testing.assert_close(gradient("spmd"), gradient("cpu"))


def test_statistics_of_half_types_are_those_of_the_kernels_that_run():
    """CUDA's kernels keep them in f32, also for their gradients; the CPU's in the input's type."""
    script = """
        import torch, torch_spmd as spmd
        spmd.config.set_backend("mock_tpu:v5e-8:plan")
        x = torch.randn(4, 8).bfloat16().to("spmd").requires_grad_()
        layer = torch.nn.LayerNorm(8).bfloat16().to("spmd")
        y, mean, _ = torch.native_layer_norm(x, (8,), layer.weight, layer.bias, 1e-5)
        y.float().sum().backward()
        spmd.sync()  # a call that ran on the host would ask for values, which are not there
        print(mean.dtype, x.grad.dtype)
    """
    assert run_script(script, SPMD_BACKEND="cuda").stdout == "torch.float32 torch.bfloat16\n"
    assert run_script(script).stdout == "torch.bfloat16 torch.bfloat16\n"


@pytest.mark.parametrize("cut", [("model", None), (None, "model"), ("data", "model")], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_norm_of_a_sharded_weight(mesh, cut, dim, dtype):
    torch.manual_seed(0)
    host = [torch.randn(16, 8).to(dtype), torch.randn((16, 1) if dim == 0 else (1, 8)).to(dtype)]

    def gradients(device):
        v, g = (t.clone().to(device).requires_grad_() for t in host)
        if device == "spmd":
            spmd.mark_sharding(v, mesh, cut)
        w = torch._weight_norm(v, g, dim)
        (w.float() ** 3).sum().backward()
        return w.detach(), v.grad, g.grad

    got = gradients("spmd")
    assert [spmd.sharding_of(t).spec for t in got[:2]] == [cut, cut]
    tolerance = {"rtol": 2e-2, "atol": 0.1} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close([t.cpu() for t in got], list(gradients("cpu")), **tolerance)


def test_weight_norm_of_a_layer_gathers_no_weight(mesh):
    layer = nn.Linear(64, 128, bias=False).to("spmd")
    spmd.mark_sharding(layer.weight, mesh, ("model", None))
    layer = nn.utils.parametrizations.weight_norm(layer)
    x = torch.randn(16, 64).to("spmd")
    spmd.sync(wait=True)
    y = layer(x)
    y.pow(2).mean().backward()
    spmd.sync(wait=True)
    assert spmd.sharding_of(y).spec == (None, "model")
    assert max((row.bytes for row in spmd.debug.collectives().rows), default=0) <= 64
    assert spmd.debug.memory().peak_bytes < 4 * 128 * 64
