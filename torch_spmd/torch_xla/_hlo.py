# SPDX-License-Identifier: Apache-2.0
"""Texts about tensors in the spirit of XLA's HLO: names of ops, shapes, shardings.

They are translations of the session's own text (`spmd.debug.print_graph`), not programs that XLA
reads; numbers of instructions and fusions are not XLA's.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.torch_xla import _manual, _marks, _tiles

_KINDS = {
    "torch.float32": "f32", "torch.float64": "f64", "torch.float16": "f16",
    "torch.bfloat16": "bf16", "torch.int64": "s64", "torch.int32": "s32", "torch.int16": "s16",
    "torch.int8": "s8", "torch.uint8": "u8", "torch.bool": "pred", "torch.complex64": "c64",
    "torch.complex128": "c128",
}  # fmt: skip


def shape(t: Tensor) -> str:
    """XLA's text of dtype and sizes: "f32[2,4]"."""
    return f"{_KINDS.get(str(t.dtype), str(t.dtype))}[{','.join(map(str, t.shape))}]"


def graph(tensors: Sequence[Tensor]) -> str:
    """The pending work, as the session writes it."""
    if any(_marks.state(_data(t)) == _marks.PENDING for t in tensors):
        return str(_C.pending_graph())
    return ""


def text(tensors: Sequence[Tensor]) -> str:
    """The pending work; with XLA_DUMP_POST_OPTIMIZATIONS=1 it is run, and the text is that of the
    program of every device."""
    if os.environ.get("XLA_DUMP_POST_OPTIMIZATIONS", "0") not in ("0", ""):
        spmd.sync(wait=True)
        program = _C.last_program()
        if program is not None:
            return _with_dashes(str(program.program_text()))
    lines = []
    for number, t in enumerate(tensors):
        data = _data(t)
        if _marks.state(data) == _marks.PENDING:
            continue
        lines.append(f"  %p{number} = {_laid_out(data)} parameter({number}){_sharded(data)}")
    pending = graph(tensors)
    if pending:
        lines += _translated(pending)
    for number, t in enumerate(tensors):
        if _manual.is_manual(t):
            lines.append(
                f"  %part.{number} = {_laid_out(t)} custom-call(), "
                'custom_call_target="SPMDFullToShardShape", sharding={manual}'
            )
        elif pending and (sharding := _marks.text_of(t)):
            lines.append(
                f"  %result.{number} = {_laid_out(t)} custom-call(), "
                f'custom_call_target="Sharding", sharding={sharding}'
            )
    body = "\n".join(lines)
    return f"HloModule IrToHlo\n\nENTRY %IrToHlo {{\n{body}\n}}\n"


def _data(t: Tensor) -> Tensor:
    return t.parts if isinstance(t, _manual.ManualTensor) else t


def _laid_out(t: Tensor) -> str:
    order = ",".join(str(d) for d in reversed(range(t.dim())))
    return f"{shape(t)}{{{order}}}" if t.dim() else shape(t)


def _sharded(t: Tensor) -> str:
    sharding = _marks.text_of(t)
    return f", sharding={sharding}" if sharding else ""


_MESH = re.compile(r"mesh (@\w+) \[([^\]]*)\](?: devices=\[([\d,]+)\])?")
_LINE = re.compile(r"\s*(?P<results>%.*?) = (?P<op>[\w:.]+)\((?P<operands>.*?)\)(?: at .*)?$")
_VALUE = re.compile(r"(%\w+): (\w+\[[\d,]*\])(?: (@\w+) ((?:\{[^}]*\},?)+))?")


def _translated(pending: str) -> list[str]:
    """A line of HLO's form for each of the session's."""
    meshes = {found[1]: _axes(found[2], found[3]) for found in _MESH.finditer(pending)}
    lines = []
    for line in pending.splitlines():
        found = _LINE.match(line)
        values = _VALUE.findall(found["results"] if found else line)
        if not values:
            continue
        kinds = ", ".join(kind for _, kind, *_ in values)
        kinds = kinds if len(values) == 1 else f"({kinds})"
        texts = [_mark(meshes[mesh], dims) for _, _, mesh, dims in values if mesh]
        sharding = f", sharding={', '.join(texts)}" if texts else ""
        call = "parameter()"
        if found:
            op = found["op"].split("::")[-1].split(".")[0].replace("_", "-").strip("-")
            call = f"{op}({found['operands']})"
        lines.append(f"  {values[0][0]} = {kinds} {call}{sharding}")
    return lines


