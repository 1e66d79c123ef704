# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from typing import Any

Interval = tuple[int, int]
Box = tuple[Interval, ...]
DeviceBox = tuple[int, Box]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """Left-aligned words, right-aligned numbers."""
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    numeric = _numeric(columns, rows)

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, numeric)
        ]
        return "  ".join(parts).rstrip()

    lines = [line(columns), "  ".join("─" * width for width in widths)]
    lines += [line(row) for row in rows]
    if note:
        lines.append(note)
    return "\n".join(lines)


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns have only numbers."""
    return [
        bool(rows) and all(row[i].replace(",", "").replace(".", "").isdigit() for row in rows)
        for i in range(len(columns))
    ]


def html(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """The same table for notebooks, as HTML."""
    styles = [' style="text-align:right"' if n else "" for n in _numeric(columns, rows)]

    def line(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}{style}>{escape(c)}</{tag}>" for c, style in zip(cells, styles))
        return f"<tr>{inner}</tr>"

    body = "".join(line("td", row) for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>{below}"


def first_lines(text: str, limit: int | None, more: str) -> str:
    """The first `limit` lines, and how many more there are ("" if there are none)."""
    lines = text.splitlines()
    if limit is None or len(lines) <= limit:
        return text
    return "\n".join([*lines[:limit], f"… and {len(lines) - limit:,} more {more}"])


def shards(dims: Sequence[int], boxes: Sequence[DeviceBox], limit: int | None = None) -> str:
    """The parts of a tensor of sizes `dims` and the devices that hold them.

    The two dimensions with most shards are rows and columns. If more dimensions are sharded, there
    is a picture for each shard of the others. At most `limit` rows in all and a quarter as many
    columns are drawn; a last line says how many devices are left out.

        rows 0:4   │ 0 │ 1 │
        rows 4:8   │ 2 │ 3 │
    """
    intervals = [sorted({box[d] for _, box in boxes}) for d in range(len(dims))]
    cut = sorted(
        (d for d in range(len(dims)) if len(intervals[d]) > 1),
        key=lambda d: (-len(intervals[d]), d),
    )
    if not cut:
        return f"whole on {_devices([device for device, _ in boxes])}"
    drawn, others = sorted(cut[:2]), sorted(cut[2:])
    pictures: dict[Box, list[DeviceBox]] = {}
    for device, box in boxes:
        pictures.setdefault(tuple(box[d] for d in others), []).append((device, box))
    parts, left, undrawn = [], limit, len(boxes)
    for place in sorted(pictures):
        if left is not None and left <= 0:
            break
        title = ", ".join(f"dim {d} {b}:{e}" for d, (b, e) in zip(others, place))
        down = intervals[drawn[0]][:left]
        across = [None] if len(drawn) == 1 else intervals[drawn[1]][: _quarter(limit)]
        picture, here = _grid(drawn, down, across, pictures[place])
        parts.append(f"{title}\n{picture}" if title else picture)
        undrawn -= here
        left = None if left is None else left - len(down)
    if undrawn > 0:
        parts.append(f"… and {undrawn:,} more devices")
    return "\n".join(parts)


def shards_html(dims: Sequence[int], boxes: Sequence[DeviceBox], limit: int | None = None) -> str:
    """The same picture for notebooks, as HTML: a table per picture, with a colour per part.

    Parts are coloured in the order of their first devices, so that replicas have one colour.
    """
    intervals = [sorted({box[d] for _, box in boxes}) for d in range(len(dims))]
    cut = sorted(
        (d for d in range(len(dims)) if len(intervals[d]) > 1),
        key=lambda d: (-len(intervals[d]), d),
    )
    rows, columns = (*sorted(cut[:2]), None, None)[:2]
    others = sorted(cut[2:])
    holders: dict[Box, list[int]] = {}
    for device, box in boxes:
        holders.setdefault(box, []).append(device)
    colours = {
        box: f"hsl({position * 360 // len(holders)},65%,82%)"
        for position, box in enumerate(holders)
    }
    pictures: dict[Box, dict[tuple[Any, Any], Box]] = {}
    for box in holders:
        place = (None if rows is None else box[rows], None if columns is None else box[columns])
        pictures.setdefault(tuple(box[d] for d in others), {})[place] = box
    drawn = " \\ ".join(f"dim {d}" for d in (rows, columns) if d is not None)
    parts = []
    for fixed, cells in sorted(pictures.items())[:limit]:
        title = ", ".join(f"dim {d} {_interval(i)}" for d, i in zip(others, fixed))
        title = f"{title}: {drawn}" if title else drawn
        down = sorted({row for row, _ in cells}, key=str if rows is None else None)[:limit]
        across = sorted({col for _, col in cells}, key=str if columns is None else None)
        across = across[: _quarter(limit)]
        head = "".join(f"<th>{_interval(i)}</th>" if i else "<th></th>" for i in across)
        lines = [f"<tr><th>{escape(title)}</th>{head}</tr>"]
        for row in down:
            filled = "".join(
                f'<td style="background:{colours[cells[row, col]]};color:#000;padding:0.6em 1em;'
                f'text-align:center">{escape(_devices(holders[cells[row, col]]))}</td>'
                if (row, col) in cells
                else "<td></td>"
                for col in across
            )
            lines.append(f"<tr><th>{_interval(row) if row else 'whole'}</th>{filled}</tr>")
        parts.append(f"<table>{''.join(lines)}</table>")
    left = len(pictures) - len(parts)
    return "".join(parts) + (f"<p>… and {left:,} more pictures</p>" if left else "")


def _quarter(limit: int | None) -> int | None:
    return None if limit is None else max(1, limit // 4)


def _grid(
    drawn: Sequence[int],
    down: Sequence[Interval],
    across: Sequence[Interval | None],
    boxes: Sequence[DeviceBox],
) -> tuple[str, int]:
    """The picture, and how many devices are in it."""
    rows = drawn[0]
    columns = drawn[1] if len(drawn) > 1 else None
    holders: dict[tuple[Interval, Interval | None], list[int]] = {}
    for device, box in boxes:
        holders.setdefault((box[rows], None if columns is None else box[columns]), []).append(
            device
        )
    cells: list[list[str]] = []
    if columns is not None:
        cells.append([f"dim {rows} \\ dim {columns}", *(_interval(i) for i in across if i)])
    here = 0
    for interval in down:
        held = [holders.get((interval, other), []) for other in across]
        here += sum(map(len, held))
        label = _interval(interval) if columns is not None else f"dim {rows} {_interval(interval)}"
        cells.append([label, *map(_devices, held)])
    widths = [max(map(len, column)) for column in zip(*cells)]
    rule = "─" * widths[0] + "─┼─" + "─┼─".join("─" * w for w in widths[1:]) + "─┤"
    lines = [
        " │ ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " │" for row in cells
    ]
    return f"\n{rule}\n".join(lines), here


def _interval(interval: tuple[int, int]) -> str:
    begin, end = interval
    return f"{begin}:{end}" if end > begin else "empty"


def _devices(devices: Sequence[int]) -> str:
    """`3`, `0..7`, `0,2,5`; of many devices the first ones: `0,2,4,6,… (32 devices)`."""
    ordered = sorted(devices)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}..{ordered[-1]}"
    if len(ordered) > 16:
        return f"{','.join(map(str, ordered[:4]))},… ({len(ordered):,} devices)"
    return ",".join(map(str, ordered)) or "-"


def show(heading: str, picture: str, html: str = "") -> None:
    """Prints a text, in colour on a terminal if rich is installed. A notebook shows `html`."""
    if html and _in_notebook():
        from IPython.display import HTML, display

        display(HTML(html))
        return
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            text = Text(picture)
            text.highlight_regex(r"(?<=│ )[\d.,]+", "bold cyan")
            text.highlight_regex(r"[│┼┤─\\]", "dim")
            console = Console()
            console.print(Text(heading, "bold"))
            console.print(text)
            return
    print(f"{heading}\n{picture}")


def _in_notebook() -> bool:
    python: Any = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return hasattr(shell, "kernel")
