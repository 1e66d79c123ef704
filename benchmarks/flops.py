# SPDX-License-Identifier: Apache-2.0
"""How much arithmetic is repeated, and how evenly it is distributed, read from a program's text.

Matrix products, convolutions and attention are counted. Redundancy: work of all devices / work of
the unsharded computation. A call is divided by the axes that shard an operand or a result, but not
by those along which an operand is unreduced: every device works on its own partial sum. Imbalance:
work of the busiest device / mean work of a device; its share of a dimension is the chunk, rounded
up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

Shape = tuple[int, ...]

_MESH = re.compile(r"^mesh @(\w+) \[(.*)\]", re.MULTILINE)
_CUTS = r"\{[\w,:]*(?: chunk=\d+)?\}"
_VALUE = re.compile(
    r"(%\w+): \w+\[([\d,]*)\] @(\w+)"  # %7: f32[512,4096] @m
    rf"((?: {_CUTS}(?:,{_CUTS})*)?)"  # {data chunk=3},{model:0}
)
_CALL = re.compile(r"^  (%\w+): .* = call ([\w:.]+)\((.*)", re.MULTILINE)


class Cut(NamedTuple):
    """The sharding of one dimension. A chunk of 0 is the default chunk."""

    axes: tuple[str, ...]
    chunk: int = 0


class Value(NamedTuple):
    shape: Shape
    mesh: str
    cuts: tuple[Cut, ...]  # per dimension


class Work(NamedTuple):
    """Multiply-adds of a program."""

    needed: float  # by the whole
    done: float  # by all devices
    busiest: float  # by the busiest device × devices

    @property
    def redundancy(self) -> float:
        return self.done / self.needed if self.needed else 1.0

    @property
    def imbalance(self) -> float:
        return self.busiest / self.done if self.done else 1.0


def work_of(program: str) -> Work:
    meshes = {
        name: {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", axes)}
        for name, axes in _MESH.findall(program)
    }
    values = {match[0]: _value(*match[1:]) for match in _VALUE.findall(program)}
    done = needed = busiest = 0.0
    for name, op, arguments in _CALL.findall(program):
        operands = [values[v] for v in re.findall(r"%\w+", arguments.split("=")[0]) if v in values]
        if op in _COUNTS and name in values:
            shapes = [v.shape for v in operands]
            work = _COUNTS[op](values[name].shape, shapes, "transposed=true" in arguments)
            copies, uneven = shares([values[name], *operands], meshes[values[name].mesh])
            needed += work
            done += work * copies
            busiest += work * copies * uneven
    return Work(needed, done, busiest)


def shares(values: list[Value], mesh: dict[str, int]) -> tuple[int, float]:
    """How often the work of a call on these values is repeated, and the ratio of the largest share
    to the mean."""
    used: set[str] = set()
    uneven: dict[tuple[str, ...], float] = {}
    for value in values:
        for size, cut in zip(value.shape, value.cuts):
            parts = math.prod(size_of(axis, mesh) for axis in cut.axes)
            if cut.axes and size:
                chunk = min(cut.chunk or math.ceil(size / parts), size)
                largest = max(chunk, size - (parts - 1) * chunk)  # the last takes the rest
                uneven[cut.axes] = max(uneven.get(cut.axes, 1.0), largest * parts / size)
            for axis in cut.axes:
                used.update(sub_axes(axis, mesh))
    idle = (size_of(s, mesh) for axis in mesh for s in sub_axes(axis, mesh) if s not in used)
    return math.prod(idle), math.prod(uneven.values())


def prime_factors(n: int) -> list[int]:
    """Ascending."""
    for p in range(2, math.isqrt(n) + 1):
        if n % p == 0:
            return [p, *prime_factors(n // p)]
    return [n] if n > 1 else []


def sub_axes(axis: str, mesh: dict[str, int]) -> list[str]:
    """`model` of size 8 is model:0, model:1 and model:2, each of size 2."""
    if ":" in axis:
        return [axis]
    return [f"{axis}:{i}" for i in range(len(prime_factors(mesh[axis])))]


def size_of(axis: str, mesh: dict[str, int]) -> int:
    name, _, index = axis.partition(":")
    return prime_factors(mesh[name])[int(index)] if index else mesh[name]


def _value(shape: str, mesh: str, cuts: str) -> Value:
    sizes = tuple(int(size) for size in shape.split(",") if size)
    found = re.findall(r"\{([\w,:]*)(?: chunk=(\d+))?\}", cuts)
    return Value(sizes, mesh, tuple(_cut(*f) for f in found) or (Cut(()),) * len(sizes))


def _cut(axes: str, chunk: str) -> Cut:
    return Cut(tuple(axis for axis in axes.split(",") if axis), int(chunk or 0))


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
