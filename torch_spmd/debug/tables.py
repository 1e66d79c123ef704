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
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from torch_spmd import _C, _arguments
from torch_spmd.debug import plots
from torch_spmd.sharding import drawing
from torch_spmd.sharding.tensors import blocks_apart, sharding_of

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
    return Text(drawing.first_lines(_C.explain(t), limit, "lines"))


def explain_compile() -> Table:
    """Every compilation so far: what ended the pending work, and how it differed from known ones.

    `rows` are `CompileEvent`s, in order.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> spmd.debug.explain_compile().rows[-1].ended_by
        'item'
    """
    rows = [
        CompileEvent(number, reason, ended_by, records, instructions, round(sum(times), 1))
        for number, reason, ended_by, records, instructions, *times in _C.compile_events()
    ]
    s = _C.statistics()
    note = (
        f"{s['compiles']} programs compiled; {s['runs']} runs, {s['cache_hits']} of them of a "
        f"known program; {s['host_fallbacks']} ops ran on host copies"
    )
    return Table(("program", "because", "ended by", "ops", "instructions", "ms"), rows, note)


def collectives(step: bool | None = None) -> CollectiveTable:
    """The collectives of a step or a program: kind, axes, bytes, the op whose result is sent, line.

    Right after an optimizer step they are those of all its programs: micro-steps, forward passes
    that ended when a loss was read, the optimizer. Otherwise, as after an evaluation, they are
    those of the program that ran last, and the note says so. `step=True` asks for the last step,
    whatever has run since, and `step=False` for the last program.

    `rows` are `Collective`s, in the order in which they ran; bytes are those of one device. In a
    job of several processes `sent_bytes` are those that this process sends to the others, each part
    once for each process that needs it.

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
        (
            *("kind", "axes", "devices", "merged", "bytes", "on the wire", "of", "line"),
            "to other processes",
        ),
        rows,
    )
    by_kind: dict[str, list[int]] = {}
    for row in table.large:
        by_kind.setdefault(row.kind, []).append(row.bytes)
    parts = [f"{len(sizes)} {kind} {_bytes(sum(sizes))}" for kind, sizes in by_kind.items()]
    parts.append(f"{len(table.small)} under 4 KiB")
    table.note = ", ".join(parts) + " (per device)" + (f"; {which}" if which else "")
    if _C.process()[1] > 1:
        sent = sum(row.sent_bytes for row in rows)
        table.note += f"; this process sends {_bytes(sent)} to other processes"
    return table


def memory(step: bool | None = None) -> MemoryTable:
    """The peak memory of a step or a program per device, and the ten largest values alive there.

    After an `OutOfMemoryError` it is the program that does not fit. What is gathered or computed
    again to need less, and what that costs, is in `made_again` and in the note.

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
    elif not is_step and not programs[0].refused:
        which = "of the program that ran last"  # the same text for every run
    table = MemoryTable(
        ("value", "type", "sharding", "bytes", "line"), [LiveValue(*row) for row in live[:10]]
    )
    table.peak_bytes, table.input_bytes, table.output_bytes = peak, inputs, outputs
    table.over_time, table.begins = _memory_over_time(programs)
    program = next(p for p in programs if p.number == number)
    wire, without, again = program.made_again()
    table.made_again = [MadeAgain(*row) for row in again]
    table.again_wire_bytes, table.peak_bytes_without = wire, without if again else peak
    table.note = (
        f"peak {_bytes(peak)} per device, {where}; inputs {_bytes(inputs)}, results "
        f"{_bytes(outputs)}; {len(live)} values alive at the peak" + (f"; {which}" if which else "")
    )
    if again:
        gathers = sum(row.how == "gathered" for row in table.made_again)
        table.note += (
            f"; {gathers} values are gathered and {len(again) - gathers} computed again, which "
            f"sends {_bytes(wire)} more, since the program would hold {_bytes(without)}"
        )
    return table


