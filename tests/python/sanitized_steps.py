# SPDX-License-Identifier: Apache-2.0
"""What runs under the sanitizers (tools/sanitize): two steps of the small GPT on eight devices in
four ways, tile by tile and coalesced, its losses compared with eager's; a failing op; and tensors
that other threads drop."""

import queue
import sys
import threading
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from training import STRATEGIES, Job, gpt_losses, mesh_of

import torch_spmd as spmd

job = Job(steps=2, optimizer="adamw", dropout=0.0)
plain = gpt_losses(job, "cpu")
for coalesce in (False, True):
    spmd.set_coalescing(coalesce)
    for strategy in STRATEGIES:
        sharded = gpt_losses(job, "spmd", mesh_of((2, 4)), strategy)
        torch.testing.assert_close(torch.tensor(sharded), torch.tensor(plain), rtol=1e-4, atol=1e-5)
        print(f"{strategy}, {'coalesced' if coalesce else 'tile by tile'}: {sharded[-1]:.4f}")

try:
    torch.arange(3.0).to("spmd")[torch.tensor([7]).to("spmd")].cpu()
except IndexError as error:
    print(f"refused: {error}")
else:
    raise SystemExit("an index out of range was not refused")

dropped: queue.SimpleQueue = queue.SimpleQueue()


def drop() -> None:
    while dropped.get() is not None:
        pass


threads = [threading.Thread(target=drop) for _ in range(3)]
for thread in threads:
    thread.start()
kept = [torch.zeros(4).to("spmd") for _ in range(20)]
for k in range(10):
    for n, x in enumerate(kept):
        kept[n] = x + 1
        dropped.put(kept[n] * 3)
        dropped.put(x.view(2, 2))
    spmd.sync(wait=k % 3 == 0)
for _ in threads:
    dropped.put(None)
for thread in threads:
    thread.join()
assert all((t.cpu() == 10).all() for t in kept)
print("dropped on other threads")
