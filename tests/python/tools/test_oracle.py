# SPDX-License-Identifier: Apache-2.0
"""The yardstick: counting of repeated work, and that no workload sends more than under XLA."""

import re

import pytest
from processes import run_python

from benchmarks.flops import work_of
from benchmarks.oracle import MARKS, Figures, worse
from benchmarks.workloads import WORKLOADS


def program(x, w, y, call="aten::mm(%x0, %x1)"):
    """The text of one call, with the given types."""
    return f"""mesh @m [data=2, model=4]
program {{
  %x0: {x}
  %x1: {w}
  %2: {y} = call {call} at "a.py:1"
  free %x0
  return %2
}}
"""


@pytest.mark.parametrize(
    ("x", "w", "y", "copies"),
    [
        ("f32[8,8] @m {data},{}", "f32[8,8] @m {},{model}", "f32[8,8] @m {data},{model}", 1),
        ("f32[8,8] @m {data},{}", "f32[8,8] @m {},{}", "f32[8,8] @m {data},{}", 4),
        ("f32[8,8] @m {data},{}", "f32[8,8] @m {},{}", "f32[8,8] @m {data,model:1},{}", 2),
        ("f32[8,8] @m {},{}", "f32[8,8] @m {},{}", "f32[8,8] @m {},{}", 8),
        (
            "f32[8,8] @m {},{data,model}",
            "f32[8,8] @m {data,model},{}",
            "f32[8,8] @m {},{} unreduced(sum){data,model}",
            1,
        ),
        (
            "f32[8,8] @m {},{} unreduced(sum){model}",
            "f32[8,8] @m {},{data}",
            "f32[8,8] @m {},{data} unreduced(sum){model}",
            4,
        ),
        ("f32[9,8] @m {data,model},{}", "f32[8,8] @m", "f32[9,8] @m {data,model},{}", 1),
    ],
)
def test_redundancy_of_a_product(x, w, y, copies):
    assert work_of(program(x, w, y)).redundancy == pytest.approx(copies)


@pytest.mark.parametrize(
    ("x", "w", "y", "imbalance"),
    [
        ("f32[8,8] @m {data},{}", "f32[8,8] @m {},{}", "f32[8,8] @m {data},{}", 1),
        ("f32[9,8] @m {data,model},{}", "f32[8,8] @m", "f32[9,8] @m {data,model},{}", 16 / 9),
        ("f32[8,8] @m {data chunk=6},{}", "f32[8,8] @m", "f32[8,8] @m {data chunk=6},{}", 12 / 8),
        ("f32[5,8] @m {data chunk=2},{}", "f32[8,8] @m", "f32[5,8] @m {data chunk=2},{}", 6 / 5),
        (
            "f32[3,6] @m {data},{model}",
            "f32[6,8] @m {model},{}",
            "f32[3,8] @m {data},{} unreduced(sum){model}",
            4 / 3 * 8 / 6,
        ),
    ],
)
def test_imbalance_of_a_product(x, w, y, imbalance):
    assert work_of(program(x, w, y)).imbalance == pytest.approx(imbalance)


def test_redundancy_weighs_calls_by_their_operations():
    cut = program("f32[8,24] @m {data,model},{}", "f32[24,8] @m", "f32[8,8] @m {data,model},{}")
    whole = "  %3: f32[8,8] @m = call aten::mm(%2, %4)\n  %4: f32[8,8] @m\n"
    # %2 is sharded: all devices share the work
    assert work_of(cut + whole).redundancy == pytest.approx((24 + 8) / 32)
    whole = "  %3: f32[8,8] @m = call aten::mm(%4, %4)\n  %4: f32[8,8] @m\n"
    assert work_of(cut + whole).redundancy == pytest.approx((24 + 8 * 8) / 32)


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        ("aten::convolution(%x0, %x1, _, stride=[1,1], transposed=false)", 2 * 5 * 16 * 3 * 9),
        ("aten::convolution(%x0, %x1, _, stride=[1,1], transposed=true)", 2 * 3 * 16 * 5 * 9),
    ],
)
def test_operations_of_a_convolution(call, operations):
    weight = "5,3,3,3" if "false" in call else "3,5,3,3"
    text = program(
        "f32[2,3,4,4] @m {},{},{data},{}",
        f"f32[{weight}] @m",
        "f32[2,5,4,4] @m {},{},{data},{}",
        call,
    )
    side = "  %3: f32[1,1] @m = call aten::mm(%4, %4)\n  %4: f32[1,1] @m\n"  # one operation
    assert work_of(text + side).redundancy == pytest.approx((4 * operations + 8) / (operations + 1))


def figures(**changed):
    """The figures of a plan that is as good as XLA's, except for the given ones."""
    as_good = {"mb": 10, "work": 1, "peak_mb": 10, "instructions": 10, "milliseconds": 10}
    return Figures(**(as_good | changed))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, []),
        ({"mb": 10.2}, ["mb", "floor"]),
        ({"work": 1.02}, []),
        ({"work": 1.03}, ["work"]),
        ({"peak_mb": 11}, ["peak_mb"]),
        ({"instructions": 11}, ["instructions"]),
        ({"milliseconds": 11}, ["milliseconds"]),
    ],
)
def test_worse_figures_are_named(changed, named):
    assert worse(figures(**changed), figures(work=2), 9.9, "exact") == named


def test_estimates_of_floors_may_be_exceeded_by_a_tenth():
    assert worse(figures(), figures(), 9.2, "estimate") == []
    assert worse(figures(), figures(), 9.0, "estimate") == ["floor"]


def test_no_workload_is_worse_than_under_xla_nor_for_more_marks(root):
    done = run_python("-m", "benchmarks.oracle", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1 + 2 * 2 * len(WORKLOADS)
    bytes_of = dict(re.findall(r"^(\w+ +(?:inputs|full)) +([\d.]+)", done.stdout, re.MULTILINE))
    for name in WORKLOADS:
        inputs, full = (
            float(bytes_of[f"{name:10} {marks:6}".rstrip()]) for marks in MARKS.values()
        )
        assert full <= inputs * 1.001, name
