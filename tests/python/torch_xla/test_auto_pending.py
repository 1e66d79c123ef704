# SPDX-License-Identifier: Apache-2.0
"""`use_spmd(auto=True)`, which stays on in a process: each script has its own."""

import pytest
from processes import run_script

START = """
import itertools, os, warnings
import numpy as np
import torch
import torch_spmd.torch_xla.install
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed.parallel_loader import MpDeviceLoader
import torch_spmd as spmd
from torch_spmd import P, _C
from torch_spmd.torch_xla import _auto_pending

N = xr.global_runtime_device_count()
spec_of = torch_xla._XLAC._get_xla_sharding_spec
count = lambda: met.counter_value("CompileWithAutoSharding")
"""

TRAINING = """
def train(device, steps=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    batches = [torch.randn(8192, 256) for _ in range(steps)]
    for x in batches if device == "cpu" else MpDeviceLoader(batches, device):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], x

plain, _ = train("cpu")
without, x = train("xla", 2)
assert len(spmd.debug.collectives()) == 0 and not any(spmd.sharding_of(x).spec)

xr.use_spmd(auto=True)
met.clear_all()
losses, x = train("xla")
np.testing.assert_allclose(losses, plain, rtol=1e-5)
searched = count()
if N > 1:
    assert spmd.sharding_of(x).hlo_string() == "{devices=[4,1]0,1,2,3}"
    assert spmd.debug.collectives().large
assert 1 <= searched <= 3
compiled = len(spmd.debug.explain_compile())
train("xla", 2)
assert (count(), len(spmd.debug.explain_compile())) == (searched, compiled)  # is known already
print("trained")
"""

BEST = """
xr.use_spmd(auto=True)
x, w = torch.zeros(4096, 2048).to("xla"), torch.zeros(2048, 1024).to("xla")
y = (x @ w).relu()
key, named, free = _C.pending_work()
assert named == [] and [shape for _, shape, _ in free] == [(4096, 2048), (2048, 1024)]
mesh = spmd.make_mesh((2, 2), ("a", "b"))._core
graph, pricing = _C.trace_pending(mesh), _C.Pricing("4xh100")
entries = [(None, None), ("a", None), (None, "a"), ("b", None), (None, "b"), ("a", "b"), ("b", "a"),
           (("a", "b"), None), (None, ("a", "b"))]
prices = [
    pricing.price(graph, [(f[0], P(*spec)) for f, spec in zip(free, specs)])["seconds"]
    for specs in itertools.product(entries, repeat=2)
]
os.environ["XLA_AUTO_SPMD_MESH"] = "2,2"
_, marks = _auto_pending._search(named, free)
found = [(number, P(*("ab"[int(a[-1])] if isinstance(a, str) else a and ("a", "b") for a in spec)))
         for number, spec in marks]
assert pricing.price(graph, found)["seconds"] == min(prices) < prices[0]
assert (y.shape, count()) == ((4096, 1024), None)  # nothing has run
print("best")
"""

MARKS = """
xr.use_spmd(auto=True)
torch.manual_seed(0)
mesh = xs.Mesh(range(N), (2, N // 2), ("a", "b"))
given = torch.randn(16384, 512), torch.randn(512, 512)
x, w = (t.to("xla") for t in given)
xs.mark_sharding(w, mesh, (None, "a"))
mine = spec_of(w)
total = (x @ w).square().sum(dim=1)
np.testing.assert_allclose(total.tolist(), (given[0] @ given[1]).square().sum(dim=1), rtol=1e-4)
assert spec_of(w) == mine and any(spmd.sharding_of(x).spec) and count() == 1
kept = torch.ones(16384, 512).to("xla")  # has its place from a program, and keeps it
torch_xla.sync()
(kept + 1).cpu()
before = spmd.sharding_of(kept)
(kept @ w).cpu()
assert spmd.sharding_of(kept) == before

os.environ["XLA_AUTO_SPMD_MESH"] = "3"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert (torch.ones(8, 8).to("xla") @ torch.ones(8, 8).to("xla")).sum().item() == 512
(said,) = (str(warning.message) for warning in caught)
assert "use_spmd(auto=True): pending work stays as it is" in said and "3 devices" in said
print("kept")
"""


@pytest.mark.parametrize("devices", ["1", "4"])
def test_training_as_without_it(devices):
    assert run_script(START + TRAINING, SPMD_NUM_DEVICES=devices).stdout == "trained\n"


def test_no_candidate_is_better():
    assert run_script(START + BEST, SPMD_NUM_DEVICES="4").stdout == "best\n"


def test_marks_hold_and_meshes_that_do_not_fit_are_named():
    assert run_script(START + MARKS, SPMD_NUM_DEVICES="4").stdout == "kept\n"
