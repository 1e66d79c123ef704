# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler in one process of a job: the others need none."""

import job

PROFILED = """
import contextlib, os
import torch
import torch_spmd as spmd
from torch.profiler import profile

mesh = spmd.make_mesh((8,), ("x",))
model = torch.nn.Linear(16, 16).to("spmd")
spmd.mark_sharding(model.weight, mesh, ("x", None))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = spmd.mark_sharding(torch.ones(8, 16).to("spmd"), mesh, ("x", None))

def step():
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

step()
spmd.sync(wait=True)
first = os.environ["RANK"] == "0"
with profile() if first else contextlib.nullcontext() as profiled:
    for _ in range(3):
        step()
    left = model(x)  # the end of a profile does not run it: the others would not
step()
assert torch.isfinite(left).all()
if first:
    names = [event.name for event in profiled.events() if event.name.startswith("spmd: ")]
    print(sum(name.startswith("spmd: program") for name in names))
    print(names.count("spmd: all_gather of an input"))
"""


def test_one_process_has_a_profiler():
    ends = job.run(PROFILED, 2, 60, SPMD_NUM_DEVICES="8", SPMD_TIMEOUT="30")
    for ended in ends:
        assert ended.code == 0, ended.err[-4000:]
    assert ends[0].out.splitlines() == ["3", "3"]
