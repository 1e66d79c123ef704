# SPDX-License-Identifier: Apache-2.0
"""What a program sends, holds and takes: collectives, memory, time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_spmd import _C, _arguments
from torch_spmd.debug.programs import (
    last_program,
    programs_to_show,
)
from torch_spmd.debug.tables import (
    Collective,
    CollectiveTable,
    LiveValue,
    MadeAgain,
    MemoryTable,
    Timed,
    TimelineTable,
    bytes_text,
    read_step,
    seconds_text,
)


def collectives(*, step: bool | None = None) -> CollectiveTable:
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
    programs, which, _ = programs_to_show("collectives", read_step("collectives", step))
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
    parts = [f"{len(sizes)} {kind} {bytes_text(sum(sizes))}" for kind, sizes in by_kind.items()]
    parts.append(f"{len(table.small)} under 4 KiB")
    table.note = ", ".join(parts) + " (per device)" + (f"; {which}" if which else "")
    if _C.process()[1] > 1:
        sent = sum(row.sent_bytes for row in rows)
        table.note += f"; this process sends {bytes_text(sent)} to other processes"
    return table


def memory(*, step: bool | None = None) -> MemoryTable:
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
    programs, which, is_step = programs_to_show("memory", read_step("memory", step))
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
        f"peak {bytes_text(peak)} per device, {where}; inputs {bytes_text(inputs)}, results "
        f"{bytes_text(outputs)}; {len(live)} values alive at the peak"
        + (f"; {which}" if which else "")
    )
    if again:
        gathers = sum(row.how == "gathered" for row in table.made_again)
        table.note += (
            f"; {gathers} values are gathered and {len(again) - gathers} computed again, which "
            f"sends {bytes_text(wire)} more, since the program would hold {bytes_text(without)}"
        )
    return table


def timeline(
    on: str | None = None, *, step: bool | None = None, efficiency: float | None = None
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
    programs, which, _ = programs_to_show("timeline", read_step("timeline", step))
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
        f"{seconds_text(seconds)} on {table.machine}, "
        f"{seconds_text(table.exposed_seconds)} of it waiting; "
        f"MFU {100 * table.mfu:.1f} %, HFU {100 * table.hfu:.1f} %; "
        + "; ".join(table.placement or ["one device"])
        + (f"; {which}" if which else "")
    )
    return table


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
    for name, milliseconds in last_program().pass_times():
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


def _timed(program: _C.CompiledProgram, on: str | None, efficiency: float | None) -> dict[str, Any]:
    try:
        return program.timeline(on, efficiency)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"timeline: on: {str(error)[:400]}") from None
