# SPDX-License-Identifier: Apache-2.0
"""FSDPv2, wrap policies, checkpointing of modules, gradients over micro-batches."""

import copy
import functools

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, checkpoint_module
from torch_xla.distributed.fsdp.wrap import (
    always_wrap_policy,
    lambda_auto_wrap_policy,
    recursive_wrap,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

import torch_spmd as spmd

N = xr.global_runtime_device_count()
several = pytest.mark.skipif(N < 4, reason="needs four devices")
spec_of = torch_xla._XLAC._get_xla_sharding_spec


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    xs.set_global_mesh(None)
    torch.manual_seed(0)
    return xs.Mesh(np.arange(N), (N, 1), ("fsdp", "tensor"))


def model():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def losses(net, device, mesh=None, spec=("fsdp", None), steps=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for step in range(steps):
        x = torch.randn(16, 16, generator=torch.Generator().manual_seed(step)).to(device)
        if mesh is not None:
            xs.mark_sharding(x, mesh, spec)
        loss = net(x).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_training_is_that_of_the_module(mesh):
    plain = model()
    wrapped = copy.deepcopy(plain)
    wrapped[0], wrapped[2] = FSDPv2(wrapped[0], mesh=mesh), FSDPv2(wrapped[2], mesh=mesh)
    wrapped = FSDPv2(wrapped, mesh=mesh)
    assert xm.is_xla_tensor(wrapped[0].weight)
    expected = losses(plain, "cpu")
    assert np.allclose(losses(wrapped, "xla", mesh), expected, atol=1e-5)
    if N > 1:
        kinds = {row.kind for row in spmd.debug.collectives(step=True)}
        assert kinds  # weights are gathered or their products added up, and gradients reduced
        ids = ",".join(map(str, range(N)))
        assert spec_of(wrapped[0].weight) == f"{{devices=[1,{N}]{ids}}}"  # the largest dimension
        out = wrapped(torch.ones(16, 16).to("xla"))
        assert spec_of(out) == f"{{devices=[{N},1]{ids}}}"


@several
def test_a_second_axis_of_the_batch(mesh):
    both = xs.Mesh(np.arange(N), (2, N // 2, 1), ("data", "fsdp", "tensor"))
    plain = model()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    wrapped = FSDPv2(
        copy.deepcopy(plain), mesh=both, auto_wrap_policy=policy, extra_data_axis="data"
    )
    assert wrapped[0]._extra_data_axis == "data"
    order = ",".join(map(str, np.arange(N).reshape(2, -1).T.reshape(-1)))
    text = f"{{devices=[1,{N // 2},2]{order} last_tile_dim_replicate}}"
    assert spec_of(wrapped[0].weight) == text
    spec = (("data", "fsdp"), None)
    assert np.allclose(losses(wrapped, "xla", both, spec), losses(plain, "cpu"), atol=1e-5)
    with pytest.raises(ValueError, match="The provided ddp axis is not in the mesh"):
        FSDPv2(model(), mesh=both, extra_data_axis="ddp")


def test_which_modules_are_wrapped(mesh):
    def wrapped_by(policy, net):
        FSDPv2(net, mesh=mesh, auto_wrap_policy=policy)
        return [type(child).__name__ for child in net]

    linear = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: type(m) is nn.Linear)
    fsdp = "SpmdFullyShardedDataParallel"
    assert wrapped_by(linear, model()) == [fsdp, "ReLU", fsdp]
    assert wrapped_by(always_wrap_policy, model()) == [fsdp] * 3
    large = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    assert wrapped_by(large, model()) == [fsdp, "ReLU", "Linear"]
    kept = FSDPv2(
        model(), mesh=mesh, auto_wrap_policy=linear, auto_wrapper_callable=lambda m, **kwargs: m
    )
    assert [type(child).__name__ for child in kept.module] == ["Linear", "ReLU", "Linear"]
    inner = model()
    inner[0] = FSDPv2(inner[0], mesh=mesh)
    with pytest.raises(ValueError, match="to NOT be SpmdFullyShardedDataParallel"):
        FSDPv2(inner, mesh=mesh, auto_wrap_policy=linear)
    _, count = recursive_wrap(model(), linear, lambda m, **kwargs: m, [], [])
    assert count == 16 * 8 + 8 + 8 * 4 + 4


def test_wrong_uses(mesh):
    with pytest.raises(ValueError, match="No mesh is provided and no global mesh is set"):
        FSDPv2(model())
    xs.set_global_mesh(mesh)
    assert FSDPv2(model())._mesh is mesh
    with pytest.raises(RuntimeError, match="already wrapped"):
        FSDPv2(FSDPv2(model()))
    with pytest.raises(RuntimeError, match="must define a `forward`"):
        FSDPv2(nn.ModuleList([nn.Linear(2, 2)]))
    for names in (("data", "tensor"), None):
        with pytest.raises(ValueError, match="must have an axis named 'fsdp'"):
            FSDPv2(model(), mesh=xs.Mesh(np.arange(N), (N, 1), names))

    class Many(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(RuntimeError, match="The output type is not supported"):
        FSDPv2(Many())(torch.ones(8, 2).to("xla"))

    def shard_output(output, its_mesh):
        xs.mark_sharding(output["x"], its_mesh, ("fsdp", None))

    x = FSDPv2(Many(), shard_output=shard_output)(torch.ones(8, 2, device="xla") * 2)["x"]
    assert N == 1 or spec_of(x).startswith(f"{{devices=[{N},1]")


def test_checkpointed_modules():
    plain = model()
    again = copy.deepcopy(plain)
    again[0] = checkpoint_module(again[0])
    assert np.allclose(losses(again.to("xla"), "xla"), losses(plain, "cpu"), atol=1e-5)


def test_gradients_over_micro_batches():
    net = model().to("xla")
    data, target = torch.randn(4, 8, 16).to("xla"), torch.randn(4, 8, 4).to("xla")

    def step(x, y, seen):
        return (net(x) - y).square().mean(), seen + 1

    loss, seen = gradient_accumulation(step, (data, target), net, torch.zeros(1, device="xla"))
    assert seen.item() == 4
    gradient = net[0].weight.grad.cpu()
    net.zero_grad()
    whole = (net(data.reshape(32, 16)) - target.reshape(32, 4)).square().mean()
    whole.backward()
    torch.testing.assert_close(loss.cpu(), whole.detach().cpu())
    torch.testing.assert_close(gradient, net[0].weight.grad.cpu())
    with pytest.raises(ValueError, match="one size along dimension 0"):
        gradient_accumulation(step, (data, target[:2]), net)


def test_fsdp_of_processes_shards_over_all_devices():
    """Over all devices of the one process, with the losses of the module on the CPU."""
    expected = losses(model(), "cpu")
    torch.manual_seed(0)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    net = XlaFullyShardedDataParallel(
        model(), flatten_parameters=True, sharding_groups=None, auto_wrap_policy=policy
    )
    assert isinstance(net.module[0], XlaFullyShardedDataParallel)
    assert losses(net, "xla") == pytest.approx(expected, rel=1e-5)
    if N > 1:
        assert spmd.local_shards(net.module[0].weight)[0].data.numel() * N == 128
    net(torch.ones(16, 16, device="xla")).sum().backward()
    assert net.clip_grad_norm_(1.0) > 1.0
    norms = torch.stack([p.grad.norm() for p in net.parameters()])
    assert norms.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_fsdp_of_processes_from_meta_and_in_half():
    with torch.device("meta"):
        net = model()
    net = XlaFullyShardedDataParallel(net, compute_dtype=torch.bfloat16)
    assert net(torch.ones(8, 16, device="xla")).dtype == torch.bfloat16
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert {p.device.type for p in net.parameters()} == {"spmd"}


def test_fsdp_of_processes_refuses():
    with pytest.raises(ValueError, match=r"spmd\.fsdp"):
        XlaFullyShardedDataParallel(model(), sharding_groups=[[0]])
    with pytest.raises(TypeError, match="no option 'shard'"):
        XlaFullyShardedDataParallel(model(), shard=True)
    with pytest.raises(RuntimeError, match="already wrapped"):
        XlaFullyShardedDataParallel(XlaFullyShardedDataParallel(model()))
    with pytest.raises(RuntimeError, match="forward"):
        XlaFullyShardedDataParallel(nn.ModuleList([nn.Linear(2, 2)]))
