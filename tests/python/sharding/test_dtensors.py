# SPDX-License-Identifier: Apache-2.0
"""DTensors and device meshes, to and from: against PyTorch's own `distribute_tensor`, rank by rank.

A fake process group stands for the group of a job; it has any rank, and no other rank's values.
"""

import itertools
import math

import job
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch_spmd as spmd
from torch_spmd import P, blocks

spmd.integrations.dtensor()
torch_distribute = torch.distributed.tensor.distribute_tensor


class rank:
    """`with rank(r, n):` this process is rank r of a fake group of n."""

    def __init__(self, rank, size):
        self.arguments = {"rank": rank, "world_size": size}

    def __enter__(self):
        torch.ones(1, device="spmd").item()  # the device is there before the group
        dist.init_process_group("fake", store=FakeStore(), **self.arguments)

    def __exit__(self, *error):
        dist.destroy_process_group()


def specs(names, dims):
    """All specs of `dims` dimensions over any of the axes, in every order."""
    entries = [None, *names, *itertools.permutations(names, 2), *itertools.permutations(names, 3)]
    entries += [blocks(3, entry) for entry in entries if entry is not None]

    def axes(entry):
        inner = entry.axes if isinstance(entry, blocks) else entry
        return () if inner is None else inner if isinstance(inner, tuple) else (inner,)

    for spec in itertools.product(entries, repeat=dims):
        used = [axis for entry in spec for axis in axes(entry)]
        if len(set(used)) == len(used):
            yield P(*spec)


def test_every_spec_and_every_rank_holds_what_pytorch_gives_it():
    names, sizes = ("a", "b", "c"), (2, 3, 2)
    mesh = spmd.make_mesh(sizes, names)
    full = torch.arange(72 * 36).reshape(72, 36)  # three blocks of 2·3·2 parts
    dtensors = {spec: [] for spec in specs(names, 2)}
    marked = {spec: spmd.mark_sharding(full.to("spmd"), mesh, spec) for spec in dtensors}
    for r in range(12):
        with rank(r, 12):
            device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
            for spec, t in marked.items():
                d = spmd.dtensor.to_dtensor(t)
                assert d.device_mesh == device_mesh and d.shape == full.shape
                want = torch_distribute(full, device_mesh, d.placements, src_data_rank=None)
                assert torch.equal(d.to_local(), want.to_local()), (spec, d.placements, r)
                if r == 0:
                    again = spmd.dtensor.distribute_tensor(full, mesh, d.placements)
                    assert spmd.sharding_of(again).spec == spec
    assert len(dtensors) == 133


@pytest.mark.parametrize("shape", [(10, 7), (5, 3), (1, 2)])
def test_uneven_parts_are_those_of_pytorch(shape):
    mesh = spmd.make_mesh((2, 4), ("a", "b"))
    full = torch.arange(math.prod(shape)).reshape(shape)
    for spec in (P("b", "a"), P(("a", "b"), None), P(("b", "a"), None), P(None, ("b", "a"))):
        t = spmd.mark_sharding(full.to("spmd"), mesh, spec)
        for r in range(8):
            with rank(r, 8):
                d = spmd.dtensor.to_dtensor(t)
                want = torch_distribute(full, d.device_mesh, d.placements, src_data_rank=None)
                assert torch.equal(d.to_local(), want.to_local()), (spec, r)


def test_meshes():
    mesh = spmd.Mesh([3, 1, 0, 2], (2, 2), ("x", "y"))
    there = spmd.dtensor.to_device_mesh(mesh)
    assert there.device_type == "spmd" and there.mesh.tolist() == [[3, 1], [0, 2]]
    assert spmd.dtensor.from_device_mesh(there) == mesh
    assert spmd.dtensor.from_device_mesh(init_device_mesh("spmd", (2, 4))).axis_names == (
        "axis0",
        "axis1",
    )
    with pytest.raises(TypeError, match=r"^to_device_mesh: mesh must be a Mesh; got 3 \(int\)$"):
        spmd.dtensor.to_device_mesh(3)
    with pytest.raises(TypeError, match=r"^from_device_mesh: device_mesh must be a DeviceMesh"):
        spmd.dtensor.from_device_mesh(mesh)


@pytest.mark.parametrize("kind", ["mesh", "device mesh", "torch's function", "torch's and a mesh"])
def test_distribute_tensor(kind):
    mesh = spmd.make_mesh((2, 4), ("a", "b"))
    device_mesh = init_device_mesh("spmd", (2, 4), mesh_dim_names=("a", "b"))

    def distribute(t, placements=None):
        if kind.startswith("torch's"):
            given = mesh if kind.endswith("mesh") else device_mesh
            return torch_distribute(t, given, placements)
        return spmd.dtensor.distribute_tensor(
            t, mesh if kind == "mesh" else device_mesh, placements
        )

    weight = torch.nn.Parameter(torch.randn(24, 8))
    w = distribute(weight, [Shard(-1), _StridedShard(0, split_factor=3)])
    assert isinstance(w, torch.nn.Parameter) and w.is_leaf and w.requires_grad
    assert spmd.sharding_of(w).spec == P(blocks(3, "b"), "a")
    assert spmd.sharding_of(w).mesh == mesh and torch.equal(w.cpu(), weight)
    x = torch.randn(8, 8, requires_grad=True)
    distribute(x * 2, [Shard(0), Replicate()]).sum().backward()
    assert torch.equal(x.grad, torch.full((8, 8), 2.0))
    assert spmd.sharding_of(distribute(torch.ones(3))).spec == P(None)


