# SPDX-License-Identifier: Apache-2.0
"""A part of the session's pending graph as instructions of HLO: their form is XLA's, and so is the
way in which they are named ("add.3": the op and the position), but the ops are the session's, so
their numbers are not those that XLA's lowering would give.

    %p0.1 = f32[8,4]{1,0} parameter(0), sharding={devices=[2,2]0,1,2,3}
    %mul.2 = f32[8,4]{1,0} mul(f32[8,4]{1,0} %p0.1, f32[8,4]{1,0} %p0.1)

A number that a step passes to its program (design 0022) is a parameter too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_spmd.torch_xla import _tiles

_KINDS = {
    "bool": "pred", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64", "int": "s64",
    "float": "f64", "complex": "c128",
}  # fmt: skip
_MESH = re.compile(r"mesh (@\w+) \[([^\]]*)\](?: devices=\[([\d,]+)\])?")
_LINE = re.compile(
    r"\s*(?P<results>%.*?) = (?P<op>[\w:.]+)\((?P<operands>.*?)\)"
    r"(?: (?:updates|task)\(\d+\))*(?: at .*)?$"
)
_VALUE = re.compile(r"(%\w+): (\w+\[[\d,]*\])(?: (@\w+)=? ((?:\{[^}]*\},?)+))?")
_SCALAR = re.compile(r"\s*scalar (\$\d+): (\w+)")
_OPERAND = re.compile(r"[%$]\w+")
_SPLIT = re.compile(r", (?![^\[\]]*\])")  # a comma that is not between brackets


def kind_of(text: str) -> str:
    """XLA's type with its layout, for the session's ("i64[2,3]") or for XLA's without one."""
    name, _, sizes = text.partition("[")
    dims = sizes.rstrip("]")
    order = ",".join(str(d) for d in reversed(range(dims.count(",") + 1)))
    return f"{_KINDS.get(name, name)}[{dims}]" + (f"{{{order}}}" if dims else "")


@dataclass
class Instruction:
    """`kind` is the type; of an op with several results those of all, in parentheses."""

    number: int
    opcode: str
    kind: str
    operands: list[Instruction]
    attributes: str = ""
    sharding: str = ""
    parameter: int | None = None

    @property
    def name(self) -> str:
        stem = self.opcode if self.parameter is None else f"p{self.parameter}"
        return f"{stem}.{self.number}"

    def __str__(self) -> str:
        inside = ", ".join(f"{o.kind} %{o.name}" for o in self.operands)
        inside = inside if self.parameter is None else str(self.parameter)
        sharding = f", sharding={self.sharding}" if self.sharding else ""
        return f"%{self.name} = {self.kind} {self.opcode}({inside}){self.attributes}{sharding}"

    def fields(self) -> dict[str, Any]:
        """The fields of XLA's `HloInstructionProto`."""
        found: dict[str, Any] = {"name": self.name, "opcode": self.opcode}
        if not self.kind.startswith("("):
            element, _, sizes = self.kind.partition("{")[0].partition("[")
            dims = [int(size) for size in sizes.rstrip("]").split(",") if size]
            found["shape"] = {"element_type": element.upper(), "dimensions": dims}
        if self.parameter is not None:
            found["parameter_number"] = self.parameter
        if target := re.search(r'custom_call_target="(\w+)"', self.attributes):
            found["custom_call_target"] = target[1]
        if self.sharding:
            found["sharding"] = _sharding_fields(self.sharding)
        found["id"] = self.number
        found["operand_ids"] = [operand.number for operand in self.operands]
        return found


def _sharding_fields(text: str) -> dict[str, Any]:
    if text == _tiles.MANUAL:
        return {"type": "MANUAL"}
    try:
        array = _tiles.parse(text).array
    except ValueError:  # the session's text, which names parts of axes
        return {"type": "UNKNOWN"}
    if array is None:
        return {"type": "REPLICATED"}
    partial = array.shape[-1] > 1
    return {
        "type": "OTHER",
        "tile_assignment_dimensions": list(array.shape if partial else array.shape[:-1]),
        "tile_assignment_devices": array.reshape(-1).tolist(),
        "replicate_on_last_tile_dim": partial,
    }


