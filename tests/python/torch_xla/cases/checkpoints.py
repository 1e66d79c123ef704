# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: any sharding into any other, each part written once, the manager."""

import math
import os
import signal

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.experimental.distributed_checkpoint import (
    CheckpointManager,
    SPMDLoadPlanner,
    SPMDSavePlanner,
    prime_optimizer,
)
from torch_xla.experimental.distributed_checkpoint._helpers import (
    _CpuShards,
    _sharded_cpu_state_dict,
)

N = xr.global_runtime_device_count()
spec_of = torch_xla._XLAC._get_xla_sharding_spec


@pytest.fixture(autouse=True)
def spmd_is_on():
    xr.use_spmd()


def model(spec, shape=(1, N)):
    net = nn.Linear(19, 7).to("xla")  # nothing is divided evenly
    if spec is not None:
        xs.mark_sharding(net.weight, xs.Mesh(np.arange(N), shape, ("a", "b")), spec)
    return net


SPECS = [None, ("a", "b"), ("b", None), (None, None), (None, ("a", "b"))]


@pytest.mark.parametrize("source", SPECS)
@pytest.mark.parametrize("target", SPECS)
@pytest.mark.parametrize("on_cpu", [False, True])
def test_any_sharding_into_any_other(source, target, on_cpu, tmp_path):
    shape = (2, N // 2) if N > 1 else (1, 1)
    saved, loaded = model(source), model(target, shape)
    state = saved.state_dict()
    if on_cpu:
        state = _sharded_cpu_state_dict(state)
    planners = (SPMDSavePlanner(), SPMDLoadPlanner())
    dcp.save({"net": state, "step": 3}, checkpoint_id=tmp_path, planner=planners[0])
    into = {"net": loaded.state_dict(), "step": 0}
    text = spec_of(loaded.weight)
    dcp.load(into, checkpoint_id=tmp_path, planner=planners[1])
    assert into["step"] == 3 and spec_of(loaded.weight) == text
    for ours, theirs in zip(saved.parameters(), loaded.parameters()):
        assert torch.equal(ours.cpu(), theirs.cpu())


def test_pytorchs_own_planner_reads_it(tmp_path):
    saved = model(("b", None))
    dcp.save({"net": saved.state_dict()}, checkpoint_id=tmp_path, planner=SPMDSavePlanner())
    into = {"net": nn.Linear(19, 7).state_dict()}
    dcp.load(into, checkpoint_id=tmp_path)
    assert torch.equal(into["net"]["weight"], saved.weight.cpu())


def test_each_part_is_written_once():
    shape = (2, N // 2) if N > 1 else (1, 1)
    net = model((None, "a"), shape)
    planner = SPMDSavePlanner()
    planner.set_up_planner(net.state_dict(), is_coordinator=True)
    items = [item for item in planner.create_local_plan().items if item.index.fqn == "weight"]
    assert len(items) == (2 if N > 1 else 1)
    written = sum(math.prod(item.tensor_data.chunk.sizes) for item in items)
    assert written == net.weight.numel()
    assert list(planner.unsharded_state_dict) == (["bias"] if N > 1 else ["weight", "bias"])


@pytest.mark.skipif(N == 1, reason="one device holds all")
def test_a_tensor_changes_when_all_parts_are_there(tmp_path):
    saved, net = model(("b", None)), model((None, "b"))
    dcp.save(saved.state_dict(), checkpoint_id=tmp_path, planner=SPMDSavePlanner())
    planner = SPMDLoadPlanner()
    metadata = dcp.FileSystemReader(tmp_path).read_metadata()
    planner.set_up_planner(net.state_dict(), metadata, True)
    before = net.weight.cpu()
    items = [i for i in planner.create_local_plan().items if i.dest_index.fqn == "weight"]
    for item in items:
        assert torch.equal(net.weight.cpu(), before)
        part = planner.resolve_tensor(item)
        part.fill_(7)
        planner.commit_tensor(item, part)
    assert (net.weight.cpu() == 7).all()
    wrong = nn.Linear(3, 3).to("xla")
    xs.mark_sharding(wrong.weight, xs.get_1d_mesh("a"), ("a", None))
    planner.set_up_planner(wrong.state_dict(), metadata, True)
    with pytest.raises(ValueError, match="Size mismatch between saved"):
        planner.create_local_plan()
    planner.set_up_planner({"other": wrong.weight}, metadata, True)
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: other"):
        planner.create_local_plan()


def test_copies_on_the_host():
    copied = _sharded_cpu_state_dict({"net": model(("b", None)).state_dict(), "n": 3})
    assert isinstance(copied["net"]["weight"], _CpuShards if N > 1 else torch.Tensor)
    assert copied["net"]["bias"].device.type == "cpu" and copied["n"] == 3


@pytest.fixture
def group(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def manager(path, **kwargs):
    return CheckpointManager(str(path), 10, chkpt_on_preemption=False, **kwargs)


def test_steps(group, tmp_path):
    path, state = tmp_path / "all", model(("b", None)).state_dict()
    steps = manager(path, max_to_keep=2)
    assert steps.all_steps() == [] and not steps.save(5, state) and steps.save(5, state, force=True)
    assert steps.save(20, state) and steps.save(10, state)
    assert steps.all_steps() == [10, 20]  # the oldest in time is gone
    assert manager(path).all_steps() == [10, 20]
    into = model(("a", "b")).state_dict()
    steps.restore(20, into)
    assert torch.equal(into["weight"].cpu(), state["weight"].cpu())
    with pytest.raises(AssertionError, match="Cannot restore from untracked step 5"):
        steps.restore(5, into)
    (path / "notes").mkdir()
    assert manager(path).all_steps() == [10, 20]


def test_in_the_background(group, tmp_path):
    state = model(("b", None)).state_dict()
    steps = manager(tmp_path / "all", max_pending_async=2)
    expected = state["weight"].cpu()
    assert steps.save_async(0, state) and not steps.save_async(1, state)
    with torch.no_grad():
        state["weight"].zero_()  # what is written is what there was
    steps.join()
    into = model(None).state_dict()
    steps.restore(0, into)
    assert torch.equal(into["weight"].cpu(), expected)
    steps._save = lambda *_: 1 / 0
    steps.save_async(10, state)
    with pytest.raises(ZeroDivisionError):
        steps.join()


def test_a_signal(group, tmp_path):
    steps = CheckpointManager(str(tmp_path / "all"), 10)
    try:
        assert not steps.should_save(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert steps.should_save(2) and steps.reached_preemption(2)
    finally:
        torch_xla._XLAC._deactivate_preemption_sync_manager()
    with pytest.raises(AssertionError, match="Preemption detection not enabled"):
        manager(tmp_path / "all").reached_preemption(1)


def test_wrong_managers(tmp_path):
    with pytest.raises(AssertionError, match="A process group is required"):
        manager(tmp_path)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers(kind, group, tmp_path):
    def trained():
        net = model(("b", None))
        optimizer = kind(net.parameters(), lr=0.1)
        return net, optimizer, {"net": net.state_dict(), "optimizer": optimizer.state_dict()}

    net, optimizer, _ = trained()
    net(torch.ones(4, 19).to("xla")).square().sum().backward()
    optimizer.step()
    steps = manager(tmp_path / "all")
    steps.save(0, {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    other, its, _ = trained()
    prime_optimizer(its)
    into = {"net": other.state_dict(), "optimizer": its.state_dict()}
    steps.restore(0, into)
    its.load_state_dict(into["optimizer"])
    assert torch.equal(other.weight.cpu(), net.weight.cpu())
    for ours, theirs in zip(optimizer.state.values(), its.state.values()):
        for name, value in ours.items():
            assert torch.equal(value.cpu(), theirs[name].cpu()), name
            if value.dim() == 2 and N > 1:
                assert spec_of(value) == spec_of(theirs[name])
