# SPDX-License-Identifier: Apache-2.0
"""The speed budgets, each measured beside eager PyTorch.

    python -m benchmarks.speed                       # every row; takes long
    python -m benchmarks.speed --only trace launch   # groups of rows
    python -m benchmarks.speed --only "GPT dp"       # rows whose name begins so
    python -m benchmarks.speed --of a/speed.json b/speed.json --page docs/speed.md
                                                     # what parts have measured, as one

Both sides of a row run alternately in one process; the ratio of each pair of CPU-seconds is a
sample. A budget is missed if the 95 % interval of the median is above it. The last column is the
ratio of the wall times of whole steps, which is what a user waits for; it has no budget, since it
depends on what else runs on the machine. Writes speed.json and speed.png. Exits with 1 if a budget
is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.speed import report
from benchmarks.speed.measure import Result, measure

GROUPS = ("trace", "instructions", "launch", "compile", "steps", "memory", "regions", "gpu")


def wanted(group: str, row: str, only: list[str]) -> bool:
    return not only or group in only or any(row.startswith(o) for o in only)


def run_group(group: str, only: list[str], pairs: int) -> None:
    """Prints a line of JSON per row. Requires a process of its own, which has one backend."""
    import torch_spmd as spmd

    module = importlib.import_module(f"benchmarks.speed.{group}")
    rows = module.rows()
    if rows:
        spmd.config.set_backend(module.BACKEND)
    for row in rows:
        if wanted(group, row.name, only):
            print(json.dumps(dataclasses.asdict(measure(row, pairs))), flush=True)


def results_of(group: str, only: list[str], pairs: int) -> list[Result]:
    command = [sys.executable, "-m", "benchmarks.speed", "--in-process", group]
    command += ["--pairs", str(pairs), "--only", *only]
    # Threads that spin while they wait would count as work, on either side.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    results = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for text in child.stdout:
            results.append(Result(**json.loads(text)))
            print(report.line(results[-1]), flush=True)
    if child.returncode != 0:
        raise SystemExit(f"group '{group}' failed (exit code {child.returncode})")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="GROUP or ROW")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of speed.json, .png")
    parser.add_argument("--page", type=Path, help="also writes the table there, in Markdown")
    parser.add_argument(
        "--of", nargs="*", default=[], type=Path, metavar="FILE", help="measures nothing itself"
    )
    parser.add_argument("--in-process", choices=GROUPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        run_group(args.in_process, args.only, args.pairs)
        return 0
    print(report.HEADING)
    results = []
    for path in args.of:
        results += report.read_json(path)
    for result in results:
        print(report.line(result))
    for group in () if args.of else GROUPS:
        results += results_of(group, args.only, args.pairs)
    args.out.mkdir(parents=True, exist_ok=True)
    report.write_json(args.out / "speed.json", results)
    print(report.draw(args.out / "speed.png", results))
    if args.page is not None:
        report.write_page(args.page, results)
    return report.verdict(results)


if __name__ == "__main__":
    sys.exit(main())
