# SPDX-License-Identifier: Apache-2.0
"""What a compiled HLO module costs, read from its text.

    %all-gather.9 = f32[8,256,80]{2,1,0} all-gather(%x), replica_groups={{0,1},{2,3}}, …
    name            type                  op         operands                attributes

Collectives and instructions in the body of a loop count as often as the loop runs. Bytes on the
wire are per device: of an all-gather and an all-to-all of b bytes among n devices b·(n − 1)/n, of
an all-reduce twice that, of a reduce-scatter b·(n − 1), of a permute b. XLA:CPU makes no
reduce-scatter: the part of an all-reduce of which only a slice is used afterwards counts as one.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
    "reduce-scatter": "reduce_scatter",
}
# Instructions that do nothing when the program runs.
NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
# Instructions that change only the shape of a value.
SAME_VALUE = {"bitcast", "reshape", "copy", "transpose", "convert"}

NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
LAYOUT_OR_COMMENT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")


class Instruction(NamedTuple):
    name: str
    type: str
    op: str
    operands: list[str]  # names, or what is written instead if there are none
    attributes: str


class Module(NamedTuple):
    """The computations of a module by name, with their instructions in order."""

    entry: str
    computations: dict[str, list[Instruction]]


class Collectives(NamedTuple):
    counts: dict[str, int]
    wire_bytes: float


def parse(text: str) -> Module:
    entry = ""
    computations: dict[str, list[Instruction]] = {}
    current = None
    for line in text.splitlines():
        if heading := COMPUTATION.match(line):
            current = computations.setdefault(heading["name"], [])
            entry = heading["name"] if heading["entry"] else entry
        elif current is not None and (named := NAME.match(line)):
            current.append(instruction(named[1], line[named.end() :]))
    return Module(entry, computations)


def instruction(name: str, text: str) -> Instruction:
    """`text` is what follows the `=`."""
    end = closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opening = text.index("(", end)
    after = closing(text, opening)
    inside = text[opening + 1 : after]
    operands = re.findall(r"%([\w.\-]+)", inside) or [inside]
    return Instruction(name, text[:end], text[end:opening].strip(), operands, text[after + 1 :])


def closing(line: str, opening: int) -> int:
    """The index at which the parenthesis that opens at `opening` is closed."""
    depth = 0
    for at in range(opening, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return at
    return len(line)


def parts(type_text: str) -> list[float]:
    """Bytes of each array of a type, tuples flat."""
    return [
        bits(element) / 8 * math.prod(int(size) for size in shape.split(",") if size)
        for element, shape in ARRAY.findall(LAYOUT_OR_COMMENT.sub("", type_text))
    ]


def bits(element: str) -> int:
    """The bits of an element type: `pred` 8, `bf16` 16, `f8e4m3` 8, `c64` 64."""
    width = re.match(r"[a-z]+(\d+)", element)
    return int(width[1]) if width else 8


def group_size(attributes: str, devices: int) -> int:
    """The number of devices in one group of a collective, in each notation."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return listed[1].count(",") + 1
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(iota[1])
    if axes := re.search(r"replica_groups=@?\w*\[(.*?)\][^{]*\{(.*?)\}", attributes):
        of = dict(re.findall(r"'([^']+)'=(\d+)", axes[1]))
        # 'data' is the axis, 'data':(2)4 the part of size 4 that follows 2.
        used = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes[2])
        return math.prod(int(size or of[name]) for name, size in used)
    return devices


def trip_count(loop: Instruction) -> int:
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    return int(known[1]) if known else 1


def called(i: Instruction) -> list[str]:
    """The computations that an instruction runs, except a loop's condition."""
    named = re.findall(r"(?:body|calls|to_apply|\w+_computation)=%?([\w.\-]+)", i.attributes)
    branches = re.search(r"branch_computations=\{(.*?)\}", i.attributes)
    return named + (re.findall(r"%([\w.\-]+)", branches[1]) if branches else [])


def run(module: Module) -> Iterator[tuple[int, str, Instruction]]:
    """Every instruction that a step runs, how often and in which computation; a fusion is one."""
    todo = [(module.entry, 1)]
    while todo:
        name, times = todo.pop()
        for i in module.computations[name]:
            yield times, name, i
            if i.op in ("while", "call", "conditional", "async-start"):
                todo += [
                    (c, times * trip_count(i) if i.op == "while" else times) for c in called(i)
                ]


def instructions(module: Module) -> int:
    """The instructions that a step launches: after fusion, without those that do no work."""
    return sum(times for times, _, i in run(module) if i.op not in NO_WORK)


class Uses:
    """Whether only a slice of a value is used."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._users: dict[str, dict[str, list[Instruction]]] = {}

    def _of(self, computation: str, value: str) -> list[Instruction]:
        if computation not in self._users:
            users = self._users[computation] = defaultdict(list)
            for i in self._module.computations[computation]:
                for operand in set(i.operands):
                    users[operand].append(i)
        return self._users[computation][value]

    def elements(self, computation: str, i: Instruction) -> list[list[str]]:
        """The names of each element of an instruction's result."""
        if not i.type.startswith("("):
            return [[i.name]]
        names: list[list[str]] = [[] for _ in parts(i.type)]
        for user in self._of(computation, i.name):
            if user.op == "get-tuple-element":
                index = re.search(r"index=(\d+)", user.attributes)
                assert index is not None
                names[int(index[1])].append(user.name)
        return names

    def only_sliced(self, computation: str, value: str) -> bool:
        users = self._of(computation, value)
        return bool(users) and all(self._slices(computation, value, user) for user in users)

    def _slices(self, computation: str, value: str, user: Instruction) -> bool:
        if user.op == "dynamic-slice":
            return user.operands[0] == value
        if user.op in SAME_VALUE:
            return self.only_sliced(computation, user.name)
        if user.op != "fusion":
            return False
        body = called(user)[0]
        parameters = {
            i.name
            for i in self._module.computations[body]
            if i.op == "parameter" and user.operands[int(i.operands[0])] == value
        }
        return all(self.only_sliced(body, parameter) for parameter in parameters)


def collectives(module: Module, devices: int) -> Collectives:
    """By kind, the number of collectives and the bytes of all of them."""
    counts: Counter[str] = Counter()
    total = 0.0
    uses = Uses(module)
    for times, computation, i in run(module):
        base = i.op.removesuffix("-start")
        if base not in KINDS:
            continue
        among = group_size(i.attributes, devices)
        if among == 1 and base != "collective-permute":
            continue
        counts[KINDS[base]] += times
        total += times * wire_bytes(uses, computation, i, base, among)
    return Collectives(dict(counts), total)


def wire_bytes(uses: Uses, computation: str, i: Instruction, kind: str, among: int) -> float:
    """The bytes that each device sends in one collective."""
    sizes = parts(i.type)
    if i.op.endswith("-start") and kind in ("all-gather", "collective-permute"):
        sizes = sizes[len(sizes) // 2 :]  # operands, then results
    if kind == "collective-permute":
        return sum(sizes)
    if kind == "reduce-scatter":
        return sum(sizes) * (among - 1)
    moved = sum(sizes) * (among - 1) / among
    if kind != "all-reduce":
        return moved
    sliced = sum(
        size
        for size, names in zip(parts(i.type), uses.elements(computation, i))
        if names and all(uses.only_sliced(computation, name) for name in names)
    )
    return 2 * moved - sliced * (among - 1) / among