def timeline(
    on: str | None = None, step: bool | None = None, efficiency: float | None = None
) -> TimelineTable:
    """What a step or a program takes on a machine, by a model of it: nothing is measured.

    `on` names a machine with as many devices or a multiple: a TPU slice ("v5e-256", "v5p-128") or
    GPUs ("8xh100": nodes of eight); without it, it is the backend's. `step` as for `collectives`;
    the programs of a step follow each other.

    Each device has one stream that computes and one more for each level of the machine that its
    meshes communicate over: an axis of the torus, the nodes, the GPUs of a node. Streams overlap as
    the order of the program allows. Where mesh axes lie is chosen (`placement`, `device_order`)
    unless the mesh names its devices in another order than 0, 1, 2, ….

    MFU, model FLOPs utilisation: FLOPs of products, convolutions and attention that the model
    needs, each value counted once, over all devices / (seconds · devices · peak FLOP/s). HFU,
    hardware FLOPs utilisation: the same of all that the devices do, with recomputation under
    checkpointing and what several devices compute alike. A multiplication and an addition are two
    FLOPs. Source: Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B; there the model's FLOPs
    are estimated from its parameters, here they are counted.

    The share of the peak that large products reach is one constant per chip, fitted to published
    runs (`efficiency` takes its place: 1.0 is the peak); all else follows from data sheets. Left
    out are arithmetic outside of products, the start of kernels, contention between streams, input,
    and the host.

    `rows` are `Timed`s, in the order of the program.

    Errors: ValueError for a machine that is not known or that the mesh does not fit; RuntimeError
    where no program has run, or none that ended in an optimizer's step.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> t.sum().item()
        8.0
        >>> times = spmd.debug.timeline(on="v5e-4")
        >>> [row.stream for row in times if row.op == "all_reduce"], times.placement
        (['x'], ['x=4: x 2 line, y 2 line'])
    """
    if on is not None:
        on = _arguments.text("timeline", "on", on)
    programs, which, _ = _programs("timeline", _step("timeline", step))
    if efficiency is not None:
        efficiency = _arguments.number("timeline", "efficiency", efficiency)
        if not 0 < efficiency <= 1:
            raise ValueError(f"timeline: efficiency is {efficiency}, not above 0 and at most 1")
    parts = [_timed(program, on, efficiency) for program in programs]
    rows: list[Timed] = []
    seconds = 0.0
    for part in parts:
        for op, value, stream, start, took, flops, moved, again, line in part["entries"]:
            rows.append(
                Timed(
                    (seconds + start) * 1e6, took * 1e6, stream, int(flops), int(moved),
                    "again" if again else "", op, value, line,
                )
            )  # fmt: skip
        seconds += part["seconds"]
    table = TimelineTable(
        ("start", "us", "stream", "FLOPs", "bytes", "", "op", "value", "line"), rows
    )
    largest = max(parts, key=lambda part: part["devices"])
    table.machine, table.devices = largest["machine"], largest["devices"]
    table.streams, table.placement = largest["streams"], largest["placement"]
    table.device_order = largest["device_order"]
    table.seconds, table.peak_flops = seconds, largest["peak_flops"]
    table.exposed_seconds = seconds - sum(part["compute_seconds"] for part in parts)
    possible = seconds * table.devices * largest["peak_flops"]
    table.mfu, table.hfu = (
        sum(part[flops] for part in parts) / possible if possible else 0.0
        for flops in ("model_flops", "hardware_flops")
    )
    table.note = (
        f"{_seconds(seconds)} on {table.machine}, {_seconds(table.exposed_seconds)} of it waiting; "
        f"MFU {100 * table.mfu:.1f} %, HFU {100 * table.hfu:.1f} %; "
        + "; ".join(table.placement or ["one device"])
        + (f"; {which}" if which else "")
    )
    return table


def report(
    path: str | Path,
    module: nn.Module | None = None,
    on: str | None = None,
    step: bool | None = None,
) -> None:
    """Writes a step or a program as one page of HTML, which a browser opens without a network.

    It shows the timeline, the memory over time, the collectives by line, the shardings, and the
    text of the programs: what `timeline`, `memory`, `collectives`, `visualize_sharding`,
    `print_graph` and `print_program` show. Bytes are those of one device.

    `module` adds the shardings of its parameters, by name. `on` names the machine of the timeline,
    as for `timeline`; `step` as for `collectives`.

    Errors: RuntimeError if no program has run, or none that ended in an optimizer step; ValueError
    as `timeline`; TypeError for a module of another kind; ImportError without matplotlib; OSError
    for a path that cannot be written.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> t.sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.report(f"{folder}/step.html")
    """
    path = _arguments.path("report", "path", path)
    if module is not None and not isinstance(module, nn.Module):
        raise TypeError(f"report: module must be an nn.Module; got {_arguments.shown(module)}")
    from torch_spmd.debug import page

    programs, _, _ = _programs("report", _step("report", step))
    parts = page.Parts(timeline(on, step), memory(step), collectives(step), module)
    Path(path).write_text(page.html(programs, parts), encoding="utf-8")


