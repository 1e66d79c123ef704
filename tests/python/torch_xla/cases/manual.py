# SPDX-License-Identifier: Apache-2.0
"""Manual regions and their collectives, against the same arithmetic on parts."""

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

N = xr.global_runtime_device_count()
XLAC = torch_xla._XLAC


@pytest.fixture(autouse=True)
def mesh():
    xr.use_spmd()
    xs.set_global_mesh(xs.Mesh(np.arange(N), (1, N), ("a", "b")))
    yield xs.get_global_mesh()
    xs.set_global_mesh(None)


def test_ops_apply_to_parts():
    x = torch.arange(8.0 * N).reshape(8, N)
    part = xs.enable_manual_sharding(x.to("xla"), (None, "b"))
    assert part.shape == (8, 1) and part.sharding_spec == "{manual}"
    assert part.sharding_type == xs.ShardingType.MANUAL
    # A sum over a part is over the device's own columns.
    changed = part - part.sum(0, keepdim=True)
    full = xs.disable_manual_sharding(changed, (None, "b"), x.shape)
    torch.testing.assert_close(full.global_tensor.cpu(), x - x.sum(0, keepdim=True))
    assert full.sharding_spec == xs.get_global_mesh().get_op_sharding((None, "b")).text()


def test_texts_of_regions(mesh):
    x = torch.ones(8, N).to("xla")
    part = xs.enable_manual_sharding(x, (None, "b")).global_tensor
    call = '), custom_call_target="SPMDFullToShardShape", sharding={manual}'
    text = XLAC._get_xla_tensors_hlo([part])
    assert f"%custom-call.2 = f32[8,1]{{1,0}} custom-call(f32[8,{N}]{{1,0}} %p0.1{call}" in text
    assert XLAC._get_xla_tensors_hlo([part + 1]).count(call) == 1
    x += 1  # the part is still one of the ones
    assert f"%p0.1{call}" not in XLAC._get_xla_tensors_hlo([part])
    full = xs.disable_manual_sharding(part, (None, "b"), x.shape).global_tensor
    placed = xs.get_global_mesh().get_op_sharding((None, "b")).text()
    end = f'custom_call_target="SPMDShardToFullShape", sharding={placed}\n}}'
    assert end in XLAC._get_xla_tensors_hlo([full])
    full.mul_(2)
    assert "ShardToFull" not in XLAC._get_xla_tensors_hlo([full])
    assert full.sum().item() == 16 * N


def test_uneven_parts():
    x = torch.arange(2.0 * N + 1)
    part = xs.enable_manual_sharding(x.to("xla"), ("b",))
    assert part.shape == (-(-(2 * N + 1) // N),)
    full = xs.disable_manual_sharding(part * 2, ("b",), x.shape)
    assert torch.equal(full.global_tensor.cpu(), 2 * x)
    with pytest.raises(RuntimeError, match="are no tensor of shape"):
        xs.disable_manual_sharding(part, ("b",), (1000,))


@pytest.mark.parametrize("groups", ["all", "pairs"])
@pytest.mark.parametrize(("kind", "of"), [(xm.REDUCE_SUM, "sum"), (xm.REDUCE_MAX, "amax")])
def test_all_reduce(groups, kind, of):
    size = N if groups == "all" or N == 1 else 2
    lists = np.arange(N).reshape(-1, size).tolist()
    x = torch.randn(4 * N)
    part = xs.enable_manual_sharding(x.to("xla"), ("b",)).global_tensor
    result = XLAC._xla_spmd_all_reduce(kind, part, 0.5, lists)
    full = xs.disable_manual_sharding(result, ("b",), x.shape).global_tensor
    each = getattr(x.reshape(N // size, size, 4), of)(1, keepdim=True)
    expected = 0.5 * each.expand(-1, size, -1).reshape(-1)
    torch.testing.assert_close(full.cpu(), expected)


@pytest.mark.parametrize("dim", [0, -1])
def test_reduce_scatter(dim):
    x = torch.ones(8, 8)
    part = xs.enable_manual_sharding(x.to("xla"), (None, None)).global_tensor
    result = XLAC._xla_spmd_reduce_scatter(xm.REDUCE_SUM, part, 1.0, dim, N, [list(range(N))])
    sizes = [8, 8]
    sizes[dim] //= N
    assert result.shape == tuple(sizes) and (result.parts.cpu() == N).all()
    with pytest.raises(RuntimeError, match="does not divide dimension"):
        XLAC._xla_spmd_reduce_scatter(xm.REDUCE_SUM, part, 1.0, dim, 3, [])


def test_what_is_not_manual():
    x = torch.zeros(3, 2).to("xla")
    with pytest.raises(RuntimeError, match="Marking any data tensors as manual is not supported"):
        xs._mark_manual_sharding(x)
    with pytest.raises(RuntimeError, match="Input tensor is not sharded"):
        XLAC._spmd_full_to_shard_shape(x)
    sharding = XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)
    with pytest.raises(RuntimeError, match="Input tensor is not manual sharded"):
        XLAC._spmd_shard_to_full_shape(x, sharding, x.shape, x.dtype)
    with pytest.raises(RuntimeError, match="is not in a manual region"):
        XLAC._xla_spmd_all_reduce(xm.REDUCE_SUM, x, 1.0, [])
    marked = xs._mark_manual_sharding(x + 1)
    assert marked.sharding_spec == "{manual}"
    full = XLAC._spmd_shard_to_full_shape(marked.global_tensor, sharding, x.shape, x.dtype)
    assert torch.equal(full.cpu(), torch.ones(3, 2))
    xs.set_global_mesh(None)
    with pytest.raises(AttributeError):
        xs.enable_manual_sharding(x, (None, None))
