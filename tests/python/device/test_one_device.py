# SPDX-License-Identifier: Apache-2.0
"""What a device of one process and one index does not support: memory of others, process groups,
other indices."""

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_spmd as spmd  # noqa: F401


def test_other_devices_memory_is_shared():
    assert torch.ones(3).share_memory_().is_shared()


COLLECTIVES = {
    "all_reduce": lambda t: dist.all_reduce(t),
    "broadcast": lambda t: dist.broadcast(t, 0),
    "all_gather": lambda t: dist.all_gather([t.clone()], t),
    "all_gather_into_tensor": lambda t: dist.all_gather_into_tensor(t.clone(), t),
    "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(t.clone(), t),
    "reduce": lambda t: dist.reduce(t, 0),
    "scatter": lambda t: dist.scatter(t, [t.clone()]),
    "all_to_all_single": lambda t: dist.all_to_all_single(t.clone(), t),
    "functional": lambda t: dist._functional_collectives.all_reduce(t, "sum", dist.group.WORLD),
}


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="PyTorch without torch.distributed")
def test_collectives_say_what_to_do(group):
    t = torch.ones(4, device="spmd")
    for call in COLLECTIVES.values():
        with pytest.raises(NotImplementedError, match=r"mark the batch: spmd.mark_sharding"):
            call(t)
    host = torch.ones(4)
    dist.all_reduce(host)
    assert host.tolist() == [1, 1, 1, 1]


OTHERS = {
    "to": lambda d: torch.ones(2).to(d),
    "to again": lambda d: torch.ones(2, device="spmd").to(d),
    "to with dtype": lambda d: torch.ones(2).to(d, torch.float64),
    "module": lambda d: nn.Linear(2, 2).to(d),
    "module on the device": lambda d: nn.Linear(2, 2, device=d),
    "tensor": lambda d: torch.tensor([1.0], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0], device=d),
    "randn": lambda d: torch.randn(2, device=d),
    "rand_like": lambda d: torch.rand_like(torch.ones(2, device="spmd"), device=d),
    "randperm": lambda d: torch.randperm(2, device=d),
    "randint": lambda d: torch.randint(3, (2,), device=d),
    "arange": lambda d: torch.arange(3, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "new_zeros": lambda d: torch.ones(2, device="spmd").new_zeros(2, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "hann_window": lambda d: torch.hann_window(4, device=d),
    "generator": lambda d: torch.Generator(device=d),
    "spmd": lambda d: torch.ones(2).spmd(1),
    "set_device": lambda d: torch.spmd.set_device(d),
}


@pytest.mark.parametrize("way", OTHERS, ids=lambda way: way.replace(" ", "_"))
def test_other_indices_are_refused(way):
    with pytest.raises(RuntimeError, match=r"(one (logical )?device, 'spmd|[Ii]nvalid device)"):
        OTHERS[way]("spmd:1")


def test_another_index_as_the_default_is_refused():
    match = "one (logical )?device, 'spmd"
    with pytest.raises(RuntimeError, match=match), torch.device("spmd:1"):
        torch.ones(2)


def test_index_zero_is_the_device():
    assert torch.ones(2).to("spmd:0").device == torch.device("spmd:0")


def test_results_are_not_written_to_another_device():
    ours = torch.ones(4, device="spmd")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4).add_(ours)
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(ours, ours, out=torch.zeros(4))


def test_dlpack_is_refused():
    for read in (torch.from_dlpack, numpy.from_dlpack):
        with pytest.raises((ValueError, RuntimeError), match=r"Unknown device|Unsupported device"):
            read(torch.ones(2, device="spmd"))