def visualize_sharding(t: Tensor, limit: int | None = 64) -> Picture:
    """Prints which device holds which part of `t`, of any rank; in colour if rich is installed. In
    a notebook it is a table with a colour per part.

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
    heading, text, picture = _picture(t, limit)
    shown = Picture(f"{heading}\n{text}")
    shown.html = f"<p>{escape(heading)}</p>{picture}"
    drawing.show(heading, text, shown.html)
    return shown


def trace_to_chrome(path: str | Path, on: str | None = None) -> None:
    """Writes the timeline of the last step or program, and how long each stage of compiling its
    last program took, as a Chrome trace.

    The process "compiler" has the stages. The process of the machine, such as "v5p-128, each of 64
    devices", has a track for each stream; the timeline is a model's, see `timeline`, and `on` as
    there. Open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

    Errors: as `timeline`; OSError.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.trace_to_chrome(f"{folder}/trace.json")
    """
    path = _arguments.path("trace_to_chrome", "path", path)
    times = timeline(on)
    events: list[dict[str, Any]] = [
        _track("process_name", "compiler", 0, 0),
        _track("process_name", f"{times.machine}, each of {times.devices} devices", 1, 0),
    ]
    events += [_track("thread_name", stream, 1, t) for t, stream in enumerate(times.streams)]
    start = 0.0
    for name, milliseconds in _last_program().pass_times():
        events.append(_event(name, 0, 0, start * 1e3, milliseconds * 1e3))
        start += milliseconds
    for row in times.rows:
        if row.microseconds > 0:
            track = times.streams.index(row.stream)
            event = _event(row.op, 1, track, row.start, row.microseconds)
            event["args"] = {
                "value": row.value, "line": row.line, "FLOPs": row.flops, "bytes": row.bytes,
                "again": bool(row.again),
            }  # fmt: skip
            events.append(event)
    Path(path).write_text(json.dumps({"traceEvents": events}))


def _event(name: str, process: int, track: int, start: float, duration: float) -> dict[str, Any]:
    """A span of a Chrome trace, in microseconds."""
    return {
        "name": name, "ph": "X", "pid": process, "tid": track, "ts": start, "dur": duration,
    }  # fmt: skip


def _track(what: str, name: str, process: int, track: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


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


def _picture(t: Tensor, limit: int | None) -> tuple[str, str, str]:
    """A heading, and which device holds which part as text and as HTML."""
    heading = f"{tuple(t.shape)} {sharding_of(t)!r}"
    apart = blocks_apart(t)
    if apart.dim() != t.dim():
        heading += f", drawn as {tuple(apart.shape)}"
    dims, boxes = list(apart.shape), _C.shard_boxes(apart)
    return heading, drawing.shards(dims, boxes, limit), drawing.shards_html(dims, boxes, limit)


def _memory_over_time(
    programs: Sequence[_C.CompiledProgram],
) -> tuple[dict[str, list[int]], list[int]]:
    """See `MemoryTable`."""
    held: dict[str, list[int]] = {}
    begins, count = [], 0
    after = {p.number: _C.memory_use(p) for p in {p.number: p for p in programs}.values()}
    for program in programs:
        at_peak, _, bytes_after = after[program.number]
        begins.append(count)
        count += len(bytes_after)
        for what, column in zip(at_peak, bytes_after.t().tolist()):
            held.setdefault(what, []).extend(column)
    return held, begins


def _kind(row: Timed) -> str:
    """What a timeline colours alike."""
    if row.stream != "compute":
        return row.op
    return "computes again" if row.again else "computes"


def _saved_as(caller: str, path: Any) -> str | None:
    return None if path is None else _arguments.path(caller, "path", path)


def _last_program() -> _C.CompiledProgram:
    program = _C.last_program()
    if program is None:
        raise RuntimeError(
            "no program has run yet: look at a value, step an optimizer, or call spmd.sync() first"
        )
    return program


def _timed(program: _C.CompiledProgram, on: str | None, efficiency: float | None) -> dict[str, Any]:
    try:
        return program.timeline(on, efficiency)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"timeline: on: {str(error)[:400]}") from None


def _printed(text: str, limit: int | None) -> Printed:
    print(drawing.first_lines(text, limit, "lines: limit=None prints all"))
    return Printed(text)


def _limit(caller: str, limit: Any) -> int | None:
    return None if limit is None else _arguments.integer(caller, "limit", limit, 1)


def _step(caller: str, step: Any) -> bool | None:
    return None if step is None else _arguments.boolean(caller, "step", step)


def _programs(caller: str, step: bool | None) -> tuple[list[_C.CompiledProgram], str, bool]:
    """The programs to report on, in order of their runs; a description of them; whether they are
    those of a step."""
    programs, since, lost = _C.last_step()
    last = _C.last_program()
    if not step and last is not None and last.refused:
        return [last], f"of program {last.number}, which does not fit and did not run", False
    if step and not programs:
        raise RuntimeError(f"{caller}: no optimizer has stepped yet")
    if step or (step is None and programs and since == 0):
        left_out = f"; {lost} more are no longer kept" if lost else ""
        if len(programs) == 1 and not lost:
            which = "" if since == 0 else f"of program {programs[0].number}, the last step"
            return programs, which, True
        numbers = ", ".join(str(number) for number in dict.fromkeys(p.number for p in programs))
        which = f"of the last step: {len(programs)} runs, of the programs {numbers}{left_out}"
        return programs, which, True
    last = _last_program()
    if since <= 1 and not programs:
        return [last], "", False
    when = "since the optimizer's step, which step=True shows" if programs else "so far"
    runs = "the only run" if since == 1 else f"the last of {since} runs"
    return [last], f"of program {last.number}, {runs} {when}", False


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