def _axes(axes: str, ids: str | None) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The names of a mesh's axes and its devices."""
    pairs = [axis.split("@")[0].split("=") for axis in axes.split(", ") if axis]
    sizes = [int(size) for _, size in pairs]
    count = math.prod(sizes)
    devices = np.arange(count) if ids is None else np.array([int(d) for d in ids.split(",")])
    return [name for name, _ in pairs], devices.reshape(sizes)


def _mark(mesh: tuple[list[str], np.ndarray[Any, Any]], dims: str) -> str:
    """XLA's text of the session's, such as "{a},{}"; the session's where it names parts of axes."""
    names, devices = mesh
    spec = [[axis for axis in dim.split(",") if axis] for dim in re.findall(r"\{([^}]*)\}", dims)]
    if any(axis not in names for dim in spec for axis in dim):
        return dims
    array = _tiles.array_of(devices, [tuple(map(names.index, dim)) for dim in spec])
    return _tiles.OpSharding.of(array).text()


def _with_dashes(program: str) -> str:
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"):
        program = program.replace(name, name.replace("_", "-"))
    return program


def dump(run: Callable[[], None]) -> None:
    """Runs what is pending by `run`. With XLA_SAVE_TENSORS_FILE its text is appended to that file,
    whose name gets ".0" added: the session's text, or HLO's form and the shardings of the results
    with XLA_SAVE_TENSORS_FMT=hlo."""
    path = os.environ.get("XLA_SAVE_TENSORS_FILE")
    pending = str(_C.pending_graph()) if path and _C.sizes()["pending_records"] else ""
    run()
    if not pending:
        return
    lines = ["[TensorsGraphInfo]", "", "## BEGIN_GRAPH"]
    program = _C.last_program()
    if os.environ.get("XLA_SAVE_TENSORS_FMT") == "hlo":
        lines += ["HloModule IrToHlo", "", *_translated(pending), "## END_GRAPH", ""]
        results = _results(str(program.graph_text())) if program is not None else []
        lines += ["#OUTPUT_SHARDING_BEGIN", *results, "#OUTPUT_SHARDING_END", ""]
    else:
        lines += [pending.rstrip(), "## END_GRAPH", ""]
    with open(f"{path}.0", "a") as file:
        file.write("\n".join(lines) + "\n")


def _results(graph: str) -> list[str]:
    """Type and sharding of each result of a graph: "f32[8] {replicated}"."""
    meshes = {found[1]: _axes(found[2], found[3]) for found in _MESH.finditer(graph)}
    texts: dict[str, str] = {}
    for name, kind, mesh, dims in _VALUE.findall(graph):
        texts.setdefault(name, f"{kind} {_mark(meshes[mesh], dims) if mesh else '{replicated}'}")
    returned = [line for line in graph.splitlines() if line.strip().startswith("return ")]
    if not returned:
        return []
    names = [part.split(" -> ")[0].strip() for part in returned[-1].strip()[7:].split(",")]
    return [texts[name] for name in names if name in texts]


def debug_info(t: Tensor) -> str:
    """What is known of a tensor: host data, pending or stored, and its sharding."""
    state = _marks.state(_data(t))
    sharding = _marks.text_of(t)
    marked = bool(sharding)
    on_host = state == _marks.UPLOADED and not marked
    lines = [
        "XLATensor {",
        "Device: SPMD:0",
        f"ShardingSpec: {sharding or 'None'}",
        f"IR: {_ir(t, state, on_host)}",
        f"Tensor on host: {f'with size {list(t.shape)}' if on_host else 'None'}",
    ]
    if on_host or state == _marks.PENDING:
        lines.append("XLAData: None")
    else:
        kind = "XLAShardedData" if sharding else "XLAData"
        lines += [
            "XLAData: ",
            f"  {kind}:",
            "  Data Device: SPMD:0",
            f"  Data Shape: {shape(t)}",
            f"  OpSharding: {sharding or '{replicated}'}",
            f"  NumShards: {spmd.device_count()}",
        ]
    return "\n".join(lines) + "\n}"


def _ir(t: Tensor, state: str, on_host: bool) -> str:
    if on_host:
        return "None"
    if state == _marks.PENDING:
        lines = [line for line in str(_C.pending_graph()).splitlines() if " = " in line]
        return lines[-1].split(" = ", 1)[1] if lines else "pending"
    return f"xla::device_data, {shape(t)}"
