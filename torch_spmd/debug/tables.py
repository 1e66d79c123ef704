# SPDX-License-Identifier: Apache-2.0
"""What a script does: its graphs and programs, what they send, and what memory they need.

Functions called `print_…` and `visualize_…` print and return the text; the others return something
that prints well. Without arguments they are about the program that ran last. Right after an
optimizer step, `collectives` and `memory` are about all programs of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch_spmd import _C, _arguments
from torch_spmd.debug import plots
from torch_spmd.sharding import drawing

SMALL = 4096  # bytes up to which a collective counts as small

LIMIT = 1000  # rows that a table shows

LINES = 10_000  # of a program or graph that are printed


class Table:
    """Rows with a title line and a note below. `rows` is a list of named tuples.

    A table is a sequence of its rows. Notebooks show it as HTML. It shows its first 1,000 rows and
    says how many more there are; `text(limit=None)` has all.

    Errors: TypeError for an argument of another kind; IndexError for a row that does not exist.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Any], note: str = "") -> None:
        self.columns = tuple(_arguments.texts("Table", "columns", columns))
        what = f"a sequence of rows of {len(self.columns)} values"
        self.rows = _arguments.items("Table", "rows", rows, what)
        for position, row in enumerate(self.rows):
            if not isinstance(row, (tuple, list)) or len(row) != len(self.columns):
                raise TypeError(
                    f"Table: rows must be {what}; rows[{position}] is {_arguments.shown(row)}"
                )
        self.note = _arguments.text("Table", "note", note, _arguments.MOST_ITEMS)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            with _arguments.reading("Table", "index"):
                return self.rows[index]
        position = _arguments.integer("Table", "index", index)
        if not -len(self.rows) <= position < len(self.rows):
            raise IndexError(f"Table: index is {position}, but there are {len(self.rows)} rows")
        return self.rows[position]

    def _shown(self) -> tuple[Sequence[str], list[list[str]]]:
        """The title line and the cells."""
        return self.columns, [[_cell(v) for v in row] for row in self.rows]

    def text(self, limit: int | None = LIMIT) -> Text:
        """The table with its first `limit` rows, or with all."""
        return Text(drawing.table(*self._first("text", limit)))

    def __str__(self) -> str:
        return str(self.text())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return drawing.html(*self._first("text", LIMIT))

    def _first(self, caller: str, limit: int | None) -> tuple[Sequence[str], list[list[str]], str]:
        """The title line, the cells of the first rows, and the note."""
        limit = read_limit(caller, limit)
        columns, cells = self._shown()
        if limit is None or len(cells) <= limit:
            return columns, cells, self.note
        more = f"… and {len(cells) - limit:,} more rows: text(limit=None) has all"
        return columns, cells[:limit], f"{more}\n{self.note}" if self.note else more


class Text(str):
    """Text whose repr is itself, so that it reads well at the prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Printed(Text):
    """Text that has been printed: a prompt or a notebook does not show it a second time."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ""

    def _ipython_display_(self) -> None:
        pass


class Picture(Printed):
    """A picture that has been printed, or shown by a notebook; `html` has it in colour."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


class Collective(NamedTuple):
    """One collective instruction of a program. Bytes are per device, but for `sent_bytes`: those
    that this process sends to other processes."""

    kind: str
    axes: str
    devices: int
    merged: int
    bytes: int
    wire_bytes: int
    op: str
    line: str
    sent_bytes: int = 0


class LiveValue(NamedTuple):
    """A value that is alive when memory use is at its peak. Bytes are per device.

    `line` is the line that computes it; inputs of the program have none.
    """

    value: str
    type: str
    sharding: str
    bytes: int
    line: str


class MadeAgain(NamedTuple):
    """A value that is made again for a later use, because memory is short.

    `how` is "gathered" or "computed", `line` the line that uses it.
    """

    value: str
    how: str
    bytes: int
    line: str


class CompileEvent(NamedTuple):
    """One compiled program and what made it necessary."""

    program: int
    reason: str
    ended_by: str
    ops: int
    instructions: int
    milliseconds: float


class CollectiveTable(Table):
    """The collectives of a program or a step; `large` and `small` divide them at 4 KiB.

    A program that ran several times has its rows as many times. When the table is printed, equal
    rows become one with their number in `times`.
    """

    rows: list[Collective]

    def _shown(self) -> tuple[Sequence[str], list[list[str]]]:
        times = Counter(self.rows)
        columns = len(self.columns) if _C.process()[1] > 1 else len(self.columns) - 1
        cells = [[_cell(v) for v in (count, *row[:columns])] for row, count in times.items()]
        if len(times) < len(self.rows):
            return ("times", *self.columns[:columns]), cells
        return self.columns[:columns], [row[1:] for row in cells]

    @property
    def large(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes >= SMALL]

    @property
    def small(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes < SMALL]


class MemoryTable(Table):
    """The largest values at the peak. `peak_bytes` and all others are per device.

    `made_again` has what is gathered or computed again to need less, `again_wire_bytes` what that
    sends, and `peak_bytes_without` what the program would hold otherwise, at most.

    `over_time` has the bytes after each instruction, in the order in which they run, by what they
    are held for: "argument" (parameters, optimizer state, the batch), "gradient", "gathered"
    (parameters as a whole) and "activation" (the rest). A step of several programs has one after
    the other, each with what it reads and makes; `begins` has the first instruction of each.
    """

    rows: list[LiveValue]
    over_time: dict[str, list[int]]
    begins: list[int]
    made_again: list[MadeAgain]
    again_wire_bytes: int
    peak_bytes_without: int
    peak_bytes: int
    input_bytes: int
    output_bytes: int

    def plot(self, path: str | Path | None = None) -> Any:
        """`over_time` and the peak, as a figure of matplotlib; `path` saves it.

        Errors: ImportError without matplotlib; OSError.
        """
        made = plots.memory(self.over_time, self.peak_bytes, self.begins)
        return plots.save(made, _saved_as("MemoryTable.plot", path))


class Timed(NamedTuple):
    """One instruction of a program on a machine; FLOPs and bytes of one device, microseconds."""

    start: float
    microseconds: float
    stream: str
    flops: int
    bytes: int
    again: str
    op: str
    value: str
    line: str


class TimelineTable(Table):
    """What each instruction takes on a machine; see `timeline`.

    `placement` says where each mesh axis lies, `device_order` which device of the machine each
    device of the mesh is.
    """

    rows: list[Timed]
    machine: str
    streams: list[str]
    placement: list[str]
    device_order: list[int]
    devices: int
    peak_flops: float  # per second and device
    seconds: float
    exposed_seconds: float
    mfu: float
    hfu: float

    def plot(self, path: str | Path | None = None) -> Any:
        """The instructions of each stream over time, as a figure of matplotlib; `path` saves it.

        Errors: ImportError without matplotlib; OSError.
        """
        bars = [(row.stream, _kind(row), row.start, row.microseconds) for row in self.rows]
        made = plots.timeline(bars, self.streams, self.seconds)
        return plots.save(made, _saved_as("TimelineTable.plot", path))


def _kind(row: Timed) -> str:
    """What a timeline colours alike."""
    if row.stream != "compute":
        return row.op
    return "computes again" if row.again else "computes"


def _saved_as(caller: str, path: Any) -> str | None:
    return None if path is None else _arguments.path(caller, "path", path)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def seconds_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def bytes_text(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def read_limit(caller: str, limit: Any) -> int | None:
    return None if limit is None else _arguments.integer(caller, "limit", limit, 1)


def read_step(caller: str, step: Any) -> bool | None:
    return None if step is None else _arguments.boolean(caller, "step", step)
