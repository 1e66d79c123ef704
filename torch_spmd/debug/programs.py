# SPDX-License-Identifier: Apache-2.0
"""Graphs and programs as text: what was recorded, what runs, and why it was compiled."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd.debug.tables import (
    LIMIT,
    LINES,
    CompileEvent,
    Printed,
    Table,
    Text,
    read_limit,
)
from torch_spmd.sharding import drawing
from torch_spmd.sharding.marks import sharding_of


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
        >>> "aten::exp" in spmd.debug.print_graph(t.exp())  # doctest: +ELLIPSIS
        mesh @m ...
        True
    """
    limit = read_limit("print_graph", limit)
    if t is not None:
        _arguments.tensor("print_graph", t)
        if not sharding_of(t).is_provisional:
            raise ValueError(
                "print_graph: the tensor is not pending; without arguments it prints the graph of "
                "the last program"
            )
        return _printed(_C.pending_graph(), limit)
    return _printed(last_program().graph_text(), limit)


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
        >>> "all_reduce" in spmd.debug.print_program()  # doctest: +ELLIPSIS
        mesh @m [x=4]
        ...
        True
    """
    limit = read_limit("print_program", limit)
    return _printed(last_program().program_text(), limit)


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
    limit = read_limit("explain", limit)
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
    Path(path).write_text(last_program().traced_text())


def last_program() -> _C.CompiledProgram:
    program = _C.last_program()
    if program is None:
        raise RuntimeError(
            "no program has run yet: look at a value, step an optimizer, or call spmd.sync() first"
        )
    return program


def _printed(text: str, limit: int | None) -> Printed:
    print(drawing.first_lines(text, limit, "lines: limit=None prints all"))
    return Printed(text)


def programs_to_show(caller: str, step: bool | None) -> tuple[list[_C.CompiledProgram], str, bool]:
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
    last = last_program()
    if since <= 1 and not programs:
        return [last], "", False
    when = "since the optimizer's step, which step=True shows" if programs else "so far"
    runs = "the only run" if since == 1 else f"the last of {since} runs"
    return [last], f"of program {last.number}, {runs} {when}", False
