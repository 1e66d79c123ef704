# SPDX-License-Identifier: Apache-2.0
"""`scan` and `scan_layers`, against loops on the CPU."""

import copy

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import nn
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

import torch_spmd as spmd

N = xr.global_runtime_device_count()
partitions = pytest.mark.parametrize(
    "partition", [None, default_partition, min_cut_rematerialization_partition]
)


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    torch.manual_seed(0)
    return xs.Mesh(np.arange(N), (N,), ("x",))


@partitions
def test_values_and_gradients(mesh, partition):
    init, xs_, w = torch.randn(8), torch.randn(3, 8), torch.randn(8, 8)

    def fn(carry, x):
        new = torch.tanh(carry["h"] @ w_ + x["a"])
        return {"h": new}, (new * 2, None)

    host = [t.clone().requires_grad_() for t in (init, xs_, w)]
    h, ys, w_ = host[0], [], host[2]
    for row in host[1]:
        h = torch.tanh(h @ w_ + row)
        ys.append(h * 2)
    (h.sum() + torch.stack(ys).square().sum()).backward()

    device = [t.to("xla").requires_grad_() for t in (init, xs_, w)]
    w_ = device[2]
    xs.mark_sharding(w_, mesh, ("x", None))
    carry, (stacked, nothing) = scan(fn, {"h": device[0]}, {"a": device[1]}, partition)
    assert nothing is None
    assert stacked.shape == (3, 8)
    (carry["h"].sum() + stacked.square().sum()).backward()
    torch.testing.assert_close(carry["h"].cpu(), h)
    torch.testing.assert_close(stacked.cpu(), torch.stack(ys))
    for ours, theirs in zip(device, host):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_carry_written_in_place():
    def cumsum(total, x):
        total += x
        return total, total

    init, rows = torch.zeros(1).to("xla"), torch.arange(1.0, 4.0).to("xla")
    final, sums = scan(cumsum, init, rows)
    assert (final.tolist(), sums.tolist()) == ([6.0], [[1.0], [3.0], [6.0]])
    assert init.tolist() == [0.0]


def test_what_scan_refuses():
    x = torch.ones(2, 3).to("xla")
    for arguments, said in (
        ((None, x, x), "callable"),
        ((lambda c, x: (c, x), x, ()), "none"),
        ((lambda c, x: (c, x), x, (x, x[:1])), r"leading dimension size; got \(2, 3\), \(1, 3\)"),
        ((lambda c, x: c, x, x), "must return"),
        ((lambda c, x: ((c, c), x), x, x), "structure of `init`"),
    ):
        with pytest.raises(ValueError, match=said):
            scan(*arguments)


class Layer(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.linear, self.drop = nn.Linear(size, size), nn.Dropout(0.5)

    def forward(self, x, scale):
        return self.drop(torch.tanh(self.linear(x)) * scale), scale


@partitions
@pytest.mark.parametrize("drops", [False, True])
def test_layers(mesh, partition, drops):
    """The same as the layers one by one, with their marks, gradients and random numbers."""
    net = nn.ModuleList([Layer() for _ in range(3)]).to("xla").train(drops)
    for layer in net:
        xs.mark_sharding(layer.linear.weight, mesh, ("x", None))
    other = copy.deepcopy(net)
    x, scale = torch.randn(8, 16).to("xla"), torch.tensor(2.0).to("xla")

    spmd.config.manual_seed(1)
    value = x
    for layer in net:
        value, _ = layer(value, scale)
    value.sum().backward()
    spmd.config.manual_seed(1)
    got, _ = scan_layers(other, (x, scale), partition_fn=partition)
    got.sum().backward()
    assert torch.equal(got, value)
    for a, b in zip(other.parameters(), net.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


def test_layers_that_differ():
    assert scan_layers([], 5) == 5
    with pytest.raises(ValueError, match=r"Shape mismatch for 'linear.weight' in layer 1"):
        scan_layers([Layer(), Layer(8)], torch.ones(16))
    with pytest.raises(ValueError, match=r"layer 1 has mismatched keys"):
        scan_layers([Layer(), nn.Linear(2, 2)], torch.ones(16))
