# SPDX-License-Identifier: Apache-2.0
"""Progress, the loss curve, and the closing tables of the examples."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tqdm import tqdm

_shows = True


def show_in_process_0(process: int) -> None:
    """Of several processes that run the script, only process 0 prints and writes files."""
    global _shows
    _shows = process == 0
    if not _shows:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


class Progress:
    """A progress bar over `steps` that shows the loss and the throughput.

    for step in Progress(100, units_per_step=1024, unit="tok"): …
    """

    def __init__(self, steps: int, *, units_per_step: int, unit: str, title: str) -> None:
        self.steps = steps
        self.units_per_step = units_per_step
        self.unit = unit
        self.bar = tqdm(total=steps, desc=title, ncols=100, mininterval=0.5, disable=not _shows)
        self.shown: dict[str, str] = {}
        self.started = time.perf_counter()
        self.since_second_step = self.started

    def __iter__(self) -> Iterator[int]:
        for step in range(self.steps):
            yield step
            if step == 0:  # the first step compiles; it says nothing about speed
                self.since_second_step = time.perf_counter()
            else:
                rate = step * self.units_per_step / (time.perf_counter() - self.since_second_step)
                self.shown[f"{self.unit}/s"] = f"{rate:,.0f}"
            self.bar.set_postfix(self.shown, refresh=False)
            self.bar.update()
        self.bar.close()

    def show(self, **values: float) -> None:
        self.shown |= {name: f"{value:.4f}" for name, value in values.items()}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


def save_curve(
    path: Path,
    losses: list[float],
    held_out: dict[int, float],
    *,
    title: str,
    baseline: tuple[str, float] | None = None,
) -> None:
    """Writes the loss per step, the held-out losses by step, and a horizontal baseline as PNG."""
    if not _shows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    axes.plot(range(1, len(losses) + 1), losses, lw=1, color="tab:blue", label="training")
    if held_out:
        axes.plot(
            list(held_out), list(held_out.values()), "o-", color="tab:orange", label="held out"
        )
    if baseline is not None:
        axes.axhline(baseline[1], ls="--", color="grey", label=f"{baseline[0]} ({baseline[1]:.2f})")
    axes.set(xlabel="step", ylabel="loss (nats)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def heading(text: str) -> None:
    print(f"\n── {text} " + "─" * max(0, 96 - len(text)))
