# SPDX-License-Identifier: Apache-2.0
"""Plans published runs by their rows in benchmarks/published: the loop of the plan_* examples."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch_spmd as spmd
from benchmarks.published.model import Decoder
from benchmarks.published.rows import Row, rows
from benchmarks.published.specs import Specs
from torch_spmd.planning.plans import Candidate, PlanTable


@dataclass(frozen=True)
class PlannedRun:
    """A published run, its plan on the run's machine and mesh, and how long planning took."""

    row: Row
    table: PlanTable
    seconds: float  # of CPU time

    @property
    def best(self) -> Candidate:
        return self.table.best

    @property
    def devices(self) -> int:
        return math.prod(self.row.mesh.values())

    def memory(self) -> str:
        """Of a device, of what it has; with a mark where it does not fit."""
        found = self.best.row
        return (
            f"{found.hbm / 2**30:6.1f} of {found.memory / 2**30:5.1f} GiB"
            f"{' ' if found.fits else '!'}"
        )


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
        build, (tokens, tokens), on=row.on, mesh=row.mesh, specs={}, optimizer=row.optimizer,
        autocast="bf16" if row.precision == "mixed" else None,
    )  # fmt: skip


def planned_runs(description: str | None, runs: Sequence[str]) -> Iterator[PlannedRun]:
    """Those of `runs` that the command line names, one after the other."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="instead of the models' own")
    parser.add_argument("--runs", nargs="+", choices=runs, default=runs)
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    args = parser.parse_args()
    known = {row.name: row for row in rows()}
    for name in args.runs:
        row = known[name]
        if args.layers is not None:
            row = dataclasses.replace(row, layers=args.layers)
        start = time.process_time()
        table = planned(row)
        yield PlannedRun(row, table, time.process_time() - start)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            table.plot(str(args.out / f"{name}.png"))
