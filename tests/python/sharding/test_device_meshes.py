# SPDX-License-Identifier: Apache-2.0
"""A DeviceMesh of "spmd": slices and ranks as examples of torch.distributed use them, and functions
that take one."""

import copy
import pickle

import job
import pytest
import torch
from processes import run_python
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import torch_spmd as spmd

PLAN = {"0": ColwiseParallel(), "1": RowwiseParallel()}


@pytest.fixture
def device_mesh():
    return init_device_mesh("spmd", (4, 2), mesh_dim_names=("dp", "tp"))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)).to("spmd")


def specs(module):
    return {name: spmd.sharding_of(p).spec for name, p in module.named_parameters()}


def test_slices(device_mesh):
    assert isinstance(device_mesh, DeviceMesh) and device_mesh["dp", "tp"] is device_mesh
    for name, devices in (("dp", [0, 2, 4, 6]), ("tp", [0, 1])):
        one = device_mesh[name]
        assert one.mesh.tolist() == devices and one.size() == len(devices)
        assert one.mesh_dim_names == (name,) and one.ndim == 1
        assert one.get_local_rank() == 0 and one.get_coordinate() == (0,)
        assert one == device_mesh[name] and one != device_mesh
    three = init_device_mesh("spmd", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    assert three["pp", "tp"].mesh.tolist() == [[0, 1], [4, 5]]
    assert three["dp", "tp"]["tp"].mesh.tolist() == [0, 1]
    flat = three["dp", "tp"]._flatten("ranks")
    assert flat.mesh.tolist() == [0, 1, 2, 3] and flat.get_local_rank() == 0
    assert three.get_local_rank("ranks") == 0
    assert device_mesh._flatten().mesh_dim_names == ("dp_tp",)
    parts = device_mesh._unflatten("dp", (2, 2), ("rep", "shard"))
    assert parts.mesh_dim_names == ("rep", "shard", "tp") and parts["shard"].size() == 2
    for made in (copy.deepcopy(device_mesh), pickle.loads(pickle.dumps(device_mesh))):
        assert made == device_mesh and made["tp"].mesh.tolist() == [0, 1]
    with pytest.raises(KeyError, match="Invalid mesh_dim_names"):
        device_mesh["pp"]
    with pytest.raises(RuntimeError, match="Cannot slice a DeviceMesh without mesh_dim_names"):
        init_device_mesh("spmd", (4, 2))["dp"]


def test_a_mesh_that_is_made_of_one(device_mesh):
    made = spmd.dtensor.to_device_mesh(spmd.make_mesh((4, 2), ("dp", "tp")))
    assert made == device_mesh and made["tp"].mesh.tolist() == [0, 1]
    assert made["dp"].get_local_rank() == 0


def test_ranks(device_mesh):
    assert device_mesh.get_rank() == 0 and device_mesh.get_coordinate() == (0, 0)
    assert [device_mesh.get_local_rank(d) for d in ("dp", "tp", 0, 1, -1)] == [0] * 5
    with pytest.raises(
        RuntimeError, match=r"get_local_rank: the DeviceMesh has 2 dimensions, \('d"
    ):
        device_mesh.get_local_rank()
    with pytest.raises(KeyError, match="Mesh dimension 'pp' does not exist"):
        device_mesh.get_local_rank("pp")
    elsewhere = DeviceMesh("spmd", [[2, 3], [4, 5]], mesh_dim_names=("dp", "tp"))
    assert elsewhere.get_coordinate() is None and elsewhere.get_local_rank("dp") == -1
    for ask in (device_mesh.get_all_groups, device_mesh["tp"].get_group):
        with pytest.raises(RuntimeError, match="a DeviceMesh of 'spmd' has no process groups"):
            ask()


def test_modules_over_slices(device_mesh):
    mesh = spmd.make_mesh((4, 2), ("dp", "tp"))
    by_slices, by_mesh = mlp(), mlp()
    spmd.tensor_parallel(by_slices, device_mesh["tp"], PLAN)
    spmd.fsdp(by_slices, device_mesh["dp"])
    spmd.tensor_parallel(by_mesh, mesh, PLAN, axis="tp")
    spmd.fsdp(by_mesh, mesh, "dp")
    assert specs(by_slices) == specs(by_mesh)
    assert specs(by_slices)["0.weight"] == spmd.P("tp", "dp")
    assert all(spmd.sharding_of(p).mesh == mesh for p in by_slices.parameters())
    x = torch.ones(8, 8, device="spmd")
    by_slices(x).sum().backward()
    whole = mlp()
    spmd.tensor_parallel(whole, device_mesh, PLAN)
    spmd.fsdp(whole, device_mesh, axis="dp")
    assert specs(whole) == specs(by_mesh)
    hybrid = mlp()
    spmd.fsdp(hybrid, device_mesh, "tp", replicate="dp")
    assert spmd.sharding_of(hybrid[0].weight).spec == spmd.P("tp", None)
    ruled = mlp()
    spmd.shard_module(ruled, device_mesh, {"*.weight": ("tp", "dp")})
    assert spmd.sharding_of(ruled[1].weight).spec == spmd.P("tp", "dp")
    with pytest.raises(ValueError, match="'data'"):
        spmd.fsdp(mlp(), device_mesh)


@pytest.mark.parametrize("axes", [("dp",), ("tp",), ("dp", "tp")])
def test_tensors_over_slices(device_mesh, axes):
    """What is sharded over a slice is replicated over the rest, on all devices."""
    spmd.integrations.dtensor()
    mesh = spmd.make_mesh((4, 2), ("dp", "tp"))
    one = device_mesh[axes]
    marked = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), one, (axes[0], None))
    placements = [Shard(0), *[Replicate()] * (len(axes) - 1)]
    for made in (
        marked,
        spmd.dtensor.distribute_tensor(torch.ones(8, 4), one, placements),
        torch.distributed.tensor.distribute_tensor(torch.ones(8, 4), one, placements),
        spmd.reshard(torch.ones(8, 4).to("spmd"), one, (axes[0], None)),
    ):
        sharding = spmd.sharding_of(made)
        assert sharding.spec == spmd.P(axes[0], None) and sharding.mesh == mesh
    with spmd.use_mesh(one):
        assert spmd.get_global_mesh() == mesh
    if len(axes) == 1:
        with pytest.raises(ValueError, match=r"2 placements were given for the 1 axes of a slice"):
            spmd.dtensor.distribute_tensor(torch.ones(8, 4), one, [Shard(0), Replicate()])


