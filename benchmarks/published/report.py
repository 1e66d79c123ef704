# SPDX-License-Identifier: Apache-2.0
"""How long published training runs take by the model of time, beside how long they took.

    python -m benchmarks.published                 # all rows
    python -m benchmarks.published mt-16b-v5e-256  # some
    python -m benchmarks.published --sample        # those that CI plans
    python -m benchmarks.published --fit           # and print the constants that fit best

Each row (`tpu.csv`, `gpu.csv`: what ran, what was published, where) is planned on the machine that
it ran on, in a process of its own; nothing is computed. Printed are the modelled and the published
milliseconds of a step, the relative error, communication that nothing hides, the peak per device
beside the device's memory, and the CPU-seconds that planning took. Then the mean absolute errors:
with the fitted constant of each generation (csrc/machine/efficiency.cc), with constants that are
fitted to all rows but the one judged, and without constants; TPUs and GPUs each have their own.
Rows `apart` (figures that are recalled rather than read, models whose sizes were not published,
runs without fused kernels) have means of their own, without a bound.

Memory is not refused (`--memory`: it is); of rows whose memory is judged the peak must be below the
device's, and `gold-2b-v5e` must be above it, where `--memory` is given. The two peaks that the TPU
compiler gives are compared with those of the same values: what its program holds there and this one
does not is added. Exits with 1 where a bound
is missed or a row cannot be planned.
"""

from __future__ import annotations

import argparse
import sys
from statistics import mean

from benchmarks.published.errors import (
    Pairs,
    error,
    fitted_shares,
    leaving_one_out,
    published_seconds,
)
from benchmarks.published.planned import Planned, plan_apart
from benchmarks.published.rows import Row, rows

# Of the mean absolute error of rows that count.
BOUNDS = {
    "TPU": {"with constants": 0.10, "leaving one out": 0.12, "without constants": 0.20},
    "GPU": {"with constants": 0.20},
}
PEAK_BOUND = 0.05  # of a peak that the TPU compiler gives
# One of each way to shard and of most generations, those that are planned quickly.
SAMPLE = ("gpt2-2b-v4-8-2d-b112", "mt-16b-v5e-256", "mt-32b-v5p-128", "mt-llama3-8b-v6e-256",
          "titan-llama3-8b-8xh100")  # fmt: skip


def line(row: Row, planned: Planned) -> str:
    published = published_seconds(row, planned)
    ours = planned.fitted
    said = f"{1e3 * published:9.0f} {100 * error(row, planned, ours):+6.1f}%" if published else (
        f"{'':9} {'':7}"
    )  # fmt: skip
    peak = f"{planned.peak_bytes / 1e9:7.1f}"
    if row.peak_mb:
        peak += f" ({planned.peak_bytes / 1e6 / row.peak_mb - 1:+.1%} of published"
        same = f", {peak_of_same(row, planned) / row.peak_mb - 1:+.1%} of the same values"
        peak += f"{same if row.held_more_mb else ''})"
    return (
        f"{row.name:28} {1e3 * ours:9.0f} {said} {1e3 * planned.exposed:8.0f} "
        f"{100 * planned.hfu:5.1f} {planned.plan_seconds:6.1f} {planned.resident_mb:5.0f} {peak}"
        f"{'  ' + row.apart if row.apart else ''}"
    )


def peak_of_same(row: Row, planned: Planned) -> float:
    """MB of a device, with what the program of the published peak holds beside that."""
    return planned.peak_bytes / 1e6 + row.held_more_mb


def means(pairs: Pairs, kind: str, apart: bool) -> dict[str, float]:
    """Mean absolute errors of the rows on "TPU" or "GPU" that are, or are not, apart."""
    these = {
        name: (row, planned)
        for name, (row, planned) in pairs.items()
        if row.on_gpus == (kind == "GPU") and bool(row.apart) == apart
    }
    if not these:
        return {}
    found = {
        "with constants": mean(abs(error(r, p, p.fitted)) for r, p in these.values()),
        "without constants": mean(abs(error(r, p, p.at(1.0))) for r, p in these.values()),
    }
    # A part of the rows leaves too little to fit to.
    if not apart and len(pairs) > len(SAMPLE) and len(these) > 1:
        found["leaving one out"] = mean(map(abs, leaving_one_out(these).values()))
    return found


def report_means(pairs: Pairs) -> bool:
    """Prints them; False where a bound is missed."""
    good = True
    for kind, bounds in BOUNDS.items():
        for apart in (False, True):
            for name, value in means(pairs, kind, apart).items():
                bound = None if apart else bounds.get(name)
                missed = bound is not None and value > bound
                good = good and not missed
                rest = "" if bound is None else f", at most {bound:.0%}" + (": MISSED" * missed)
                print(f"mean error{' of rows apart' * apart}, {kind}, {name}: {value:.1%}{rest}")
    return good


def report(chosen: list[Row], memory: bool, fit: bool) -> bool:
    """Prints everything; False where a bound is missed."""
    print(
        f"{'':28} {'ms':>9} {'published':>9} {'error':>7} {'exposed':>8} {'HFU':>5} {'plan s':>6} "
        f"{'MB':>5} {'peak GB':>7}"
    )
    pairs: dict[str, tuple[Row, Planned]] = {}
    good = True
    for row in chosen:
        planned = plan_apart(row, memory)
        if isinstance(planned, str):
            refused = not row.fits and "OutOfMemory" in planned
            good = good and refused
            print(f"{row.name:28} {planned[:150]}{' (as it must)' if refused else ''}", flush=True)
            continue
        print(line(row, planned), flush=True)
        if memory and not row.fits:
            print("    fits, but must not")
            good = False
        if memory and row.argument_mb:
            good = good and abs(peak_of_same(row, planned) / row.peak_mb - 1) <= PEAK_BOUND
        if published_seconds(row, planned):
            pairs[row.name] = (row, planned)
    good = report_means(pairs) and good
    if fit:
        print("constants that fit best:", fitted_shares(pairs))
    return good


def main() -> int:
    known = {row.name: row for row in rows()}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", choices=[[], *known], default=[])
    parser.add_argument("--sample", action="store_true", help="the rows that CI plans")
    parser.add_argument("--memory", action="store_true", help="refuse what does not fit")
    parser.add_argument("--fit", action="store_true", help="print the constants that fit best")
    args = parser.parse_args()
    names = args.rows or (SAMPLE if args.sample else known)
    return 0 if report([known[name] for name in names], args.memory, args.fit) else 1


if __name__ == "__main__":
    sys.exit(main())
