# SPDX-License-Identifier: Apache-2.0
"""Plans the dense models of the GSPMD paper, 64 B to 1 T on 128 to 2,048 cores, beside its table 2.

    python examples/plan_gspmd.py               # five models; minutes
    python examples/plan_gspmd.py --layers 2    # as a test runs it: the time to compile is flat

Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs",
arXiv:2105.04663. Nothing is computed. What the figures mean is in docs/planning.md.
"""

from __future__ import annotations

from common.published_plans import planned_runs

# FLOPs utilisation in percent, recomputation counted: table 2.
UTILISATION = {
    "gspmd-64b-128": 62.7,
    "gspmd-64b-2048": 56.9,
    "gspmd-128b-512": 56.5,
    "gspmd-512b-2048": 47.5,
    "gspmd-1t-2048": 55.6,
}


def main() -> None:
    print(f"{'run':18} {'B':>7} {'cores':>5} {'HBM of a core':>22} {'a step':>9} {'published':>9} "
          f"{'HFU':>6} {'published':>9} {'planned in':>10}")  # fmt: skip
    for run in planned_runs(__doc__, tuple(UTILISATION)):
        row, best = run.row, run.best
        print(
            f"{row.name:18} {run.table.parameters / 1e9:7.1f} {run.devices:5} {run.memory()} "
            f"{best.row.seconds:7.2f} s {row.ms / 1e3:7.2f} s {100 * best.hfu:5.1f}% "
            f"{UTILISATION[row.name]:8.1f}% {run.seconds:8.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
