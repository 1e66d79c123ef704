# SPDX-License-Identifier: Apache-2.0
"""The page that spmd.debug.report writes, from the template page.html."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_spmd import _C, _arguments, _versions
from torch_spmd.debug import plots, tables
from torch_spmd.debug.measures import collectives, memory, timeline
from torch_spmd.debug.programs import programs_to_show
from torch_spmd.debug.shardings import picture_of
from torch_spmd.debug.tables import bytes_text, read_step, seconds_text
from torch_spmd.device.backend import describe_devices
from torch_spmd.sharding.marks import sharding_of

SHOWN = 40  # lines of a text, or rows of a table, that are not folded
LINES = 10_000  # of a program or graph that a page has
LONGEST = 20  # instructions that are listed
PICTURES = 12  # of shardings

_INPUT = re.compile(r"^  (%\w+): (\w+\[.*?\]) @\w* ?(.*?)( donated)?$")
_MESH = re.compile(r"^mesh (@\w+) (\[.*\])$", re.MULTILINE)
_MOVE = re.compile(r" = (?!call )\w+\(")  # an instruction that is no op: a collective or a slice


class Parts(NamedTuple):
    """What a page is about: tables of spmd.debug, and a module whose parameters it shows."""

    times: tables.TimelineTable
    memory: tables.MemoryTable
    collectives: tables.CollectiveTable
    module: nn.Module | None


class Listing(NamedTuple):
    """The text of a program or graph as lines with a class of CSS each, which may be empty."""

    number: int
    runs: int
    lines: list[tuple[str, str]]
    left: int  # lines that are left out


def report(
    path: str | Path,
    module: nn.Module | None = None,
    on: str | None = None,
    *,
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
    programs, _, _ = programs_to_show("report", read_step("report", step))
    parts = Parts(timeline(on, step=step), memory(step=step), collectives(step=step), module)
    Path(path).write_text(html(programs, parts), encoding="utf-8")


def html(programs: Sequence[_C.CompiledProgram], parts: Parts) -> str:
    """The page about a step of `programs`, in the order of their runs."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(Path(__file__).with_name("page.html").read_text("utf-8"))
    script = Path(sys.argv[0]).name
    runs = Counter(p.number for p in programs)
    texts = {p.number: p.program_text() for p in programs}
    graphs = {p.number: p.graph_text() for p in programs}
    tables = {
        "timeline": parts.times,
        "longest": _longest(parts.times),
        "memory": parts.memory,
        "collectives": parts.collectives,
        "by_line": _by_line(parts.collectives),
    }
    pictures = []
    if parts.module is not None:
        tables["parameters"] = _parameters(parts.module)
        pictures = _pictures(parts.module)
    inputs = {f"Program {number}": _inputs(text) for number, text in texts.items()}
    elements = {name: Markup(table._repr_html_()) for name, table in (tables | inputs).items()}
    return template.render(
        title=f"A step of {script}" if script not in ("", "-c") else "A step",
        written=f"{datetime.now():%Y-%m-%d %H:%M}",
        versions=f"torch_spmd {_versions.VERSION}, torch {torch.__version__}",
        devices=describe_devices(),
        facts=_facts(runs, parts),
        meshes=dict.fromkeys(mesh for text in texts.values() for mesh in _MESH.findall(text)),
        shown=SHOWN,
        tables=tables,
        inputs=inputs,
        elements=elements,
        timeline=Markup(plots.svg(parts.times.plot(), "timeline", "Timeline")),
        memory=Markup(plots.svg(parts.memory.plot(), "memory", "Memory over time")),
        pictures=[(heading, Markup(picture)) for heading, picture in pictures],
        programs=[_listing(number, runs[number], text) for number, text in texts.items()],
        graphs=[_listing(number, runs[number], text) for number, text in graphs.items()],
    )


def _listing(number: int, runs: int, text: str) -> Listing:
    lines = text.splitlines()
    return Listing(number, runs, [(_look(t), t) for t in lines[:LINES]], max(0, len(lines) - LINES))


