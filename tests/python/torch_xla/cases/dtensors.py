# SPDX-License-Identifier: Apache-2.0
"""DTensor's words for shardings: meshes, placements, `distribute_tensor`."""

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch.distributed.tensor import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch_xla.distributed.spmd import auto_policy
from torch_xla.distributed.spmd.api import convert_to_xla_mesh, convert_to_xla_partition_spec

import torch_spmd as spmd
from torch_spmd.torch_xla import _auto_pending

N = xr.global_runtime_device_count()
IDS = np.arange(N)


@pytest.fixture(autouse=True)
def spmd_is_on():
    xr.use_spmd()


def square():
    return (2, N // 2) if N > 1 else (1, 1)


def test_meshes():
    ids = torch.arange(N).flip(0).reshape(square())
    mesh = convert_to_xla_mesh(DeviceMesh("xla", ids, mesh_dim_names=("a", "b")))
    assert (
        mesh.shape() == dict(zip("ab", square()))
        and mesh.device_ids.tolist() == ids.flatten().tolist()
    )
    assert convert_to_xla_mesh(DeviceMesh("xla", ids)).axis_names is None
    with pytest.raises(AssertionError, match="devices"):
        convert_to_xla_mesh(DeviceMesh("xla", torch.arange(N + 1)))


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_distributed_tensors(needs_gradient, device):
    t = torch.randn(3 * N, 3, requires_grad=needs_gradient, device=device)
    mesh = DeviceMesh("xla", IDS)
    result = distribute_tensor(t, mesh, [Shard(0)])
    assert isinstance(result, xs.XLAShardedTensor) and isinstance(result, DTensor)
    assert result.placements == (Shard(0),) and result.requires_grad == needs_gradient
    assert result.local_shards[0].data.shape == (3, 3)
    assert torch.equal(result.global_tensor.detach().cpu(), t.detach().cpu())
    with pytest.raises(ValueError, match="Unsupported placement type"):
        convert_to_xla_partition_spec(t, [Partial()])
    if N > 1:
        with pytest.raises(AssertionError, match="already annotated"):
            distribute_tensor(result, mesh, [Shard(1)])


def test_modules():
    def shard(name, module, mesh):
        for parameter in module.parameters(recurse=False):
            distribute_tensor(parameter, mesh, [Shard(0)])

    seen = []
    net = distribute_module(
        nn.Linear(8, 2 * N).to("xla"), DeviceMesh("xla", IDS), shard,
        lambda module, inputs, mesh: seen.append(mesh), lambda module, outputs, mesh: outputs * 2,
    )  # fmt: skip
    x = torch.ones(2, 8, device="xla")
    expected = 2 * nn.functional.linear(x, net.weight, net.bias)
    torch.testing.assert_close(net(x).cpu(), expected.cpu())
    assert len(seen) == 1
    text = torch_xla._XLAC._get_xla_sharding_spec(net.weight)
    assert text.startswith(f"{{devices=[{N},1]") or N == 1
    with pytest.raises(ValueError, match="input_fn should take in 3 arguments, but got 1"):
        distribute_module(nn.Linear(2, 2), DeviceMesh("xla", IDS), None, lambda a: a)


@pytest.fixture
def automatic(monkeypatch):
    """Automatic sharding, which `auto_policy` turns on, ends with the test."""
    monkeypatch.setattr(_auto_pending, "_is_on", False)


@pytest.mark.skipif(N != 4, reason="is priced for 4 devices")
def test_auto_policy(automatic):
    met.clear_all()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    x = torch.randn(16384, 512)
    expected = module(x)
    expected.mean().backward()
    expected_gradient = module[0].weight.grad
    module.zero_grad()
    mesh = DeviceMesh("xla", IDS, mesh_dim_names=("data",))
    net = distribute_module(module, mesh, auto_policy)
    assert torch_xla._XLAC._xla_get_auto_sharding()
    for _ in range(2):
        given = x.to("xla")
        result = net(given)
        assert spmd.sharding_of(given).spec == spmd.P("data", None)  # data parallel pays
    result.mean().backward()
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(net[0].weight.grad.cpu(), expected_gradient)
    assert all(spmd.sharding_of(p).is_committed for p in net.parameters())
    assert met.counter_value("CompileWithAutoSharding") == 1


def test_auto_policy_where_nothing_can_be_proposed(automatic):
    class Counting(nn.Module):
        def forward(self, x):
            return (x * 2).detach()

    net = xs.xla_distribute_module(Counting(), None, auto_policy)
    with pytest.warns(UserWarning, match="auto_policy: Counting stays replicated"):
        assert net(torch.ones(3, device="xla")).tolist() == [2.0, 2.0, 2.0]


def test_placements_of_marks():
    mesh = xs.Mesh(IDS, square(), ("a", "b"))
    t = torch.ones(8, 8)
    for spec, expected in [
        ((0, None), (Shard(0), Replicate())),
        (("b", "a"), (Shard(1), Shard(0))),
        ((None, ("a", "b")), (Shard(1), Shard(1))),
        ((None, None), (Replicate(), Replicate())),
    ]:
        marked = xs.mark_sharding(t.to("xla"), mesh, spec)
        assert marked.placements == expected and marked._spec.mesh.shape == square()
        first = marked._spec
        assert marked._spec is first
        marked.invalidate_spec_cache()
        assert marked._spec is not first
    with pytest.raises(ValueError, match="Placements not available: XLAShardedTensor requires"):
        xs.XLAShardedTensor(t).placements  # noqa: B018


def test_redistributing():
    mesh = xs.Mesh(IDS, (N,))
    values = torch.randn(8, 16)
    for placement, spec in [
        (Shard(0), (0, None)),
        (Shard(1), (None, 0)),
        (Replicate(), (None, None)),
    ]:
        marked = xs.mark_sharding(values.to("xla"), mesh, (0, None))
        moved = marked.redistribute(mesh, [placement])
        assert moved.partition_spec == spec and moved.global_tensor is marked.global_tensor
        torch_xla.sync()
        assert moved.sharding_spec == mesh.get_op_sharding(spec).text()
        assert torch.equal(moved.global_tensor.cpu(), values)
        copied = moved.redistribute(mesh, [Shard(0)], async_op=True)
        assert copied.global_tensor is not moved.global_tensor
        assert moved.sharding_spec == mesh.get_op_sharding(spec).text()
    both = marked.redistribute(xs.Mesh(IDS, square()), [Shard(0), Shard(0)])
    assert both.partition_spec == ((0, 1), None)
    with pytest.raises(ValueError, match=r"Number of placements \(2\)"):
        marked.redistribute(mesh, [Shard(0), Shard(1)])
    with pytest.raises(IndexError, match="Shard dimension 2 is out of bounds"):
        marked.redistribute(mesh, [Shard(2)])
    with pytest.raises(NotImplementedError, match="Partial placement"):
        marked.redistribute(mesh, [Partial()])
