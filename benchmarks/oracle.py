# SPDX-License-Identifier: Apache-2.0
"""What the workloads cost on eight devices, beside what the same workloads cost under XLA.

    python -m benchmarks.oracle                 # all
    python -m benchmarks.oracle gpt_tp llama    # some
    python -m benchmarks.oracle --rows gpt_tp   # with every collective
    python -m benchmarks.oracle --programs DIR  # and the text of each program in DIR, for diff -r

Nothing is computed: programs are planned for a described machine. Each figure is followed by XLA's
(`xla.csv`; how it was measured: `README.md`) in parentheses:

    MB     bytes on the wire per device, in 10^6; `libtpu` is the TPU compiler's, where the image is
           sharded; the floor is what the arithmetic needs, where that is known
    GFLOP  operations of the busiest device: a multiplication and an addition are two
    work   operations of all devices / operations of the whole (`flops.py`), at most 1.02; then
           operations of the busiest device / mean of the devices
    peak   MB of memory per device
    instr  instructions that a step executes, loops as often as they run; ours without `free`,
           which XLA does not have
    ms     to compile it: sharding propagation and partitioning; XLA's on a busy machine

Below the figures are the collectives of at least 4 KiB by kind and axes. Exits with 1 if a figure
is worse than it must be: higher than XLA's (bytes: than libtpu's, too), work above its bound, bytes
further above the floor than `ABOVE_FLOOR` allows. Each such figure is named. Time is named, too,
but is no failure, since XLA's was measured on another day; `benchmarks.speed` has the budgets.
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
from benchmarks.flops import work_of
from benchmarks.workloads import WORKLOADS

NEARLY = 1.001  # bytes of losses and norms, and figures rounded to 10 KB
DEVICES = 8
MOST_WORK = 1.02
# By how much the floor may be exceeded if it is derived exactly, and if it is an estimate.
ABOVE_FLOOR = {"exact": 1.02, "estimate": 1.10}
MARKS = {False: "inputs", True: "full"}


class Figures(NamedTuple):
    """What one program costs."""

    mb: float
    work: float
    peak_mb: float
    instructions: int
    milliseconds: float
    gflop: float = 0.0  # of the busiest device
    imbalance: float = 1.0


def xla_figures() -> dict[tuple[str, str], tuple[Figures, dict[str, str]]]:
    """By workload and marks: XLA's figures, and the row that they come from."""
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
    """Compiles one training step, so that its program is the last program."""
    workload = WORKLOADS[name](annotated)
    for _ in range(2):  # the optimizer creates its state in the first step
        workload.step()


def last_figures() -> Figures:
    """The costs of the last program."""
    compiled = spmd.debug.explain_compile().rows[-1]
    with contextlib.redirect_stdout(io.StringIO()):
        program = spmd.debug.print_program()
    work = work_of(program)
    return Figures(
        sum(row.wire_bytes for row in spmd.debug.collectives().rows) / 1e6,
        work.redundancy,
        spmd.debug.memory().peak_bytes / 1e6,
        sum(" = " in line for line in program.splitlines() if line.startswith("  ")),
        compiled.milliseconds,
        2 * work.busiest / DEVICES / 1e9,
        work.imbalance,
    )


def by_kind_and_axes() -> str:
    """The last program's collectives that send something: `2 all_reduce{data} 16.78 MB, …`."""
    sums: dict[str, tuple[int, int]] = {}
    for row in spmd.debug.collectives().large:
        if row.wire_bytes:
            kind = f"{row.kind}{{{row.axes}}}"
            count, wire = sums.get(kind, (0, 0))
            sums[kind] = (count + 1, wire + row.wire_bytes)
    return ", ".join(f"{n} {kind} {wire / 1e6:.2f} MB" for kind, (n, wire) in sorted(sums.items()))


def worse(ours: Figures, theirs: Figures, floor_mb: float, floor_is: str) -> list[str]:
    """The names of the figures that are not as good as they must be."""
    names = [
        name
        for name in ("mb", "peak_mb", "instructions", "milliseconds")
        if getattr(ours, name) > (getattr(theirs, name) or 1e-9) * NEARLY
    ]
    if ours.work > MOST_WORK:
        names.append("work")
    if floor_mb and ours.mb > floor_mb * ABOVE_FLOOR[floor_is]:
        names.append("floor")
    return names


def write_program(folder: Path, name: str, annotated: bool) -> None:
    """Writes the last program's text as `NAME-MARKS.txt`."""
    with contextlib.redirect_stdout(io.StringIO()):
        text = spmd.debug.print_program(limit=None)
    (folder / f"{name}-{MARKS[annotated]}.txt").write_text(text, encoding="utf-8")


def report(name: str, annotated: bool, rows: bool, folder: Path | None = None) -> bool:
    """Prints a workload's figures; returns False if one is worse than it must be."""
    plan(name, annotated)
    if folder is not None:
        write_program(folder, name, annotated)
    ours = last_figures()
    theirs, row = xla_figures()[name, MARKS[annotated]]
    above = worse(ours, theirs, float(row["floor_mb"] or 0), row["floor_is"])
    about = "~" if row["floor_is"] == "estimate" else ""
    line = (
        f"{name:10} {MARKS[annotated]:6} {ours.mb:7.2f} ({row['mb']:>6}) {row['libtpu_mb']:>6} "
        f"{about + row['floor_mb']:>6} {ours.gflop:6.1f} {ours.work:6.3f} ({row['redundancy']}) "
        f"{ours.imbalance:5.3f} {ours.peak_mb:6.1f} ({row['peak_mb']:>5}) {ours.instructions:6} "
        f"({row['instructions']:>5}) {ours.milliseconds:6.1f} ({row['plan_ms']:>4})"
    )
    print(line + ("  worse: " + ", ".join(above) if above else ""))
    print(f"{'':18}{by_kind_and_axes()} (XLA: {row['collectives']})", flush=True)
    if rows:
        print(spmd.debug.collectives())
    return all(name == "milliseconds" for name in above)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], default=[])
    parser.add_argument("--rows", action="store_true", help="print every collective")
    parser.add_argument("--programs", type=Path, help="a directory for the programs' texts")
    args = parser.parse_args()
    if args.programs is not None:
        args.programs.mkdir(parents=True, exist_ok=True)
    spmd.config.set_backend("mock_tpu:v4-16:plan")
    print(
        f"{'':10} {'marks':6} {'MB':>7} {'(XLA)':>8} {'libtpu':>6} {'floor':>6} {'GFLOP':>6} "
        f"{'work':>6} {'(XLA)':>7} {'imbal':>5} {'peak':>6} {'(XLA)':>7} {'instr':>6} "
        f"{'(XLA)':>7} {'ms':>6} {'(XLA)':>6}"
    )
    good = [
        report(name, annotated, args.rows, args.programs)
        for name in args.workloads or WORKLOADS
        for annotated in MARKS
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