class Module:
    """Instructions in an order in which they can run, each once.

    `parameters` has the parameters by the graph's names of inputs and numbers ("%x0", "$1").
    """

    def __init__(self, graph: str) -> None:
        self.instructions: list[Instruction] = []
        self.parameters: dict[str, Instruction] = {}
        self._parameters = 0
        self._values: dict[str, Instruction] = {}
        self._lines: dict[str, re.Match[str]] = {}  # by the names of their results
        self._inputs: dict[str, tuple[str, str]] = {}  # type and sharding
        self.meshes = meshes_of(graph)
        for line in graph.splitlines():
            if scalar := _SCALAR.match(line):
                self._inputs[scalar[1]] = (f"{scalar[2]}[]", "")
            elif found := _LINE.match(line):
                self._lines.update((v[1], found) for v in _VALUE.finditer(found["results"]))
            elif (value := _VALUE.match(line.strip())) and value[1].startswith("%x"):
                self._inputs[value[1]] = (value[2], self._mark(value))

    def results(self) -> Iterator[str]:
        """The names of all values that ops of the graph compute."""
        yield from self._lines

    def add(
        self,
        opcode: str,
        kind: str,
        operands: list[Instruction],
        attributes: str = "",
        sharding: str = "",
    ) -> Instruction:
        number = len(self.instructions) + 1
        made = Instruction(number, opcode, kind, operands, attributes, sharding)
        self.instructions.append(made)
        return made

    def add_parameter(self, kind: str, sharding: str = "") -> Instruction:
        made = self.add("parameter", kind, [], "", sharding)
        made.parameter = self._parameters
        self._parameters += 1
        return made

    def value(self, name: str) -> Instruction:
        """The instruction of a value of the graph, behind those that it needs."""
        waiting = [name]
        while waiting:
            now = waiting[-1]
            needed = [] if now in self._values else self._needs(now)
            if needed:
                waiting += reversed(needed)
                continue
            waiting.pop()
            if now not in self._values:
                self._compute(now)
        return self._values[name]

    def _needs(self, name: str) -> list[str]:
        if name in self._inputs:
            return []
        operands = _OPERAND.findall(self._lines[name]["operands"])
        return [operand for operand in dict.fromkeys(operands) if operand not in self._values]

    def _compute(self, name: str) -> None:
        if name in self._inputs:
            kind, sharding = self._inputs[name]
            made = self.add_parameter(kind_of(kind), sharding)
            self._values[name] = self.parameters[name] = made
            return
        line = self._lines[name]
        values = list(_VALUE.finditer(line["results"]))
        pieces = _SPLIT.split(line["operands"]) if line["operands"] else []
        operands = [self._values[o] for o in _OPERAND.findall(line["operands"])]
        constants = [p for p in pieces if not _OPERAND.search(p) and p != "_"]
        opcode = line["op"].split("::")[-1].split(".")[0].replace("_", "-").strip("-")
        attributes = "".join(f", {piece}" for piece in constants)
        kinds = [kind_of(value[2]) for value in values]
        if len(values) == 1:
            self._result(values[0], self.add(opcode, kinds[0], operands, attributes))
            return
        made = self.add(opcode, f"({', '.join(kinds)})", operands, attributes)
        for index, (value, kind) in enumerate(zip(values, kinds)):
            self._result(value, self.add("get-tuple-element", kind, [made], f", index={index}"))

    def _result(self, value: re.Match[str], made: Instruction) -> None:
        """A mark of a value is a custom call behind the op, as in XLA's graphs."""
        if sharding := self._mark(value):
            made = self.constrained(made, "Sharding", made.kind, sharding)
        self._values[value[1]] = made

    def constrained(self, of: Instruction, target: str, kind: str, sharding: str) -> Instruction:
        return self.add("custom-call", kind, [of], self.call_of(target), sharding)

    @staticmethod
    def call_of(target: str) -> str:
        return f', custom_call_target="{target}"'

    def _mark(self, value: re.Match[str]) -> str:
        return mark_text(self.meshes[value[3]], value[4]) if value[3] else ""

    def text(self, name: str) -> str:
        body = "\n".join(f"  {instruction}" for instruction in self.instructions)
        return f"HloModule {name}\n\nENTRY %{name} {{\n{body}\n}}\n"

    def fields(self, name: str) -> dict[str, Any]:
        """The fields of XLA's `HloModuleProto`."""
        computation = {"name": name, "instructions": [i.fields() for i in self.instructions]}
        return {"name": name, "entry_computation_name": name, "computations": [computation]}


def proto_text(fields: dict[str, Any], indent: str = "") -> str:
    """Fields in the text format of protocol buffers."""
    lines = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                lines.append(f"{indent}{name} {{\n{proto_text(item, indent + '  ')}{indent}}}\n")
            else:
                # Names of an enumeration are written without quotes.
                plain = name in ("type", "element_type")
                lines.append(f"{indent}{name}: {item if plain else json.dumps(item)}\n")
    return "".join(lines)


Axes = tuple[list[str], "np.ndarray[Any, Any]"]


def meshes_of(graph: str) -> dict[str, Axes]:
    """The meshes that a text of the session names: the names of their axes, and their devices."""
    return {found[1]: _axes(found[2], found[3]) for found in _MESH.finditer(graph)}


def _axes(axes: str, ids: str | None) -> Axes:
    pairs = [axis.split("@")[0].split("=") for axis in axes.split(", ") if axis]
    sizes = [int(size) for _, size in pairs]
    count = math.prod(sizes)
    devices = np.arange(count) if ids is None else np.array([int(d) for d in ids.split(",")])
    return [name for name, _ in pairs], devices.reshape(sizes)


def mark_text(mesh: Axes, dims: str) -> str:
    """XLA's text of the session's, such as "{a},{}"; the session's where it names parts of axes."""
    names, devices = mesh
    spec = [[axis for axis in dim.split(",") if axis] for dim in re.findall(r"\{([^}]*)\}", dims)]
    if any(axis not in names for dim in spec for axis in dim):
        return dims
    array = _tiles.array_of(devices, [tuple(map(names.index, dim)) for dim in spec])
    return _tiles.OpSharding.of(array).text()


def returned(graph: str) -> list[str]:
    """Type and sharding of each result of a program's graph: "f32[8] {replicated}"."""
    meshes = meshes_of(graph)
    texts: dict[str, str] = {}
    for name, kind, mesh, dims in _VALUE.findall(graph):
        text = mark_text(meshes[mesh], dims) if mesh else _tiles.REPLICATED
        texts.setdefault(name, f"{kind_of(kind).partition('{')[0]} {text}")
    lines = [line.strip() for line in graph.splitlines() if line.strip().startswith("return ")]
    if not lines:
        return []
    names = [part.split(" -> ")[0].strip() for part in lines[-1].removeprefix("return ").split(",")]
    return [texts[name] for name in names if name in texts]
