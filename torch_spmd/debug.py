# SPDX-License-Identifier: Apache-2.0
"""Seeing what happens.

Functions called `print_…` and `visualize_…` print and return the text; the others return something
that prints well. Without arguments they speak of the program that ran last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from torch_spmd import _C, _draw
from torch_spmd.tensors import check_on_device, sharding_of

SMALL = 4096  # bytes up to which a collective counts as small


class Table:
    """Rows with a title line and a note below. `rows` is a list of named tuples."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Any], note: str = "") -> None:
        self.columns = tuple(columns)
        self.rows = list(rows)
        self.note = note

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return _draw.table(self.columns, [[_cell(v) for v in row] for row in self.rows], self.note)

    __repr__ = __str__


class Text(str):
    """Text whose repr is itself, so that it reads well at the prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Collective(NamedTuple):
    """One collective instruction of a program; bytes per device."""

    kind: str
    axes: str
    devices: int
    merged: int
    bytes: int
    wire_bytes: int
    op: str
    line: str


class LiveValue(NamedTuple):
    """A value that is alive where memory peaks; bytes per device."""

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
    """The collectives of a program; `large` and `small` part them at 4 KiB."""

    rows: list[Collective]

    @property
    def large(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes >= SMALL]

    @property
    def small(self) -> list[Collective]:
        return [row for row in self.rows if row.bytes < SMALL]


class MemoryTable(Table):
    """The largest values at the peak; `peak_bytes` and the rest per device."""

    rows: list[LiveValue]
    peak_bytes: int
    input_bytes: int
    output_bytes: int


def print_graph(t: Tensor | None = None) -> Text:
    """Prints the graph of the last program, every value with its sharding; of a pending tensor
    `t` the graph that is waiting to run, as traced.

    Errors: ValueError for a tensor that is not pending; RuntimeError where no program has run.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> "aten::exp" in spmd.debug.print_graph(t.exp())    # doctest: +ELLIPSIS
        mesh @m ...
        True
    """
    if t is not None:
        check_on_device("print_graph", t)
        if not sharding_of(t).is_provisional:
            raise ValueError(
                "print_graph: the tensor is not pending; without arguments it prints the graph of "
                "the last program"
            )
        return _printed(_C.pending_graph())
    return _printed(_last_program().graph_text())


def print_program() -> Text:
    """Prints the last program: what every device of the mesh runs.

    Errors: RuntimeError where no program has run.

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
    return _printed(_last_program().program_text())


def explain(t: Tensor) -> Text:
    """Why `t` is cut as it is: the chain back to an annotation, one line per step.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> y = t.exp()
        >>> spmd.sync()
        >>> why = spmd.debug.explain(y)
    """
    check_on_device("explain", t)
    return Text(_C.explain(t))


def explain_compile() -> Table:
    """Every compilation so far: what cut the work there, and what differed from what was known.

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


def collectives() -> CollectiveTable:
    """The collectives of the last program: kind, axes, bytes, the op whose result moves, line.

    `rows` are `Collective`s, in the program's order; bytes are one device's.

    Errors: RuntimeError where no program has run.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> t.sum().item()
        8.0
        >>> [(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives().rows]
        [('all_reduce', 'x', 4)]
    """
    rows = [Collective(*row) for row in _last_program().collectives()]
    table = CollectiveTable(
        ("kind", "axes", "devices", "merged", "bytes", "on the wire", "of", "line"), rows
    )
    by_kind: dict[str, list[int]] = {}
    for row in table.large:
        by_kind.setdefault(row.kind, []).append(row.bytes)
    parts = [f"{len(sizes)} {kind} {_bytes(sum(sizes))}" for kind, sizes in by_kind.items()]
    parts.append(f"{len(table.small)} under 4 KiB")
    table.note = ", ".join(parts) + " (per device)"
    return table


def memory() -> MemoryTable:
    """The peak memory of the last program per device, and the ten largest values alive there.

    In bytes, as the program is written: with coalescing, too.

    Errors: RuntimeError where no program has run.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, device="spmd"), mesh, ("x",))
        >>> y = t.exp().cpu()
        >>> spmd.debug.memory().peak_bytes >= 4 * 2
        True
    """
    peak, inputs, outputs, where, live = _last_program().memory()
    table = MemoryTable(
        ("value", "type", "sharding", "bytes"), [LiveValue(*row) for row in live[:10]]
    )
    table.peak_bytes, table.input_bytes, table.output_bytes = peak, inputs, outputs
    table.note = (
        f"peak {_bytes(peak)} per device, {where}; inputs {_bytes(inputs)}, results "
        f"{_bytes(outputs)}; {len(live)} values alive at the peak"
    )
    return table


def visualize_sharding(t: Tensor) -> Text:
    """Prints which device holds which part of `t`, of any rank. In colour where rich is there.

    The two dimensions that are cut into most parts are drawn; others are listed.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 2), ("x", "y"))
        >>> t = spmd.mark_sharding(torch.ones(4, 4, device="spmd"), mesh, ("x", "y"))
        >>> picture = spmd.debug.visualize_sharding(t)    # doctest: +ELLIPSIS
        (4, 4) ...
    """
    check_on_device("visualize_sharding", t)
    heading = f"{tuple(t.shape)} {sharding_of(t)!r}"
    picture = _draw.shards(list(t.shape), _C.shard_boxes(t))
    _draw.show(heading, picture)
    return Text(f"{heading}\n{picture}")


def trace_to_chrome(path: str | Path) -> None:
    """Writes how long each stage of compiling the last program took, as a Chrome trace.

    Open it in chrome://tracing or Perfetto.

    Errors: RuntimeError where no program has run; OSError.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.trace_to_chrome(f"{folder}/trace.json")
    """
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

    Errors: RuntimeError where no program has run; OSError.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> torch.ones(8, device="spmd").sum().item()
        8.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spmd.debug.save_repro(f"{folder}/graph.txt")
    """
    Path(path).write_text(_last_program().traced_text())


def _last_program() -> _C.CompiledProgram:
    program = _C.last_program()
    if program is None:
        raise RuntimeError(
            "no program has run yet: look at a value, step an optimizer, or call spmd.sync() first"
        )
    return program


def _printed(text: str) -> Text:
    print(text)
    return Text(text)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
