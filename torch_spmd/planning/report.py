# SPDX-License-Identifier: Apache-2.0
"""Candidates of spmd.plan as text, as tables of rich, and as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_spmd.debug import plots
from torch_spmd.debug.tables import bytes_text, seconds_text

if TYPE_CHECKING:
    from torch_spmd.planning import plans

PURPOSES = ("argument", "gradient", "gathered", "activation")
COLUMNS = (
    *("on", "mesh", "fits", "HBM", "of", "arguments", "gradients", "activations", "gathered"),
    *("a step", "band", "MFU", "exposed", "sent by axis"),
)
SHOWN = 5  # large values and collectives in a note


def cells(row: plans.PlanRow) -> list[str]:
    fits = "yes" if row.fits else f"NO, {bytes_text(row.missing)} missing"
    return [
        row.on, row.mesh, fits, bytes_text(row.hbm),
        bytes_text(row.memory), bytes_text(row.arguments), bytes_text(row.gradients),
        bytes_text(row.activations), bytes_text(row.gathered), seconds_text(row.seconds),
        f"{seconds_text(row.low)} … {seconds_text(row.high)}", f"{100 * row.mfu:.1f} %",
        seconds_text(row.exposed),
        ", ".join(f"{axes} {bytes_text(wire)}" for axes, wire in row.wire.items()) or "nothing",
    ]  # fmt: skip


def details(made: plans.Candidate) -> str:
    row = made.row
    head = f"{row.on}, {row.mesh}: " + "; ".join(made.placement or ["one device"])
    lines = [head]
    if not row.fits:
        lines.append(f"does not fit: {bytes_text(row.missing)} are missing on each device")
    lines.append("largest at the peak:")
    for v in made.largest[:SHOWN]:
        origin = f"{v.op} {v.line}".strip()
        lines.append(
            f"  {bytes_text(v.bytes):>10}  {v.what:10} {v.number} of {v.type} {v.sharding}  "
            f"{origin}"
        )
    if made.collectives:
        lines.append("sent most:")
    for sent in made.collectives[:SHOWN]:
        lines.append(
            f"  {bytes_text(sent.wire):>10}  {sent.times} {sent.kind} over {sent.axes}  {sent.line}"
        )
    lines.append("to change:" if made.advice else "nothing stands out that should change")
    lines += [f"  {text}" for text in made.advice]
    return "\n".join(lines)


def rich_table(table: plans.PlanTable) -> Any:
    """For `rich.print`. Errors: ImportError without rich, which is what asked for it."""
    from rich.console import Group
    from rich.table import Table

    drawn = Table(*COLUMNS)
    for row in table.rows:
        drawn.add_row(*cells(row), style="" if row.fits else "red")
    return Group(drawn, table.note) if table.note else drawn


def plot(made: plans.Candidate, path: str | None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    roof, memory = figure.subplots(1, 2)
    products = made.roofline()
    if products:
        roof.scatter(
            [p.intensity for p in products],
            [p.flops_per_second for p in products],
            [4 + 300 * p.seconds / made.row.seconds for p in products],
            alpha=0.5,
        )
        low = min(p.intensity for p in products) / 2
        high = max(*(p.intensity for p in products), made.peak_flops / made.memory_bandwidth) * 2
        xs = [low, made.peak_flops / made.memory_bandwidth, high]
        roof.plot(xs, [min(made.peak_flops, x * made.memory_bandwidth) for x in xs], color="black")
        roof.axhline(made.peak_flops * made.efficiency, color="grey", linestyle=":")
    roof.set(
        xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="FLOP/s of a device",
        title=f"products on {made.row.on}: MFU {100 * made.row.mfu:.1f} %",
    )  # fmt: skip
    times, held = made.memory_over_time()
    plots.stack(memory, [1e3 * t for t in times], held, made.row.memory, "memory")
    memory.set(xlabel="ms", title=f"memory, {made.row.mesh}")
    memory.legend(loc="upper left", fontsize="small")
    return plots.save(figure, path)
