# SPDX-License-Identifier: Apache-2.0
"""Under a limit of addresses (`ulimit -v`) a program runs that fits it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("resource")

SCRIPT = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
import torch, torch_spmd as spmd
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to("spmd")
mesh = spmd.make_mesh((4,), ("data",))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = spmd.mark_sharding(torch.ones(64, 256).to("spmd"), mesh, ("data", None))
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    last = loss.item()
parts = [torch.full((1 << 20,), float(k)).to("spmd") * 2 for k in range(40)]
assert [p[0].item() for p in parts] == [2.0 * k for k in range(40)]
print("done", last > 0)
"""


def run(limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(limit=limit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_eight_gigabytes() -> None:
    done = run(8_000_000 << 10)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "done True\n"
