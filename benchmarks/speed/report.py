# SPDX-License-Identifier: Apache-2.0
"""The table, the JSON file and the picture."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

from benchmarks.speed.measure import Result

HEADING = (
    f"{'':36} {'ours':>10} {'eager':>10}        {'median':>8} {'95 %':>15} {'budget':>8} "
    f"{'clock':>6}"
)


def line(r: Result) -> str:
    eager = f"{r.eager:10.2f}" if r.eager is not None else f"{'-':>10}"
    budget = f"{r.budget:8.2f}" if r.budget is not None else f"{'-':>8}"
    elapsed = f" {r.elapsed:6.2f}" if r.elapsed is not None else ""
    missed = "  MISSED" if r.missed else ""
    return (
        f"{r.name:36} {r.ours:10.2f} {eager} {r.unit:5} {'×' if r.eager is not None else ' '}"
        f"{r.median:8.2f} {r.low:7.2f} {r.high:7.2f} {budget}{elapsed}{missed}"
    )


def verdict(results: list[Result]) -> int:
    """Prints which budgets are missed, and returns the exit status: 1 if any is."""
    missed = [r.name for r in results if r.missed]
    print(f"missed: {', '.join(missed)}" if missed else "every budget is kept")
    return 1 if missed else 0


def write_json(path: Path, results: list[Result]) -> None:
    rows = [dataclasses.asdict(r) | {"missed": r.missed} for r in results]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> list[Result]:
    """What `write_json` has written."""
    rows = json.loads(path.read_text())
    return [Result(**{key: row[key] for key in row if key != "missed"}) for row in rows]


def machine() -> str:
    """The processor and how many cores of it this process may use."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = re.search(r"model name\s*:\s*(.*)", cpuinfo.read_text())
        model = named[1] if named else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def write_page(path: Path, results: list[Result]) -> None:
    """The table for people to read, in Markdown."""
    rows = [
        "| what | ours | eager | median | 95 % | budget | wall time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        times = "× " if r.eager is not None else ""
        eager = f"{r.eager:.2f} {r.unit}" if r.eager is not None else ""
        budget = f"{r.budget:g}" + (" **missed**" if r.missed else "") if r.budget else ""
        elapsed = f"{r.elapsed:.2f}" if r.elapsed is not None else ""
        rows.append(
            f"| {r.name} | {r.ours:.2f} {r.unit} | {eager} | {times}{r.median:.2f} | "
            f"{r.low:.2f} to {r.high:.2f} | {budget} | {elapsed} |"
        )
    text = (
        "# Speed\n\n"
        f"Written by `python -m benchmarks.speed --page {path}` on {datetime.date.today()}: "
        f"{machine()}; PyTorch {version('torch')}. What the rows are and how they are measured: "
        "[`benchmarks/README.md`](../benchmarks/README.md). Times are CPU-seconds of all threads, "
        "measured alternately with eager PyTorch's in one process. Rows called “tiles” run tile by "
        "tile, the others with the default settings.\n\n"
    )
    path.write_text(text + "\n".join(rows) + "\n")


def draw(path: Path, results: list[Result]) -> str:
    """A bar per row: the median over its budget, with the interval. Returns what was done."""
    try:
        import matplotlib
    except ImportError:
        return f"no {path}: matplotlib is not installed"
    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [r for r in results if r.budget is not None][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.28 * len(shown)))
    for y, r in enumerate(shown):
        budget = r.budget or 1.0
        axes.barh(y, r.median / budget, color="#c44e52" if r.missed else "#4c72b0")
        axes.plot([r.low / budget, r.high / budget], [y, y], color="black", linewidth=1)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), [r.name for r in shown])
    axes.set_xlabel("of the budget (red: missed)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return f"wrote {path}"
