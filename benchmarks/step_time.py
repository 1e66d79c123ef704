# SPDX-License-Identifier: Apache-2.0
"""A GPT training step on `spmd` against eager PyTorch, as a ratio of CPU times.

    python benchmarks/step_time.py --mesh data=8 --strategy dp --pairs 15

Both sides run in one process, interleaved; the ratio of each pair is one sample. Prints the median
and its 95 % interval (by order statistics).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from common.gpt import GPT, GPTConfig
from common.options import mesh_axes
from common.strategies import strategy

import torch_spmd as spmd


def make_step(device: str, args: argparse.Namespace) -> Callable[[], float]:
    """A function that runs one training step and returns its loss."""
    torch.manual_seed(0)
    config = GPTConfig(block=args.block, layers=args.layers, width=args.width, dropout=0.0)
    model = GPT(config).to(device)
    tokens = torch.randint(256, (args.batch, args.block)).to(device)
    if device == "spmd" and args.mesh:
        mesh = spmd.make_mesh(tuple(args.mesh.values()), tuple(args.mesh))
        plan = strategy(args.strategy, mesh.axis_names)
        spmd.shard_module(model, mesh, plan.rules)
        spmd.mark_sharding(tokens, mesh, plan.inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def cpu_seconds(step: Callable[[], float]) -> float:
    before = time.process_time()
    step()
    return time.process_time() - before


def interval_of_median(samples: list[float]) -> tuple[float, float]:
    """The 95 % interval from the binomial order statistics."""
    ordered, n = sorted(samples), len(samples)
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return ordered[low], ordered[high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", type=mesh_axes, default={})
    parser.add_argument("--strategy", default="dp")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    args = parser.parse_args()
    eager, ours = make_step("cpu", args), make_step("spmd", args)
    for _ in range(3):  # compile, settle layouts, warm allocators
        eager(), ours()
    ratios = [cpu_seconds(ours) / cpu_seconds(eager) for _ in range(args.pairs)]
    low, high = interval_of_median(ratios)
    median = sorted(ratios)[len(ratios) // 2]
    where = f"mesh {args.mesh}, {args.strategy}" if args.mesh else "unsharded"
    print(f"{where}: {median:.2f} × eager's CPU time (95 %: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
