# SPDX-License-Identifier: Apache-2.0
"""A run's resident memory grows by what `debug.memory` says that its program holds at its peak."""

import json

import pytest
from processes import run_python

STEP = """
import json, sys, torch, torch_spmd as spmd
from torch import nn

def resident(key):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(key))

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1024)) for _ in range(8)])
    def forward(self, x):
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x.square().sum()

devices = int(sys.argv[1])
mesh = spmd.make_mesh((devices,), ("x",))

def step(rows):
    model = Layers().to("spmd")
    x = spmd.mark_sharding(torch.ones(rows, 1024).to("spmd"), mesh, ("x", None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spmd.sync(wait=True)
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the high-water mark begins again
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
    spmd.sync(wait=True)
    memory = spmd.debug.memory()
    return resident("VmHWM") - before, devices * (memory.peak_bytes - memory.input_bytes)

step(64)
print(json.dumps(step(8192)))
"""


@pytest.mark.parametrize(
    ("devices", "least", "options"),
    [
        # On eight devices, tile by tile, nothing is shared and nothing computed in place.
        (8, 0.9, {"SPMD_COALESCE": "0", "SPMD_TURNS": "0"}),
        # A tile less: element-wise calls that follow each other are one pass over memory.
        (1, 0.85, {}),
        # Devices that take turns hold what one of them holds.
        (8, 0.0, {}),
    ],
)
def test_resident_memory_is_that_of_the_program(devices, least, options):
    done = run_python("-c", STEP, str(devices), **options)
    assert done.returncode == 0, done.stderr
    grown, said = json.loads(done.stdout.splitlines()[-1])
    assert said > 300e6
    assert least * said <= grown <= 1.1 * said, (grown, said)
