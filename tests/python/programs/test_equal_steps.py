# SPDX-License-Identifier: Apache-2.0
"""A loop that does the same in each step compiles nothing after the third one."""

from __future__ import annotations

import equal_steps
import pytest
import torch
from equal_steps import Loop
from processes import run_python
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C

LOOPS = [
    Loop("linear", "dp", init="device", evaluate="before"),
    Loop("linear", "dp", init="scaled", evaluate="before", optimizer="AdamW"),
    Loop("conv", "dp", init="device", evaluate="before", optimizer="momentum", read="backward"),
    Loop("conv", "fsdp", init="loaded", micro=2, average="yes", evaluate="each"),
    Loop("tokens", "both", micro=3),
    Loop("tokens", "both", micro=5, optimizer="two", clip="yes", zero="begin"),
    Loop("tokens", "tp", init="device", micro=4, optimizer="AdamW", average="yes"),
    Loop("tokens", "fsdp", init="device", micro=3, evaluate="before", read="no"),
    Loop("gan", "dp", init="device", optimizer="AdamW", evaluate="before"),
    Loop("gan", "both", micro=2, read="backward"),
]


def check(loop: Loop) -> None:
    done = run_python(equal_steps.__file__, *str(loop).split())
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_nothing_is_compiled_after_the_third_step(loop):
    check(loop)


@pytest.mark.in_parts
@pytest.mark.parametrize("loop", equal_steps.some_loops(240), ids=str)
def test_nor_in_any_other_loop(loop):
    check(loop)


def reason_of_last() -> str:
    return spmd.debug.explain_compile().rows[-1].reason


def test_the_reason_names_the_value_and_its_line():
    def run(held):
        x = torch.ones(4, 3, device="spmd")
        y = x * 2
        z = y.exp().sum()
        if not held:
            del y
        z.item()

    _C.forget_programs()
    run(held=False)
    first, compiles = spmd.debug.explain_compile().rows[-1].program, reported()["compiles"]
    for held in (False, True, False, True):
        run(held)
    assert reported()["compiles"] == compiles + 1
    line = run.__code__.co_firstlineno + 2
    assert reason_of_last() == (
        f"same ops as program {first}, but f32[4,3] of aten::mul.Scalar "
        f"(test_equal_steps.py:{line}) is held afterwards"
    )


def test_the_reason_names_the_layouts():
    mesh = spmd.make_mesh((2, 2), ("a", "b"))

    def run(spec):
        y = spmd.mark_sharding(torch.rand(8, 8, device="spmd"), mesh, spec).exp()
        spmd.sync()
        (y @ y).sum().item()

    _C.forget_programs()
    run(("a", None))
    number = spmd.debug.explain_compile().rows[-1].program
    run((None, "b"))
    line = run.__code__.co_firstlineno + 3
    assert reason_of_last() == (
        f"same ops as program {number}, but f32[8,8], which aten::mm (test_equal_steps.py:{line}) "
        "reads, is {},{b} on [a=2, b=2], not {a},{} on [a=2, b=2]"
    )