def test_what_is_refused():
    mesh = spmd.make_mesh((2, 4), ("a", "b"))
    t = torch.ones(8, 8)

    def refused(text, *placements):
        with pytest.raises(ValueError) as error:
            spmd.dtensor.distribute_tensor(t, mesh, placements)
        assert str(error.value) == f"distribute_tensor: {text}"

    refused(
        "1 placements were given for the 2 axes of mesh [a=2, b=4] over devices 0..7; give one per "
        "axis",
        Shard(0),
    )
    refused(
        "placements[1] is Partial(sum) (Partial); a mark is made of Shard, _StridedShard and "
        "Replicate, partial sums are the compiler's",
        Shard(0),
        Partial(),
    )
    refused("placements[0] is Shard(dim=2), and the tensor has 2 dimensions", Shard(2), Replicate())
    refused(
        "placements (_StridedShard(dim=0, sf=3), Shard(dim=0)) split dimension 0 3 times before "
        "axis 'a', which no order of axes or blocks of mesh [a=2, b=4] over devices 0..7 does; "
        "redistribute the tensor before",
        _StridedShard(0, split_factor=3),
        Shard(0),
    )
    with pytest.raises(TypeError, match=r"^distribute_tensor: mesh must be a Mesh or a DeviceMesh"):
        spmd.dtensor.distribute_tensor(t, 3)
    marked = spmd.mark_sharding(t.to("spmd"), mesh, ("a", None))
    with pytest.raises(ValueError, match=r"^to_dtensor: there is no process group"):
        spmd.dtensor.to_dtensor(marked)
    with pytest.raises(TypeError, match=r"^from_dtensor: d must be a DTensor"):
        spmd.dtensor.from_dtensor(marked)
    with rank(0, 4), pytest.raises(ValueError, match="needs 8 ranks, one per device, and the"):
        spmd.dtensor.to_dtensor(marked)
    with rank(0, 8):
        d = spmd.dtensor.to_dtensor(marked)
        with pytest.raises(ValueError, match="the process group is a fake one"):
            spmd.dtensor.from_dtensor(d)
        with pytest.raises(ValueError, match="has another shape than the DTensor's"):
            spmd.dtensor.from_dtensor(d, spmd.make_mesh((8,), ("x",)))
        with pytest.raises(TypeError, match=r"write spmd.dtensor.from_dtensor\(t\)$"):
            spmd.dtensor.distribute_tensor(d, mesh)
        turned = DeviceMesh("cpu", torch.arange(8).reshape(2, 4).flip(0))
        with pytest.raises(ValueError, match="with the same ranks in the same places"):
            spmd.dtensor.to_dtensor(marked, turned)
    view = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("b",)).view(2, 4) + 0
    spmd.sync()
    if "b" not in spmd.sharding_of(view).spec:
        with rank(0, 8), pytest.raises(ValueError, match="a part of an axis, which no placement"):
            spmd.dtensor.to_dtensor(view)


JOB = """
import torch
import torch_spmd as spmd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

mesh = spmd.make_mesh((2, 2), ("a", "b"))
full = torch.arange(24.0).reshape(12, 2)
t = spmd.mark_sharding(full.to("spmd").requires_grad_(), mesh, (("b", "a"), None))
d = spmd.dtensor.to_dtensor(t)
assert d.requires_grad and d.placements == (_StridedShard(0, split_factor=2), Shard(0))
assert torch.equal(d.full_tensor(), full)
device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
for placements in (
    [Shard(0), Shard(0)], [Shard(1), Replicate()], [_StridedShard(0, split_factor=2), Shard(0)],
    [Replicate(), _StridedShard(0, split_factor=3)],
):
    d = distribute_tensor(full, device_mesh, placements).requires_grad_()
    t = spmd.dtensor.from_dtensor(d)
    assert t.device.type == "spmd" and t.requires_grad
    assert torch.equal(t.detach().cpu(), full)
    again = spmd.dtensor.to_dtensor(t, device_mesh)
    assert again.placements == tuple(placements), (again.placements, placements)
    assert torch.equal(again.to_local(), d.to_local())
    spmd.dtensor.from_dtensor(d * 2).sum().backward()
    assert torch.equal(d.grad.full_tensor(), torch.full((12, 2), 2.0))
    (spmd.dtensor.from_dtensor(d) * 3).sum().backward()  # of the leaf itself; it adds
    assert torch.equal(d.grad.full_tensor(), torch.full((12, 2), 5.0))
    assert d.grad.placements == tuple(placements)
    found = torch.autograd.grad((spmd.dtensor.from_dtensor(d) ** 2).sum(), d)[0]
    assert torch.equal(found.full_tensor(), 2 * full)
    kept = spmd.dtensor.from_dtensor(d.detach())
    assert not kept.requires_grad and kept.is_leaf
    with torch.no_grad():
        assert not spmd.dtensor.from_dtensor(d).requires_grad
    weight = torch.nn.Parameter(spmd.dtensor.from_dtensor(d))  # a leaf of its own
    weight.sum().backward()
    assert weight.is_leaf and weight.grad.cpu().eq(1).all()
    assert spmd.sharding_of(weight).spec == spmd.sharding_of(t).spec
partial = DTensor.from_local(torch.ones(2), device_mesh, [Partial(), Replicate()], run_check=False)
t = spmd.dtensor.from_dtensor(partial, mesh)
assert t.tolist() == [2.0, 2.0] and spmd.sharding_of(t).spec == spmd.P(None)
"""


def test_in_a_job_with_a_process_per_device():
    for ended in job.run(JOB, 4, 120, SPMD_NUM_DEVICES="4"):
        assert ended.code == 0, ended.err
