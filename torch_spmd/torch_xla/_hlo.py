# SPDX-License-Identifier: Apache-2.0
"""Texts about tensors in the spirit of XLA's HLO: names of ops, shapes, shardings.

They are translations of the session's own text (`spmd.debug.print_graph`), not programs that XLA
reads; numbers of instructions and fusions are not XLA's.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

from torch import Tensor

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.torch_xla import _manual, _marks, _tiles
from torch_spmd.torch_xla._hlo_module import Module, kind_of, returned

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
    """The pending work that the tensors need; with XLA_DUMP_POST_OPTIMIZATIONS=1 what is pending is
    run, and the text is that of the program of every device."""
    if os.environ.get("XLA_DUMP_POST_OPTIMIZATIONS", "0") not in ("0", ""):
        spmd.sync(wait=True)
        program = _C.last_program()
        if program is not None:
            return _with_dashes(str(program.program_text()))
    return module(tensors).text("IrToHlo")


def module(tensors: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Module:
    """The instructions that the tensors need. Of `others`, which have marks, those that are inputs
    of them get an entry in `parameters` by their position among the others."""
    values = [_data(t) for t in tensors]
    # A value without a mark that is not pending is no value of the graph, or asking would make it
    # one, behind which a mark means a copy.
    known = [spmd.sharding_of(v).is_committed or _marks.state(v) == _marks.PENDING for v in values]
    asked = [*itertools.compress(values, known), *others]
    graph, names = _marks.asked_of_graph(asked)
    made = Module(graph)
    given = iter(names)
    for t, value, in_graph in zip(tensors, values, known):
        result = made.value(next(given)) if in_graph else made.add_parameter(_laid_out(value))
        if isinstance(t, _manual.ManualTensor):
            made.constrained(result, "SPMDFullToShardShape", _laid_out(t), _tiles.MANUAL)
        elif _manual.is_end(t) and "Sharding" in result.attributes:
            result.attributes = made.call_of("SPMDShardToFullShape")
        elif _manual.is_manual(t):
            made.constrained(result, "Sharding", _laid_out(t), _tiles.MANUAL)
    for position, name in enumerate(given):
        if name in made.parameters:
            made.parameters[str(position)] = made.parameters[name]
    return made


def _data(t: Tensor) -> Tensor:
    """Of a tensor in a manual region what it was made of, or the parts of all devices."""
    if not isinstance(t, _manual.ManualTensor):
        return t
    whole = t.whole()
    return t.parts if whole is None else whole


def _laid_out(t: Tensor) -> str:
    return kind_of(shape(t))


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
        whole = Module(pending)
        for name in whole.results():
            whole.value(name)
        lines += [whole.text("IrToHlo").rstrip(), "## END_GRAPH", ""]
        results = returned(str(program.graph_text())) if program is not None else []
        lines += ["#OUTPUT_SHARDING_BEGIN", *results, "#OUTPUT_SHARDING_END", ""]
    else:
        lines += [pending.rstrip(), "## END_GRAPH", ""]
    with open(f"{path}.0", "a") as file:
        file.write("\n".join(lines) + "\n")


def debug_info(t: Tensor) -> str:
    """What is known of a tensor: host data, an input of pending work, pending or stored, and its
    sharding."""
    state = _marks.state(_data(t))
    sharding = _marks.text_of(t)
    marked = bool(sharding)
    # Data of the host are an input once pending work reads them; how they are placed is not known.
    is_free = state == _marks.UPLOADED and not marked
    on_host = is_free and not _C.read_by_pending(_data(t).untyped_storage())
    lines = [
        "XLATensor {",
        "Device: SPMD:0",
        f"ShardingSpec: {sharding or 'None'}",
        f"IR: {_ir(t, state, on_host)}",
        f"Tensor on host: {f'with size {list(t.shape)}' if on_host else 'None'}",
    ]
    if is_free or state == _marks.PENDING:
        lines.append("XLAData: None")
    else:
        kind = "XLAShardedData" if sharding else "XLAData"
        lines += [
            "XLAData: ",
            f"  {kind}:",
            "  Data Device: SPMD:0",
            f"  Data Shape: {shape(t)}",
            f"  OpSharding: {sharding or '{replicated}'}",
            f"  NumShards: {spmd.config.device_count()}",
        ]
    return "\n".join(lines) + "\n}"


def _ir(t: Tensor, state: str, on_host: bool) -> str:
    if on_host:
        return "None"
    if state == _marks.PENDING:
        lines = [line for line in str(_C.pending_graph()).splitlines() if " = " in line]
        return lines[-1].split(" = ", 1)[1] if lines else "pending"
    return f"xla::device_data, {shape(t)}"
