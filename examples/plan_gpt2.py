# SPDX-License-Identifier: Apache-2.0
"""Plans the GPT-2 models of the PyTorch/XLA posts on SPMD: memory and MFU beside what they report.

    python examples/plan_gpt2.py                  # 2 B on v4-8, 4 B on v4-16; a minute
    python examples/plan_gpt2.py --layers 2       # as a test runs it
    python examples/plan_gpt2.py --out runs/plan  # with a picture for each

Nothing is computed and no TPU is needed. What the figures are from, and where the model differs, is
in docs/planning.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch_spmd as spmd
from benchmarks.published.model import Decoder
from benchmarks.published.rows import Row, rows
from benchmarks.published.specs import Specs
from torch_spmd.plans import Candidate, PlanTable

RUNS = ("gpt2-2b-v4-8-fsdp", "gpt2-2b-v4-8-2d-b112", "gpt2-2b-v4-8-2d-b32", "gpt2-4b-v4-16")


def planned(row: Row) -> PlanTable:
    """The run of one row, on its machine and mesh."""

    def build() -> torch.nn.Module:
        mesh = spmd.get_global_mesh()
        assert mesh is not None  # spmd.plan sets it
        specs = Specs(row, mesh)
        model = Decoder(row, specs)
        for name, parameter in model.named_parameters():
            specs.parameter(name, parameter)
        return model

    tokens = torch.zeros(row.batch, row.length, dtype=torch.int64, device="meta")
    return spmd.plan(
        build, (tokens, tokens), on=row.on, mesh=row.mesh, specs={},
        optimizer=torch.optim.Adafactor if row.optimizer == "adafactor" else torch.optim.AdamW,
        autocast="bf16" if row.precision == "mixed" else None,
    )  # fmt: skip


def published_mfu(row: Row, parameters: int, candidate: Candidate) -> float:
    """As the posts count it: 6 · parameters · tokens / (time · devices · peak)."""
    if row.mfu:
        return row.mfu / 100
    devices = 1
    for size in row.mesh.values():
        devices *= size
    return 6 * parameters * row.tokens / (row.ms / 1e3 * devices * candidate.peak_flops)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="instead of the models' own")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    args = parser.parse_args()
    known = {row.name: row for row in rows()}
    print(f"{'run':22} {'B':>5} {'HBM of a chip':>24} {'a step':>9} {'published':>9} "
          f"{'MFU':>6} {'published':>9}")  # fmt: skip
    for name in args.runs:
        row = known[name]
        if args.layers is not None:
            row = dataclasses.replace(row, layers=args.layers)
        table = planned(row)
        best = table.best
        tokens_mfu = 6 * table.parameters * row.tokens / (
            best.row.seconds * best.peak_flops * torch.Size(row.mesh.values()).numel()
        )  # fmt: skip
        said = f"{row.ms / 1e3:.2f} s" if row.ms else ""
        print(
            f"{name:22} {table.parameters / 1e9:5.2f} "
            f"{best.row.hbm / 2**30:8.1f} of {best.row.memory / 2**30:5.1f} GiB"
            f"{'' if best.row.fits else '!'} {best.row.seconds:7.2f} s {said:>9} "
            f"{100 * tokens_mfu:5.1f}% {100 * published_mfu(row, table.parameters, best):8.1f}%",
            flush=True,
        )
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            table.plot(str(args.out / f"{name}.png"))


if __name__ == "__main__":
    main()
