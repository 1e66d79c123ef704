# SPDX-License-Identifier: Apache-2.0
"""What a script does: its graphs and programs, what they send, and what memory they need.

Functions called `print_…` and `visualize_…` print and return the text; the others return something
that prints well. Without arguments they are about the program that ran last. Right after an
optimizer step, `collectives` and `memory` are about all programs of the step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from torch_spmd import _C, _arguments, _draw
from torch_spmd.tensors import blocks_apart, sharding_of

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
        return Text(_draw.table(*self._first("text", limit)))

    def __str__(self) -> str:
        return str(self.text())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _draw.html(*self._first("text", LIMIT))

    def _first(self, caller: str, limit: int | None) -> tuple[Sequence[str], list[list[str]], str]:
        """The title line, the cells of the first rows, and the note."""
        limit = _limit(caller, limit)
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


class Collective(NamedTuple):
    """One collective instruction of a program. Bytes are per device."""

    kind: str
    axes: str
    devices: int
    merged: int
    bytes: int
    wire_bytes: int
    op: str
    line: str


class LiveValue(NamedTuple):
    """A value that is alive when memory use is at its peak. Bytes are per device."""

    value: str
    type: str
    sharding: str
    bytes: int


class CompileEvent(NamedTuple):
    """One compiled program and what made it necessary."""

    program: int
    reason: str
    cut: str
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
        if len(times) == len(self.rows):
            return super()._shown()
        cells = [[_cell(v) for v in (count, *row)] for row, count in times.items()]
        return ("times", *self.columns), cells

    @property
    def large(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes >= SMALL]

    @property
    def small(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes < SMALL]


class MemoryTable(Table):
    """The largest values at the peak. `peak_bytes` and all others are per device."""

    rows: list[LiveValue]
    peak_bytes: int
    input_bytes: int
    output_bytes: int


def print_graph(t: Tensor | None = None, limit: int | None = LINES) -> Printed:
    """Prints the graph of the last program, every value with its sharding; for a pending tensor
    `t`, the graph that is waiting to run, as traced.

    Prints at most `limit` lines (None: all) and says how many more there are; returns all.

    Errors: TypeError for an argument of another kind; ValueError for a tensor that is not pending;
    RuntimeError if no program has run.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> "aten::exp" in spmd.debug.print_graph(t.exp())    # doctest: +ELLIPSIS
        mesh @m ...
        True
    """
    limit = _limit("print_graph", limit)
    if t is not None:
        _arguments.tensor("print_graph", t)
        if not sharding_of(t).is_provisional:
            raise ValueError(
                "print_graph: the tensor is not pending; without arguments it prints the graph of "
                "the last program"
            )
        return _printed(_C.pending_graph(), limit)
    return _printed(_last_program().graph_text(), limit)


def print_program(limit: int | None = LINES) -> Printed:
    """Prints the last program: what every device of the mesh runs.

    Prints at most `limit` lines (None: all) and says how many more there are; returns all.

    Errors: TypeError for an argument of another kind; RuntimeError if no program has run.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> t.sum().item()
        8.0
        >>> "all_reduce" in spmd.debug.print_program()    # doctest: +ELLIPSIS
        mesh @m [x=4]
        ...
        True
    """
    limit = _limit("print_program", limit)
    return _printed(_last_program().program_text(), limit)


def explain(t: Tensor, limit: int | None = LIMIT) -> Text:
    """Why `t` is sharded as it is: the chain back to an annotation, one line per step.

    Of a longer chain it has the first `limit` lines (None: all), and how many more there are.

    Errors: TypeError for an argument of another kind; ValueError if the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> y = t.exp()
        >>> spmd.sync()
        >>> why = spmd.debug.explain(y)
    """
    _arguments.tensor("explain", t)
    limit = _limit("explain", limit)
    return Text(_draw.first_lines(_C.explain(t), limit, "lines"))


def explain_compile() -> Table:
    """Every compilation so far: what ended the pending work, and how it differed from known ones.

    `rows` are `CompileEvent`s, in order.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> spmd.debug.explain_compile().rows[-1].cut
        'item'
    """
    rows = [
        CompileEvent(number, reason, cut, records, instructions, round(sum(times), 1))
        for number, reason, cut, records, instructions, *times in _C.compile_events()
    ]
    s = _C.statistics()
    note = (
        f"{s['compiles']} programs compiled ({s['disk_hits']} of them read from disk); {s['runs']} "
        f"runs, {s['cache_hits']} of them of a known program; {s['host_fallbacks']} ops ran on "
        "host copies"
    )
    return Table(("program", "because", "cut by", "ops", "instructions", "ms"), rows, note)


def collectives(step: bool | None = None) -> CollectiveTable:
    """The collectives of a step or a program: kind, axes, bytes, the op whose result is sent, line.

    Right after an optimizer step they are those of all its programs: micro-steps, forward passes
    that ended when a loss was read, the optimizer. Otherwise they are those of the program that ran
    last, and the note says so. `step=True` asks for the last step, whatever has run since, and
    `step=False` for the last program.

    `rows` are `Collective`s, in the order in which they ran; bytes are those of one device.

    Errors: RuntimeError if no program has run, or none that ended in an optimizer step.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> t.sum().item()
        8.0
        >>> [(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives().rows]
        [('all_reduce', 'x', 4)]
    """
    programs, which, _ = _programs("collectives", _step("collectives", step))
    rows_of = {p.number: [Collective(*row) for row in p.collectives()] for p in programs}
    rows = [row for program in programs for row in rows_of[program.number]]
    table = CollectiveTable(
        ("kind", "axes", "devices", "merged", "bytes", "on the wire", "of", "line"), rows
    )
    by_kind: dict[str, list[int]] = {}
    for row in table.large:
        by_kind.setdefault(row.kind, []).append(row.bytes)
    parts = [f"{len(sizes)} {kind} {_bytes(sum(sizes))}" for kind, sizes in by_kind.items()]
    parts.append(f"{len(table.small)} under 4 KiB")
    table.note = ", ".join(parts) + " (per device)" + (f"; {which}" if which else "")
    return table


def memory(step: bool | None = None) -> MemoryTable:
    """The peak memory of a step or a program per device, and the ten largest values alive there.

    In bytes, for the program as it is written, also if it runs coalesced. For a step (`step` as
    for `collectives`) it is the peak of the program that needs most.

    Errors: RuntimeError if no program has run, or none that ended in an optimizer step.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> y = t.exp().cpu()
        >>> spmd.debug.memory().peak_bytes >= 4 * 2
        True
    """
    programs, which, is_step = _programs("memory", _step("memory", step))
    distinct = {p.number: p.memory() for p in programs}
    number = max(distinct, key=lambda n: distinct[n][0])
    peak, inputs, outputs, where, live = distinct[number]
    if len(distinct) > 1:
        which = f"in program {number}, the largest {which}"
    elif not is_step:
        which = "of the program that ran last"  # the same text for every run
    table = MemoryTable(
        ("value", "type", "sharding", "bytes"), [LiveValue(*row) for row in live[:10]]
    )
    table.peak_bytes, table.input_bytes, table.output_bytes = peak, inputs, outputs
    table.note = (
        f"peak {_bytes(peak)} per device, {where}; inputs {_bytes(inputs)}, results "
        f"{_bytes(outputs)}; {len(live)} values alive at the peak" + (f"; {which}" if which else "")
    )
    return table


def visualize_sharding(t: Tensor, limit: int | None = 64) -> Printed:
    """Prints which device holds which part of `t`, of any rank; in colour if rich is installed.

    The two dimensions with most shards are drawn; others are listed. A dimension of blocks is drawn
    as two, the blocks and their contents. At most `limit` rows and a quarter as many columns are
    drawn (None: all); a last line says how many devices are left out.

    Errors: TypeError for an argument of another kind; ValueError if the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 2), ("x", "y"))
        >>> t = spmd.mark_sharding(torch.ones(4, 4, device="spmd"), mesh, ("x", "y"))
        >>> picture = spmd.debug.visualize_sharding(t)    # doctest: +ELLIPSIS
        (4, 4) ...
    """
    _arguments.tensor("visualize_sharding", t)
    limit = _limit("visualize_sharding", limit)
    heading = f"{tuple(t.shape)} {sharding_of(t)!r}"
    apart = blocks_apart(t)
    if apart.dim() != t.dim():
        heading += f", drawn as {tuple(apart.shape)}"
    picture = _draw.shards(list(apart.shape), _C.shard_boxes(apart), limit)
    _draw.show(heading, picture)
    return Printed(f"{heading}\n{picture}")


def trace_to_chrome(path: str | Path) -> None:
    """Writes how long each stage of compiling the last program took, as a Chrome trace.

    Open it in chrome://tracing or Perfetto.

    Errors: RuntimeError if no program has run; OSError.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.trace_to_chrome(f"{folder}/trace.json")
    """
    path = _arguments.path("trace_to_chrome", "path", path)
    events, start = [], 0.0
    for name, milliseconds in _last_program().pass_times():
        events.append(
            {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": start * 1e3,
                "dur": milliseconds * 1e3,
            }
        )
        start += milliseconds
    Path(path).write_text(json.dumps({"traceEvents": events}))


def save_repro(path: str | Path) -> None:
    """Writes the graph of the last program as text that `spmd-opt` reads (docs/spmd-opt.md).

    Errors: RuntimeError if no program has run; OSError.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.save_repro(f"{folder}/graph.txt")
    """
    path = _arguments.path("save_repro", "path", path)
    Path(path).write_text(_last_program().traced_text())


def _last_program() -> _C.CompiledProgram:
    program = _C.last_program()
    if program is None:
        raise RuntimeError(
            "no program has run yet: look at a value, step an optimizer, or call spmd.sync() first"
        )
    return program


def _printed(text: str, limit: int | None) -> Printed:
    print(_draw.first_lines(text, limit, "lines: limit=None prints all"))
    return Printed(text)


def _limit(caller: str, limit: Any) -> int | None:
    return None if limit is None else _arguments.integer(caller, "limit", limit, 1)


def _step(caller: str, step: Any) -> bool | None:
    return None if step is None else _arguments.boolean(caller, "step", step)


def _programs(caller: str, step: bool | None) -> tuple[list[_C.CompiledProgram], str, bool]:
    """The programs to report on, in order of their runs; a description of them; whether they are
    those of a step."""
    programs, since = _C.last_step()
    if step and not programs:
        raise RuntimeError(f"{caller}: no optimizer has stepped yet")
    if step or (step is None and programs and since == 0):
        if len(programs) == 1:
            which = "" if since == 0 else f"of program {programs[0].number}, the last step"
            return programs, which, True
        numbers = ", ".join(str(number) for number in dict.fromkeys(p.number for p in programs))
        which = f"of the last step: {len(programs)} runs, of the programs {numbers}"
        return programs, which, True
    last = _last_program()
    if since <= 1 and not programs:
        return [last], "", False
    when = "since the optimizer's step" if programs else "so far"
    runs = "the only run" if since == 1 else f"the last of {since} runs"
    return [last], f"of program {last.number}, {runs} {when}", False


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
