# SPDX-License-Identifier: Apache-2.0
"""Ops that a rule declares unable to fail do not fail, whatever their operands' values are.

A program overwrites its donated inputs only after all calls that may fail, so a wrong declaration
loses values. Here every such op runs once more with values for which others fail: nan, infinity,
zero, the least and the greatest integers.
"""

from collections import Counter

import pytest
import rotation
import torch
from op_call import call
from op_calls import CALLS, DRAWS
from op_gathered import UNREACHED
from op_programs import PROGRAMS
from op_samples import OPS, differentiable, evenly, ops_of, samples, tensors_of

import torch_spmd as spmd
from torch_spmd import _C

SAMPLES = 2
CALLS_OF_OP = 4

FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e30)
INTEGERS = (0, -1, "least", "greatest")
# Operands that are indices which the op itself made, as the positions of maxima. PyTorch's kernels
# do not check them, and would read outside of the tensor.
OWN_INDICES = ("max_pool", "median", "kthvalue", "mode", "cummax", "cummin", "sort", "topk")
# What no sample leads to in a form of its own.
WINDOWS = (
    *(torch.bartlett_window, torch.blackman_window, torch.hamming_window, torch.hann_window),
    *(torch.kaiser_window, torch.fft.fftfreq),
)
MORE = [
    call("remainder.Tensor", torch.rand(4), torch.zeros(4)),
    call("floor_divide", torch.rand(4), torch.zeros(4)),
    call("pow.Tensor_Scalar", torch.rand(4), -2),
    *(call(lambda x, make=make: x * make(9, device=x.device), torch.rand(9)) for make in WINDOWS),
]


def gradients_of(function, dtype):
    if not differentiable(function, dtype):
        return function

    def with_gradients(*args, **kwargs):
        sources = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
        with torch.enable_grad():
            for t in sources:
                t.requires_grad_()
            results = function(*args, **kwargs)
            ends = [t for t in tensors_of(results) if t.requires_grad]
            ones = [torch.ones_like(t) for t in ends]
            return results, ends and torch.autograd.grad(ends, sources, ones, allow_unused=True)

    return with_gradients


def programs():
    for dtype in ("float32", "int64"):
        for name in ops_of(dtype):
            # One of two samples of each op at each commit.
            for sample in rotation.some(list(evenly(samples(OPS[name], dtype), SAMPLES)), SAMPLES):
                function = gradients_of(OPS[name], dtype)
                yield function, (sample.input, *sample.args), sample.kwargs
    for direct in CALLS + DRAWS + PROGRAMS + MORE:
        yield direct.function(), direct.args, direct.kwargs


def variants(operands):
    """The operands with all floats, and all integers, replaced by one value."""
    for values, of_kind in ((FLOATS, torch.is_floating_point), (INTEGERS, is_integer)):
        if any(t is not None and of_kind(t) for t in operands):
            for value in values:
                yield [filled(t, value, of_kind) for t in operands]


def is_integer(t):
    return not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool


def filled(t, value, of_kind):
    if t is None or not of_kind(t):
        return t
    if value == "least":
        value = torch.iinfo(t.dtype).min
    elif value == "greatest":
        value = torch.iinfo(t.dtype).max
    elif is_integer(t):
        value = max(value, torch.iinfo(t.dtype).min)
    return torch.full(t.shape, value).to(t.dtype)  # rounds what a type has no number for


def may_fail(traced):
    fails = _C.rule_fails(traced.op)
    exact = not (traced.whole[0].is_floating_point() or traced.whole[0].is_complex())
    return fails != "never" and (fails != "on integers" or exact)


def reads_own_indices(traced):
    return any(part in traced.op for part in OWN_INDICES)


@pytest.fixture(scope="module")
def outcome():
    ran, failed = Counter(), {}
    for function, args, kwargs in programs():
        try:
            calls = list(spmd.testing.calls_of(function, *args, **kwargs))
        except Exception:
            continue
        for traced in calls:
            if may_fail(traced) or ran[traced.op] == CALLS_OF_OP:
                continue
            ran[traced.op] += 1
            # The first call of every op at each commit, and the others in parts.
            if ran[traced.op] > 1 and not rotation.is_chosen(f"{traced.op} {ran[traced.op]}"):
                continue
            for operands in variants(traced.operands):
                if reads_own_indices(traced) and any(
                    t is not None and is_integer(t) for t in operands
                ):
                    continue
                try:
                    traced._calls.run(traced._id, operands)
                except Exception as error:
                    failed[traced.text] = str(error).splitlines()[0]
    return ran, failed


@pytest.mark.timeout(1200)  # a whole sweep
def test_ops_that_cannot_fail_do_not(outcome):
    _, failed = outcome
    assert failed == {}


def test_most_of_them_ran(outcome):
    ran, _ = outcome
    never = {op for op in _C.rule_ops() if _C.rule_fails(op) == "never"}
    reached = never - set(_C.rewritten_ops()) - set(UNREACHED)
    assert len(never & set(ran)) > 0.9 * len(reached)


@pytest.mark.parametrize(
    ("op", "fails"),
    [
        ("aten::mm", "never"),
        ("aten::view", "never"),
        ("aten::floor_divide", "on integers"),
        ("aten::gather", "on indices"),
        ("aten::cholesky", "on values"),
        ("aten::lu_unpack", "on values"),
        ("aten::an_op_without_a_rule", "on values"),
        ("mylib::op", "on values"),
    ],
)
def test_unless_a_rule_says_otherwise_an_op_may_fail(op, fails):
    assert _C.rule_fails(op) == fails
