# SPDX-License-Identifier: Apache-2.0
"""Plans the GPT-2 models of the PyTorch/XLA posts on SPMD: memory and MFU beside what they report.

    python examples/plan_gpt2.py                  # 2 B on v4-8, 4 B on v4-16; a minute
    python examples/plan_gpt2.py --layers 2       # as a test runs it
    python examples/plan_gpt2.py --out runs/plan  # with a picture for each

Nothing is computed and no TPU is needed. What the figures are from, and where the model differs, is
in docs/planning.md.
"""

from __future__ import annotations

from common.published_plans import PlannedRun, planned_runs

RUNS = ("gpt2-2b-v4-8-fsdp", "gpt2-2b-v4-8-2d-b112", "gpt2-2b-v4-8-2d-b32", "gpt2-4b-v4-16")


def mfu_in(seconds: float, run: PlannedRun) -> float:
    """As the posts count it: 6 · parameters · tokens / (time · devices · peak)."""
    possible = seconds * run.devices * run.best.peak_flops
    return 6 * run.table.parameters * run.row.tokens / possible


def main() -> None:
    print(f"{'run':22} {'B':>5} {'HBM of a chip':>22} {'a step':>9} {'published':>9} "
          f"{'MFU':>6} {'published':>9}")  # fmt: skip
    for run in planned_runs(__doc__, RUNS):
        row, seconds = run.row, run.best.row.seconds
        published = row.mfu / 100 if row.mfu else mfu_in(row.ms / 1e3, run)
        said = f"{row.ms / 1e3:.2f} s" if row.ms else ""
        print(
            f"{row.name:22} {run.table.parameters / 1e9:5.2f} {run.memory()} {seconds:7.2f} s "
            f"{said:>9} {100 * mfu_in(seconds, run):5.1f}% {100 * published:8.1f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
