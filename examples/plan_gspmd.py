# SPDX-License-Identifier: Apache-2.0
"""Plans the dense models of the GSPMD paper, 64 B to 1 T on 128 to 2,048 cores, beside its table 2.

    python examples/plan_gspmd.py               # five models; minutes
    python examples/plan_gspmd.py --layers 2    # as a test runs it: the time to compile is flat

Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs",
arXiv:2105.04663. Nothing is computed. What the figures mean is in docs/planning.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from plan_gpt2 import planned

from benchmarks.published.rows import rows

RUNS = ("gspmd-64b-128", "gspmd-64b-2048", "gspmd-128b-512", "gspmd-512b-2048", "gspmd-1t-2048")
# FLOPs utilisation in percent, recomputation counted: table 2.
UTILISATION = {
    "gspmd-64b-128": 62.7,
    "gspmd-64b-2048": 56.9,
    "gspmd-128b-512": 56.5,
    "gspmd-512b-2048": 47.5,
    "gspmd-1t-2048": 55.6,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="instead of the models' own")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    args = parser.parse_args()
    known = {row.name: row for row in rows()}
    print(f"{'run':18} {'B':>7} {'cores':>5} {'HBM of a core':>22} {'a step':>9} {'published':>9} "
          f"{'HFU':>6} {'published':>9} {'planned in':>10}")  # fmt: skip
    for name in args.runs:
        row = known[name]
        if args.layers is not None:
            row = dataclasses.replace(row, layers=args.layers)
        # The state of Adafactor is a row and a column of each matrix, as the state of plain SGD
        # with momentum is not; `planned` takes the optimizer from the row.
        start = time.process_time()
        table = planned(row)
        seconds = time.process_time() - start
        best = table.best
        cores = 1
        for size in row.mesh.values():
            cores *= size
        print(
            f"{name:18} {table.parameters / 1e9:7.1f} {cores:5} "
            f"{best.row.hbm / 2**30:6.1f} of {best.row.memory / 2**30:5.1f} GiB"
            f"{' ' if best.row.fits else '!'} {best.row.seconds:7.2f} s {row.ms / 1e3:7.2f} s "
            f"{100 * best.hfu:5.1f}% {UTILISATION[name]:8.1f}% {seconds:8.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