def test_slices_that_are_several_axes_or_a_part_of_one(device_mesh):
    three = init_device_mesh("spmd", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    flat = three["pp", "dp"]._flatten("batch")
    x = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), flat, ("batch", None))
    shards = {shard.device: shard.index[0].start for shard in spmd.local_shards(x)}
    assert shards == {device: device // 2 * 2 for device in range(8)}
    parts = device_mesh._unflatten("dp", (2, 2), ("rep", "shard"))
    y = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), parts["shard"], ("shard", None))
    shards = {shard.device: shard.index[0].start for shard in spmd.local_shards(y)}
    assert shards == {device: device // 2 % 2 * 4 for device in range(8)}


def test_every_function_that_takes_a_mesh(device_mesh):
    mesh = spmd.make_mesh((4, 2), ("dp", "tp"))
    assert spmd.dtensor.from_device_mesh(device_mesh) == mesh
    assert spmd.NamedSharding(device_mesh, ("dp",)) == spmd.NamedSharding(mesh, ("dp",))
    double = spmd.shard_map(lambda x: x * 2, device_mesh, (("dp",),), ("dp",))
    assert double(torch.ones(8, device="spmd")).tolist() == [2.0] * 8
    local = spmd.processes.from_process_local(torch.ones(8), device_mesh, ("dp",))
    assert spmd.sharding_of(local).spec == spmd.P("dp")
    found = spmd.planning.auto_shard(
        nn.Linear(8, 8), batch=torch.empty(8, 8), on="v5e-8", mesh=device_mesh,
        loss=lambda model, x: model(x).sum(),
    )  # fmt: skip
    assert found.mesh == {"dp": 4, "tp": 2}
    with pytest.raises(TypeError, match=r"mark_sharding: expected a Mesh, got 3 \(int\)"):
        spmd.mark_sharding(torch.ones(8, device="spmd"), 3, ("dp",))


JOB = """
import torch
import torch_spmd as spmd
from torch.distributed.device_mesh import init_device_mesh

device_mesh = init_device_mesh("spmd", (2, 4), mesh_dim_names=("dp", "tp"))
dp, tp = device_mesh["dp"], device_mesh["tp"]
process, first = spmd.processes.process_index(), spmd.processes.local_devices()[0]
assert spmd.processes.process_count() > 1 and device_mesh.get_rank() == process
assert device_mesh.get_coordinate() == divmod(first, 4)
assert device_mesh.get_local_rank("dp") == dp.get_local_rank() == first // 4
assert device_mesh.get_local_rank("tp") == tp.get_local_rank() == first % 4
assert first in dp.mesh.tolist() and first in tp.mesh.tolist()
assert dp.mesh.tolist() == [first % 4, first % 4 + 4]
x = spmd.mark_sharding(torch.arange(8.0).to("spmd"), tp, ("tp",))
assert (x * 2).sum().item() == 56
"""


@pytest.mark.parametrize("processes", [2, 4])
def test_ranks_are_those_of_the_process(processes):
    for ended in job.run(JOB, processes, 120, SPMD_NUM_DEVICES="8"):
        assert ended.code == 0, ended.err


ALONE = """
import torch
import torch.distributed as dist
import torch_spmd as spmd
from torch.distributed.device_mesh import DeviceMesh

device_mesh = dist.init_device_mesh(device_type="spmd", mesh_shape=(4, 2),
                                    mesh_dim_names=("dp", "tp"))
assert device_mesh["dp"].size() == 4 and device_mesh.get_local_rank("tp") == 0
assert DeviceMesh(mesh=[0, 1], device_type="spmd").shape == (2,)
with device_mesh["tp"]:
    x = spmd.mark_sharding(torch.ones(8, device="spmd"), device_mesh["tp"], ("tp",))
assert x.sum().item() == 8 and not dist.is_initialized()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert dist.init_device_mesh("spmd", (8,)).get_local_rank() == 0
on_host = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
assert on_host["dp"].get_group().size() == 1
"""


def test_no_line_and_no_process_group_is_needed():
    done = run_python("-c", ALONE, SPMD_NUM_DEVICES="8")
    assert done.returncode == 0, done.stderr