def _look(line: str) -> str:
    if line.startswith("  free "):
        return "free"
    return "move" if _MOVE.search(line) else ""


def _inputs(text: str) -> tables.Table:
    """The inputs of a program, from its text."""
    rows = []
    for line in text.splitlines():
        if " = " in line:
            break
        if found := _INPUT.match(line):
            value, kind, sharding, donated = found.groups()
            rows.append((value, kind, sharding, "yes" if donated else ""))
    return tables.Table(("value", "type", "sharding", "replaced by a result"), rows)


def _facts(runs: Counter[int], parts: Parts) -> list[tuple[str, str, str]]:
    """What a page begins with: a name, a number and a remark each. `runs` is by program."""
    times, memory, sent = parts.times, parts.memory, parts.collectives
    seconds, waiting = seconds_text(times.seconds), seconds_text(times.exposed_seconds)
    inputs, wire = bytes_text(memory.input_bytes), sum(row.wire_bytes for row in sent)
    where = f"in {runs.total()} runs of {len(runs)} programs"
    return [
        ("Time, by a model", seconds, f"on {times.machine}, {waiting} of it waiting"),
        ("Memory at the peak", bytes_text(memory.peak_bytes), f"per device; inputs {inputs}"),
        ("Sent", bytes_text(wire), f"per device, by {len(sent):,} collectives"),
        ("Instructions", f"{len(times):,}", where if runs.total() > 1 else "in one program"),
    ]


def _longest(times: tables.TimelineTable) -> tables.Table:
    """The instructions that take longest on a machine."""
    rows = sorted(times, key=lambda row: -row.microseconds)[:LONGEST]
    columns = ("us", "stream", "op", "value", "line")
    cells = [(row.microseconds, row.stream, row.op, row.value, row.line) for row in rows]
    return tables.Table(columns, cells)


def _by_line(sent: tables.CollectiveTable) -> tables.Table:
    """What each line sends, the most first."""
    times: Counter[tuple[str, str, str]] = Counter()
    moved: Counter[tuple[str, str, str]] = Counter()
    wire: Counter[tuple[str, str, str]] = Counter()
    for row in sent:
        what = (row.line or "several lines", row.kind, row.axes)
        times[what] += 1
        moved[what] += row.bytes
        wire[what] += row.wire_bytes
    rows = [(*what, times[what], moved[what], sent_) for what, sent_ in wire.most_common()]
    note = f"{bytes_text(sum(wire.values()))} on the wire in all (per device)" if rows else ""
    return tables.Table(("line", "kind", "axes", "times", "bytes", "on the wire"), rows, note)


def _on_device(module: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in module.named_parameters() if p.device.type == "spmd"}


def _parameters(module: nn.Module) -> tables.Table:
    """How each parameter is sharded, and what the fullest device holds of it."""
    rows = []
    for name, p in _on_device(module).items():
        parts = [[end - begin for begin, end in box] for _, box in _C.shard_boxes(p)]
        part = max(parts, key=math.prod)
        held = math.prod(part) * p.element_size()
        rows.append((name, tuple(p.shape), sharding_of(p).spec, tuple(part), held))
    others = sum(1 for _ in module.parameters()) - len(rows)
    note = f"{bytes_text(sum(row[-1] for row in rows))} per device"
    note += f"; {others} parameters are not on spmd" if others else ""
    return tables.Table(("parameter", "shape", "spec", "part", "bytes"), rows, note)


def _pictures(module: nn.Module) -> list[tuple[str, str]]:
    """A title and a picture for each sharding that a parameter has."""
    pictures: dict[str, tuple[str, str]] = {}
    for name, p in _on_device(module).items():
        sharding = repr(sharding_of(p))
        if sharding not in pictures and len(pictures) < PICTURES:
            heading, _, picture = picture_of(p, 16)
            pictures[sharding] = (f"{name} {heading}", picture)
    return list(pictures.values())
