# SPDX-License-Identifier: Apache-2.0
"""What the workloads cost on eight devices, beside what XLA makes of the same.

    python -m benchmarks.oracle                 # all
    python -m benchmarks.oracle gpt_tp llama    # some
    python -m benchmarks.oracle --rows gpt_tp   # with every collective

Nothing is computed: programs are planned for a described machine. Each figure is followed by XLA's
(`xla.csv`; how it was measured: `README.md`) in parentheses:

    MB     bytes on the wire per device, in 10^6; `libtpu` is the TPU compiler's, where the image is
           cut; the floor is what the arithmetic needs, where that is known
    work   operations of the busiest device × devices / operations of the whole (`flops.py`)
    peak   MB of memory per device
    instr  instructions of the program
    ms     to compile it: sharding propagation and partitioning; XLA's on a busy machine

Below, the collectives of at least 4 KiB by kind and axes. Exits with 1 where more bytes are sent
than by XLA or libtpu; other figures that are worse are named.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
from pathlib import Path
from typing import NamedTuple

import torch_spmd as spmd
from benchmarks.flops import redundancy
from benchmarks.workloads import WORKLOADS

NEARLY = 1.001  # bytes of losses and norms, and figures rounded to 10 KB
MARKS = {False: "inputs", True: "full"}


class Figures(NamedTuple):
    """What one program costs."""

    mb: float
    work: float
    peak_mb: float
    instructions: int
    milliseconds: float


def xla_figures() -> dict[tuple[str, str], tuple[Figures, dict[str, str]]]:
    """By workload and marks: XLA's figures, and the row they are from."""
    with open(Path(__file__).with_name("xla.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["workload"], row["marks"]): (_figures(row), row) for row in rows}


def _figures(row: dict[str, str]) -> Figures:
    return Figures(
        min(float(row[column]) for column in ("mb", "libtpu_mb") if row[column]),
        float(row["redundancy"]),
        float(row["peak_mb"]),
        int(row["instructions"]),
        float(row["plan_ms"]),
    )


def plan(name: str, annotated: bool) -> None:
    """Makes the program of one training step the last program."""
    workload = WORKLOADS[name](annotated)
    for _ in range(2):  # the optimizer makes its state in the first
        workload.step()


def last_figures() -> Figures:
    """Of the last program."""
    compiled = spmd.debug.explain_compile().rows[-1]
    with contextlib.redirect_stdout(io.StringIO()):
        program = spmd.debug.print_program()
    return Figures(
        sum(row.wire_bytes for row in spmd.debug.collectives().rows) / 1e6,
        redundancy(program),
        spmd.debug.memory().peak_bytes / 1e6,
        compiled.instructions,
        compiled.milliseconds,
    )


def by_kind_and_axes() -> str:
    """The last program's collectives that move something: `2 all_reduce{data} 16.78 MB, …`."""
    sums: dict[str, tuple[int, int]] = {}
    for row in spmd.debug.collectives().large:
        if row.wire_bytes:
            kind = f"{row.kind}{{{row.axes}}}"
            count, wire = sums.get(kind, (0, 0))
            sums[kind] = (count + 1, wire + row.wire_bytes)
    return ", ".join(f"{n} {kind} {wire / 1e6:.2f} MB" for kind, (n, wire) in sorted(sums.items()))


def worse(ours: Figures, theirs: Figures) -> list[str]:
    """The names of the figures that are higher than XLA's."""
    return [name for name, a, b in zip(Figures._fields, ours, theirs) if a > (b or 1e-9) * NEARLY]


def report(name: str, annotated: bool, rows: bool) -> bool:
    """Prints a workload's figures; False where XLA sends less."""
    plan(name, annotated)
    ours = last_figures()
    theirs, row = xla_figures()[name, MARKS[annotated]]
    above = worse(ours, theirs)
    line = (
        f"{name:10} {MARKS[annotated]:6} {ours.mb:7.2f} ({row['mb']:>6}) {row['libtpu_mb']:>6} "
        f"{row['floor_mb']:>6} {ours.work:6.3f} ({row['redundancy']}) {ours.peak_mb:7.1f} "
        f"({row['peak_mb']:>5}) {ours.instructions:6} ({row['instructions']:>4}) "
        f"{ours.milliseconds:6.1f} ({row['plan_ms']:>4})"
    )
    print(line + ("  worse: " + ", ".join(above) if above else ""))
    print(f"{'':18}{by_kind_and_axes()} (XLA: {row['collectives']})", flush=True)
    if rows:
        print(spmd.debug.collectives())
    return "mb" not in above


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], default=[])
    parser.add_argument("--rows", action="store_true", help="print every collective")
    args = parser.parse_args()
    spmd.set_default_backend("mock_tpu:v4-16:plan")
    print(
        f"{'':10} {'marks':6} {'MB':>7} {'(XLA)':>8} {'libtpu':>6} {'floor':>6} {'work':>6} "
        f"{'(XLA)':>7} {'peak':>7} {'(XLA)':>7} {'instr':>6} {'(XLA)':>6} {'ms':>6} {'(XLA)':>6}"
    )
    good = [
        report(name, annotated, args.rows)
        for name in args.workloads or WORKLOADS
        for annotated in MARKS
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
