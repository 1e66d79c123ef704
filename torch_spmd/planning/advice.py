# SPDX-License-Identifier: Apache-2.0
"""A candidate of spmd.plan from its compiled programs, and what should be changed about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch_spmd import _C
from torch_spmd.debug.tables import bytes_text
from torch_spmd.planning import trace as _plan_trace
from torch_spmd.planning.plans import Candidate, LargeValues, PlanRow, Sent

# What the modelled seconds of published runs differ by on average, where the run itself took no
# part in fitting its chip's constant (python -m benchmarks.published; docs/design/0034-seconds.md).
BAND_TPU = 0.12
BAND_GPU = 0.20


def candidate(
    machine: Mapping[str, Any],
    mesh: Mapping[str, int],
    programs: Sequence[_C.CompiledProgram],
    trace: _plan_trace.Trace,
) -> Candidate:
    """The candidate whose step is `programs`, one after the other."""
    distinct = {program.number: program for program in programs}
    uses = {number: _C.memory_use(program) for number, program in distinct.items()}
    times = {n: _C.predicted(program, machine["name"]) for n, program in distinct.items()}
    sent = _sent(programs)
    largest = max(uses.values(), key=lambda use: sum(use[0].values()))
    order = [program.number for program in programs]
    seconds = sum(times[n]["seconds"] for n in order)
    exposed = sum(times[n]["exposed_seconds"] for n in order)
    last = max(times.values(), key=lambda t: t["devices"])
    possible = seconds * last["devices"] * last["peak_flops"]
    band = BAND_GPU if machine["name"][0].isdigit() else BAND_TPU
    wire: dict[str, int] = {}
    for one in sent:
        wire[one.axes] = wire.get(one.axes, 0) + one.wire
    held = largest[0]
    hbm = sum(held.values())
    row = PlanRow(
        machine["name"],
        " ".join(f"{axis}={size}" for axis, size in mesh.items()),
        hbm <= machine["memory_bytes"],
        hbm,
        machine["memory_bytes"],
        held["argument"],
        held["gradient"],
        held["activation"],
        held["gathered"],
        seconds,
        seconds * (1 - band),
        seconds * (1 + band),
        sum(times[n]["model_flops"] for n in order) / possible if possible else 0.0,
        exposed,
        wire,
    )
    values = _grouped(largest[1])
    made = Candidate(
        row, dict(mesh), dict(trace.specs), values[:20], [], last["placement"],
        last["peak_flops"], last["efficiency"], last["memory_bandwidth"],
        sum(times[n]["hardware_flops"] for n in order) / possible if possible else 0.0,
        sent, [times[n]["entries"] for n in order], [uses[n][2] for n in order],
    )  # fmt: skip
    made.advice = advice(made, values, trace.names)
    return made


def _grouped(live: Sequence[tuple[str, str, str, str, int, str, str]]) -> list[LargeValues]:
    """What is alive at the peak, by type and origin, largest first."""
    found: dict[tuple[str, ...], list[int]] = {}
    for _, type_text, sharding, what, size, op, line in live:
        entry = found.setdefault((what, type_text, sharding, op, line), [0, 0])
        entry[0] += 1
        entry[1] += size
    rows = [
        LargeValues(what, count, total, type_text, sharding, op, line)
        for (what, type_text, sharding, op, line), (count, total) in found.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)


def _sent(programs: Sequence[_C.CompiledProgram]) -> list[Sent]:
    found: dict[tuple[str, str, str], list[int]] = {}
    for program in programs:
        for kind, axes, _, _, _, wire, _, line, _ in program.collectives():
            entry = found.setdefault((kind, axes, line), [0, 0])
            entry[0] += 1
            entry[1] += wire
    rows = [Sent(kind, axes, n, wire, line) for (kind, axes, line), (n, wire) in found.items()]
    return sorted(rows, key=lambda row: -row.wire)


def advice(
    made: Candidate,
    values: Sequence[LargeValues],
    names: Mapping[tuple[int, ...], list[str]],
) -> list[str]:
    """What would make it fit or go faster, what saves most first."""
    row = made.row
    texts = _advice_on_memory(made, values, names) if 2 * row.hbm > row.memory else []
    if row.seconds > 0 and row.exposed > 0.15 * row.seconds and made.collectives:
        worst = made.collectives[0]
        texts.append(
            f"{100 * row.exposed / row.seconds:.0f} % of the step waits for communication, most of "
            f"it {worst.kind} over {worst.axes} ({bytes_text(worst.wire)}"
            f"{f', {worst.line}' if worst.line else ''}): a larger batch, or fewer devices along "
            "that axis, hides more of it"
        )
    return texts


def _advice_on_memory(
    made: Candidate, values: Sequence[LargeValues], names: Mapping[tuple[int, ...], list[str]]
) -> list[str]:
    row, said = made.row, []
    unused = _replicated(values, made.mesh)
    for axis, found in unused.items():
        size = made.mesh[axis]
        saves = sum(v.bytes for v in found) * (size - 1) // size
        if saves < 0.05 * row.hbm:
            continue
        largest = max(found, key=lambda v: v.bytes)
        said.append(
            (saves, f"{bytes_text(saves)}: shard what is replicated over {axis!r}, such as "
             f"{largest.number} of {_called(largest, names)}: add {axis!r} to its spec (FSDP)")
        )  # fmt: skip
    if row.activations > 0.3 * row.hbm:
        where = next((v.line for v in values if v.what == "activation" and v.line), "")
        said.append(
            (row.activations // 2, f"{bytes_text(row.activations)} are activations"
             f"{f', the largest from {where}' if where else ''}: recompute them "
             "(torch.utils.checkpoint around each block), mark them over a further axis, or take "
             "a smaller batch")
        )  # fmt: skip
    if row.gradients > 0.2 * row.hbm:
        said.append(
            (row.gradients // 2, f"{bytes_text(row.gradients)} are gradients that wait for the "
             "optimizer: parameters in bf16 or sharded over a further axis halve them")
        )  # fmt: skip
    if row.gathered > 0.2 * row.hbm:
        said.append(
            (row.gathered // 2, f"{bytes_text(row.gathered)} are gathered weights: a second "
             "mesh axis that shards the layers' widths (tensor parallelism) gathers less at a time")
        )  # fmt: skip
    return [text for _, text in sorted(said, key=lambda pair: -pair[0])]


def _replicated(
    values: Sequence[LargeValues], mesh: Mapping[str, int]
) -> dict[str, list[LargeValues]]:
    """By axis, the arguments that are not sharded over it and could be."""
    found: dict[str, list[LargeValues]] = {}
    for axis, size in mesh.items():
        if size == 1:
            continue
        rows = [
            v
            for v in values
            if v.what == "argument"
            and not re.search(rf"\b{re.escape(axis)}\b", v.sharding)
            and max(_sizes(v.type), default=1) >= size
        ]
        if rows:
            found[axis] = rows
    return found


def _sizes(type_text: str) -> list[int]:
    return [int(size) for size in re.findall(r"\d+", type_text.partition("[")[2])]


def _called(value: LargeValues, names: Mapping[tuple[int, ...], list[str]]) -> str:
    """A parameter, or state of the optimizer, by the names of parameters of its shape."""
    known = names.get(tuple(_sizes(value.type)))
    if not known:
        return value.type
    patterns = list(dict.fromkeys(re.sub(r"\d+", "*", name) for name in known))
    return f"{value.type} (as {', '.join(patterns[:2])})"
