# SPDX-License-Identifier: Apache-2.0
"""Runs under the sanitizers (tools/sanitize): two steps of the small GPT on eight devices with four
strategies, tile by tile and coalesced, whose losses are compared with eager's; a failing op; and
tensors that other threads free."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from dropping import drop_on_other_threads
from training import STRATEGIES, Job, gpt_losses, mesh_of

import torch_spmd as spmd

job = Job(steps=2, optimizer="adamw", dropout=0.0)
plain = gpt_losses(job, "cpu")
for coalesce in (False, True):
    spmd.config.update(coalesce=coalesce)
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

drop_on_other_threads(tensors=20, steps=10)
print("dropped on other threads")
