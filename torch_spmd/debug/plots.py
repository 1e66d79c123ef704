# SPDX-License-Identifier: Apache-2.0
"""Pictures of matplotlib: memory and instructions over a step. They need matplotlib, which is
imported when the first one is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# What memory is held for, from the bottom of a plot to its top: name, label, colour.
PURPOSES = (
    ("argument", "arguments", "#8da0cb"),
    ("gathered", "gathered weights", "#fdbf6f"),
    ("gradient", "gradients", "#e78ac3"),
    ("activation", "activations", "#66c2a5"),
)
_COLOURS = {
    "computes": "#4c78a8", "computes again": "#b9cde5", "all_reduce": "#d1495b",
    "all_gather": "#edae49", "reduce_scatter": "#00798c", "all_to_all": "#8f5d9f",
}  # fmt: skip
_OTHER = "#6b6b6b"
_MOST_PATHS = 2000  # that are drawn as vectors; more become dots
_MOST_STEPS = 1000  # of memory over time that are drawn
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
_TIMES = (("s", 1e6), ("ms", 1e3), ("µs", 1))

Bar = tuple[str, str, float, float]  # stream, kind, start, length


def figure(height: float) -> tuple[Any, Any]:
    """An empty figure as wide as all others, and its axes."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(10, height), layout="constrained")
    axes = made.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def save(made: Any, path: str | None) -> Any:
    if path is not None:
        made.savefig(path)
    return made


def stack(
    axes: Any, xs: Sequence[float], held: Mapping[str, Sequence[int]], most: int, label: str
) -> None:
    """Memory by what it is held for, and a line at `most`. Bytes of a device."""
    unit, size = next((u, s) for u, s in _UNITS if most >= s or s == 1)
    axes.stackplot(
        xs,
        [[count / size for count in held[what]] for what, _, _ in PURPOSES],
        labels=[label for _, label, _ in PURPOSES],
        colors=[colour for _, _, colour in PURPOSES],
        step="post",
    )
    axes.axhline(most / size, color="#b00020", linestyle="--", linewidth=1, label=label)
    axes.set_ylabel(f"{unit} of a device")
    axes.set_ylim(bottom=0)


def memory(held: Mapping[str, Sequence[int]], peak: int, begins: Sequence[int]) -> Any:
    """Memory after each instruction; programs begin at the instructions `begins`."""
    made, axes = figure(3.6)
    totals = [sum(after) for after in zip(*held.values())]
    # Each value lasts until the next instruction, the last one for one instruction too.
    shown = _thinned(totals)
    xs = [*shown, len(totals)]
    drawn = {what: [values[k] for k in [*shown, *shown[-1:]]] for what, values in held.items()}
    stack(axes, xs, drawn, peak, "peak")
    for begin in begins[1:]:
        axes.axvline(begin, color="#555555", linestyle=":", linewidth=1)
    axes.set(xlabel="instructions, in the order in which they run", xlim=(0, len(totals) or 1))
    made.legend(loc="outside upper left", ncols=5, frameon=False, fontsize="small")
    return made


def _thinned(totals: Sequence[int]) -> list[int]:
    """Positions that a picture can show: of more, the largest value of every few."""
    each = -(-len(totals) // _MOST_STEPS) or 1
    return [
        max(range(k, min(k + each, len(totals))), key=totals.__getitem__)
        for k in range(0, len(totals), each)
    ]


def timeline(bars: Iterable[Bar], streams: Sequence[str], seconds: float) -> Any:
    """Bars in microseconds, a row for each stream, the first one on top."""
    unit, size = next((u, s) for u, s in _TIMES if seconds * 1e6 >= s or s == 1)
    spans: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for stream, kind, start, length in bars:
        spans.setdefault((streams.index(stream), kind), []).append((start / size, length / size))
    made, axes = figure(1.4 + 0.45 * len(streams))
    labelled = set()
    for (row, kind), parts in sorted(spans.items()):
        colour = _COLOURS.get(kind, _OTHER)
        axes.broken_barh(
            parts, (row - 0.38, 0.76), facecolor=colour, edgecolor=colour, linewidth=0.4,
            label=None if kind in labelled else kind, rasterized=len(parts) > _MOST_PATHS,
        )  # fmt: skip
        labelled.add(kind)
    axes.set_yticks(range(len(streams)), streams)
    axes.set_ylim(len(streams) - 0.5, -0.5)
    axes.set_xlim(0, max(seconds * 1e6 / size, 1e-9))
    axes.set_xlabel(unit)
    made.legend(loc="outside upper left", ncols=6, frameon=False, fontsize="small")
    return made


def svg(made: Any, name: str, title: str) -> str:
    """A figure as an element of a page: text stays text, and nothing in it is fetched. `name`
    begins the ids, so that a page may have several; `title` is read aloud."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        made.savefig(
            out, format="svg", transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )  # fmt: skip
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
