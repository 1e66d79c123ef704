# SPDX-License-Identifier: Apache-2.0
"""Rules alone: every legal cut of a call, the op run on tiles by hand, against the whole.

The calls are what PyTorch's samples and ours are traced as, forward and backward, whole and with a
dimension cut: some ops are rewritten into others then. tests/cpp/rules has the same for more shapes
of some ops, with the ops written by hand.
"""

from collections import Counter

import pytest
import torch
from op_call import call
from op_calls import CALLS, DRAWS
from op_programs import PROGRAMS
from op_samples import OPS, differentiable, evenly, ops_of, samples, tensors_of

import torch_spmd as spmd
from torch_spmd import _C

SAMPLES = 8
DTYPES = CUT_DTYPE, *_ = ("float64", "int64", "bool")
SHARDS = (2, 3)
# Calls of an op on operands of the same ranks and dtypes: how many that may be cut, how many tried.
CALLS_CUT, CALLS_TRIED = 2, 12
# Results of which an op leaves a part unwritten. What reads them is checked, too.
PARTLY_WRITTEN = {"spmd::ctc_loss": {1}}
WHOLE = "whole in every call: there is nothing to cut"
UNCHECKED = {
    **dict.fromkeys(
        (
            "aten::_amp_update_scale",
            "aten::eye",
            "aten::eye.m",
            "aten::linspace",
            "aten::logspace",
            "aten::median",
            "aten::nanmedian",
            "aten::norm.Scalar",
            "aten::norm.ScalarOpt_dtype",
            "aten::put",
            "aten::searchsorted.Scalar",
            "aten::trace",
            "aten::tril_indices",
            "aten::triu_indices",
        ),
        WHOLE,
    ),
    "aten::clone": "a value is its own copy: never in a graph",
    "spmd::slice_start": "where a start is given at run time; here it is aten::slice",
    "spmd::slice_start_scatter": "the same, written to",
}
# What no sample leads to.
MORE = [
    call(lambda x: torch.view_as_complex(2 * x) + 1, torch.rand(6, 2)),
    call(torch.all, torch.rand(6, 2) > 0.1),
    call(torch.linalg.eig, torch.rand(3, 4, 4, dtype=torch.float64)),
    call(torch.searchsorted, torch.rand(6).sort().values, 0.5),
]


@pytest.fixture(scope="module")
def outcome():
    """How many cuts of each op were compared, and what differed."""
    compared, cut, tried, differ = Counter(), Counter(), Counter(), []
    for function, args, kwargs in programs():
        try:
            calls = spmd.testing.calls_of(function, *args, **kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
            continue  # PyTorch refuses the sample on the CPU, too, or it is sparse
        for traced in calls:
            op = traced.op
            key = op, *(None if t is None else (t.dim(), t.dtype) for t in traced.operands)
            if not traced.has_rule or cut[key] == CALLS_CUT or tried[key] == CALLS_TRIED:
                continue
            tried[key] += 1
            try:
                n = traced.check(SHARDS, unwritten=PARTLY_WRITTEN.get(op, ()))
            except (AssertionError, RuntimeError) as error:
                differ.append(f"{traced.text}: {error}")
                continue
            cut[key] += n > 0
            compared[op] += n
    return compared, differ


def programs():
    """Functions of tensors on the CPU, and their arguments."""
    for dtype in DTYPES:
        for name in ops_of(dtype):
            gradients = differentiable(OPS[name], dtype)
            for sample in evenly(samples(OPS[name], dtype), SAMPLES):
                arguments = (sample.input, *sample.args)
                tensors = tensors_of((arguments, sample.kwargs))
                for cut in [None, *cuts(tensors)] if dtype == CUT_DTYPE else [None]:
                    yield Program(OPS[name], gradients, cut), arguments, sample.kwargs
    for direct in CALLS + DRAWS + PROGRAMS + MORE:
        yield direct.function(), direct.args, direct.kwargs


def cuts(tensors):
    """Each dimension of each tensor."""
    return [(t, d) for t, x in enumerate(tensors) for d in range(x.dim())]


class Program:
    """A function and its gradients, with dimension `cut[1]` of tensor `cut[0]` sharded."""

    def __init__(self, function, gradients, cut):
        self.function, self.gradients, self.cut = function, gradients, cut

    def __call__(self, *args, **kwargs):
        tensors = tensors_of((args, kwargs))
        if self.cut is not None:
            t = tensors[self.cut[0]]
            spec = ["x" if d == self.cut[1] else None for d in range(t.dim())]
            spmd.mark_sharding(t, spmd.make_mesh((2,), ("x",)), tuple(spec))
        if not self.gradients:
            return self.function(*args, **kwargs)
        sources = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        with torch.enable_grad():
            for t in sources:
                t.requires_grad_()
            results = self.function(*args, **kwargs)
            ends = [t for t in tensors_of(results) if t.requires_grad]
            ones = [torch.ones_like(t) for t in ends]
            return results, ends and torch.autograd.grad(ends, sources, ones, allow_unused=True)


def test_rules_hold_for_every_cut(outcome):
    compared, differ = outcome
    assert not differ, f"{len(differ)} differ:\n" + "\n".join(differ[:20])
    print(f"{compared.total()} cuts of {len(+compared)} ops")


def test_every_rule_is_checked(outcome):
    compared, _ = outcome
    rules = {op for op in _C.rule_ops() if op.startswith(("aten::", "spmd::"))}
    unchecked = rules - set(_C.rewritten_ops()) - set(+compared)
    assert unchecked - set(UNCHECKED) == set(), "nothing checks these rules"
    assert set(UNCHECKED) - unchecked == set(), "take these out of UNCHECKED"
