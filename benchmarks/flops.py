# SPDX-License-Identifier: Apache-2.0
"""How much of the arithmetic is done more than once, read from the text of a program.

Counted are matrix products, convolutions and attention: operations of the busiest device × devices
/ operations of the whole. A call is shared by the axes that cut an operand or a result, but not by
those along which an operand is unreduced: every device works on its own term. The busiest device's
share of a dimension is rounded up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

Shape = tuple[int, ...]

_MESH = re.compile(r"^mesh @(\w+) \[(.*)\]", re.MULTILINE)
_VALUE = re.compile(
    r"(%\w+): \w+\[([\d,]*)\] @(\w+)"  # %7: f32[512,4096] @m
    r"((?: \{[\w,]*\}(?:,\{[\w,]*\})*)?)"  # {data},{model}
)
_CALL = re.compile(r"^  (%\w+): .* = call ([\w:.]+)\((.*)", re.MULTILINE)


class Value(NamedTuple):
    shape: Shape
    mesh: str
    cuts: tuple[tuple[str, ...], ...]  # per dimension


def redundancy(program: str) -> float:
    """1 where no device repeats another's work and all have the same."""
    meshes = {
        name: {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", axes)}
        for name, axes in _MESH.findall(program)
    }
    values = {match[0]: _value(*match[1:]) for match in _VALUE.findall(program)}
    done = needed = 0.0
    for name, op, arguments in _CALL.findall(program):
        operands = [values[v] for v in re.findall(r"%\w+", arguments.split("=")[0]) if v in values]
        if op in _COUNTS and name in values:
            shapes = [v.shape for v in operands]
            work = _COUNTS[op](values[name].shape, shapes, "transposed=true" in arguments)
            needed += work
            done += work * repeated([values[name], *operands], meshes[values[name].mesh])
    return done / needed if needed else 1.0


def repeated(values: list[Value], mesh: dict[str, int]) -> float:
    """By how much a call on these values exceeds its work when all devices are as busy as one."""
    used: set[str] = set()
    uneven: dict[tuple[str, ...], float] = {}
    for value in values:
        for size, axes in zip(value.shape, value.cuts):
            parts = math.prod(mesh[axis] for axis in axes)
            if axes and size:
                uneven[axes] = max(uneven.get(axes, 1.0), math.ceil(size / parts) * parts / size)
            used.update(axes)
    idle = math.prod(size for axis, size in mesh.items() if axis not in used)
    return idle * math.prod(uneven.values())


def _value(shape: str, mesh: str, cuts: str) -> Value:
    sizes = tuple(int(size) for size in shape.split(",") if size)
    axes = tuple(_axes(cut) for cut in re.findall(r"\{([\w,]*)\}", cuts)) or ((),) * len(sizes)
    return Value(sizes, mesh, axes)


def _axes(text: str) -> tuple[str, ...]:
    return tuple(axis for axis in text.split(",") if axis)


# Multiply-adds of a call, by the shapes of its first result and of its operands.
def _product(result: Shape, operands: list[Shape], _: bool) -> int:
    return math.prod(result) * operands[0][-1]


def _product_with_bias(result: Shape, operands: list[Shape], _: bool) -> int:
    return math.prod(result) * operands[1][-1]


def _weight_gradient(result: Shape, operands: list[Shape], _: bool) -> int:
    return math.prod(operands[0]) * result[-1]


def _convolution(result: Shape, operands: list[Shape], transposed: bool) -> int:
    return math.prod(operands[0] if transposed else result) * math.prod(operands[1][1:])


def _convolution_dinput(_: Shape, operands: list[Shape], __: bool) -> int:
    return math.prod(operands[0]) * math.prod(operands[1][1:])


def _convolution_dweight(result: Shape, operands: list[Shape], _: bool) -> int:
    return math.prod(operands[0]) * math.prod(result[1:])


def _attention(_: Shape, operands: list[Shape], __: bool) -> int:
    return 2 * math.prod(operands[0]) * operands[1][-2]


def _attention_backward(_: Shape, operands: list[Shape], __: bool) -> int:
    return 4 * math.prod(operands[1]) * operands[2][-2]


_COUNTS: dict[str, Callable[[Shape, list[Shape], bool], int]] = {
    "aten::addmm": _product_with_bias,
    "aten::baddbmm": _product_with_bias,
    "aten::bmm": _product,
    "aten::convolution": _convolution,
    "aten::linear": _product,
    "aten::matmul": _product,
    "aten::mm": _product,
    "spmd::attention": _attention,
    "spmd::attention_backward": _attention_backward,
    "spmd::conv_dinput": _convolution_dinput,
    "spmd::conv_dweight": _convolution_dweight,
    "spmd::linear_dinput": _product,
    "spmd::linear_dweight": _weight_gradient,
}
