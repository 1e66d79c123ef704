# SPDX-License-Identifier: Apache-2.0
"""Loaders: shardings of inputs, minibatches, what fails in them."""

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu

N = xr.global_runtime_device_count()
several = pytest.mark.skipif(N == 1, reason="one device holds all")
spec_of = torch_xla._XLAC._get_xla_sharding_spec


@pytest.fixture(autouse=True)
def spmd_is_on():
    xr.use_spmd()


def rows(rank):
    ids = ",".join(map(str, range(N)))
    return f"{{devices=[{','.join([str(N)] + ['1'] * (rank - 1))}]{ids}}}"


def load(batches, **kwargs):
    return pl.MpDeviceLoader(batches, torch_xla.device(), **kwargs)


def test_batches_are_those_of_the_loader():
    data = torch.arange(40).reshape(20, 2)
    dataset = torch.utils.data.TensorDataset(data, data[:, 0])
    loader = load(torch.utils.data.DataLoader(dataset, batch_size=8))
    assert len(loader) == 3
    for _ in range(2):  # epochs
        batches = list(loader)
        assert [tuple(x.shape) for x, _ in batches] == [(8, 2), (8, 2), (4, 2)]
        assert all(xm.is_xla_tensor(t) for batch in batches for t in batch)
        assert torch.equal(torch.cat([x.cpu() for x, _ in batches]), data)


@several
def test_one_sharding_for_tensors_of_its_rank():
    mesh = xs.get_1d_mesh("data")
    generator = xu.SampleGenerator((torch.zeros(N + 1, 3), torch.zeros(N + 1)), 2)
    loader = load(generator, input_sharding=xs.ShardingSpec(mesh, ("data", None)))
    x, y = next(iter(loader))
    assert spec_of(x) == rows(2) and spec_of(y) == "{replicated}"
    loader.close()


@several
def test_shardings_by_key():
    mesh = xs.get_1d_mesh("data")
    shardings = {
        "x": xs.ShardingSpec(mesh, ("data", None)),
        "y": xs.ShardingSpec(mesh, ("data",)),
    }
    batch = {"x": torch.zeros(8, 2), "y": torch.zeros(8)}
    [loaded] = load([batch], input_sharding=shardings)
    assert spec_of(loaded["x"]) == rows(2) and spec_of(loaded["y"]) == rows(1)
    [loaded] = load([batch])
    assert spec_of(loaded["x"]) == spec_of(loaded["y"]) == "{replicated}"
    with pytest.raises(ValueError, match="should be a dict when input sharding is a dict"):
        list(load([torch.zeros(8, 2)], input_sharding=shardings))
    with pytest.raises(KeyError, match=r"Keys: \['z'\] are missing from input_sharding"):
        list(load([{**batch, "z": torch.zeros(8)}], input_sharding=shardings))


@several
def test_minibatches():
    spec = xs.ShardingSpec(xs.get_1d_mesh("data"), ("data", None), minibatch=True)
    [x] = load([torch.zeros(2 * N, 2)], input_sharding=spec)
    assert spec_of(x) == rows(2)
    message = "the per-host batch size must be divisible by local runtime device count"
    with pytest.raises(RuntimeError, match=message):
        list(load([torch.zeros(N - 1, 2)], input_sharding=spec))
    columns = xs.ShardingSpec(xs.get_1d_mesh("data"), (None, "data"), minibatch=True)
    with pytest.raises(RuntimeError, match="only the batch dimension may be sharded"):
        list(load([torch.zeros(N, 2)], input_sharding=columns))


def test_what_the_loader_raises():
    def batches():
        yield torch.ones(2)
        raise OSError("the disk is gone")

    loader = iter(load(batches()))
    assert next(loader).tolist() == [1, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)


def test_a_loader_without_an_end_can_be_left():
    def batches():
        while True:
            yield torch.ones(2)

    loader = load(batches(), loader_prefetch_size=2)
    assert next(iter(loader)).tolist() == [1, 1]
    loader.close()


def test_specs_are_checked():
    mesh = xs.get_1d_mesh("data")
    spec = xs.ShardingSpec(mesh, ("data", None))
    assert spec.can_apply(torch.zeros(2, 2)) and not spec.can_apply(torch.zeros(2))
    assert spec.xla_spec(torch.zeros(2)) is None
    t = torch.zeros(8, 2).to("xla")
    spec.apply(t)
    assert spec_of(t) == (rows(2) if N > 1 else "{replicated}")
    with pytest.raises(AssertionError, match="not on the device"):
        spec.apply(torch.zeros(8, 2))
    with pytest.raises(AssertionError, match="at most once"):
        xs.ShardingSpec(mesh, ("data", "data"))
