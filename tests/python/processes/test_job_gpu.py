# SPDX-License-Identifier: Apache-2.0
"""Jobs whose tiles are on a GPU: through the host and, from GPU to GPU, through NCCL.

The processes share the GPU if there is one only. NCCL refuses that for processes of one host; each
says that it is on a host of its own, and NCCL goes through sockets."""

import re
import signal
import time
from pathlib import Path

import cases
import job
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

# On a GPU an index out of range ends the process, as PyTorch's kernels do.
NAMES = [name for name in cases.CASES if name != "an_op_fails_and_training_goes_on"]
LEFT_OUT = [name for name in cases.CASES if name not in NAMES]

NCCL = {
    "SPMD_NCCL": "1",
    "NCCL_HOSTID": lambda rank: f"host {rank}",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
}
WAYS = {
    "shared memory": {"SPMD_NCCL": "0"},
    "gloo": {"SPMD_NCCL": "0", "SPMD_SHARED_MEMORY": "0"},
    "nccl": NCCL,
}


def variables(way):
    return {"SPMD_BACKEND": "cuda", "SPMD_NUM_DEVICES": "8", "SPMD_TIMEOUT": "30", **WAYS[way]}


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    script = Path(cases.__file__)
    (ended,) = job.run(
        script, 1, 120, [str(folder), *LEFT_OUT], SPMD_NUM_DEVICES="8", SPMD_BACKEND="cpu"
    )
    assert ended.code == 0, ended.err
    return torch.load(folder / "0.pt")


@pytest.fixture(scope="module", params=list(WAYS))
def together(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    script = Path(cases.__file__)
    arguments = [str(folder), *LEFT_OUT]
    ends = job.run(script, 2, 240, arguments, fresh=True, **variables(request.param))
    for ended in ends:
        assert ended.code == 0, ended.err
        way = "NCCL" if request.param == "nccl" else "the host"
        assert f"tiles through {way}" in ended.out
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_as_on_the_cpu(on_the_cpu, together, name):
    first, second = together
    assert first[name].keys() == on_the_cpu[name].keys()
    for key, value in on_the_cpu[name].items():
        assert torch.equal(first[name][key], second[name][key]), key
        if value.dtype.is_floating_point or value.dtype.is_complex:
            close = 1e-2 if value.dtype in (torch.half, torch.bfloat16) else 1e-4
            torch.testing.assert_close(first[name][key], value, rtol=close, atol=close / 10)
        else:
            assert torch.equal(first[name][key], value), key


TRAINING = """
import os, time
import torch
import torch_spmd as spmd

torch.manual_seed(0)
mesh = spmd.make_mesh((8,), ("data",))
model = torch.nn.Linear(64, 64).to("spmd")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100000):
    x = torch.full((8, 64), 1.0).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", i, loss.item(), flush=True)
"""


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda n: n.name)
def test_a_process_that_is_gone_or_stopped_is_named(way, number):
    """A kernel that waits for the other process does not keep the GPU, nor the script."""
    with job.Job(TRAINING, 2, fresh=True, **variables(way) | {"SPMD_TIMEOUT": "6"}) as both:
        both.wait_for(0, "step 20 ")
        both.signal(1, number)
        begin = time.monotonic()
        (ended,) = both.wait(30, ranks=[0])
        assert ended.code not in (0, -6), ended
        assert re.search(r"process 1 is gone|has waited 6 s for process 1", ended.err), ended.err
        assert time.monotonic() - begin < 20
