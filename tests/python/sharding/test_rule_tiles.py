# SPDX-License-Identifier: Apache-2.0
"""Rules alone: every legal sharding of a call, run on tiles by hand, against the unsharded call.

The calls are those as which PyTorch's samples and ours are traced, forward and backward, with and
without a sharded dimension, since some ops are then rewritten into others; with `--parts` a quarter
of the samples with it. tests/cpp/rules has the same for more shapes of some ops, with the ops
written by hand."""

import re
from collections import Counter

import pytest
import rotation
import torch
from op_call import call
from op_calls import CALLS, DRAWS
from op_programs import PROGRAMS
from op_samples import OPS, differentiable, evenly, ops_of, samples, tensors_of
from torch.utils._pytree import tree_map_only

import torch_spmd as spmd
from torch_spmd import _C

# The first test of the file waits for the whole sweep.
pytestmark = pytest.mark.timeout(1200)

SAMPLES = 8
DTYPES = CUT_DTYPE, *_ = ("float64", "int64", "bool")
SHARDS = (2, 3)
# Of calls of an op with equal factors: how many that can be sharded are compared, how many tried.
CALLS_CUT, CALLS_TRIED = 2, 12
# Results of which an op leaves a part unwritten. Their readers are checked, too.
PARTLY_WRITTEN = {"spmd::ctc_loss": {1}}
WHOLE = "whole in every call: there is nothing to cut"
UNCHECKED = {
    **dict.fromkeys(
        (
            "aten::_amp_update_scale",
            "aten::_pdist_backward",
            "aten::_pdist_forward",
            "aten::bartlett_window",
            "aten::bartlett_window.periodic",
            "aten::blackman_window",
            "aten::blackman_window.periodic",
            "aten::bucketize.Scalar",
            "aten::eye",
            "aten::eye.m",
            "aten::fft_fftfreq",
            "aten::fft_rfftfreq",
            "aten::hamming_window",
            "aten::hamming_window.periodic",
            "aten::hamming_window.periodic_alpha",
            "aten::hamming_window.periodic_alpha_beta",
            "aten::hann_window",
            "aten::hann_window.periodic",
            "aten::kaiser_window",
            "aten::kaiser_window.beta",
            "aten::kaiser_window.periodic",
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
    "aten::clone": "in graphs that are read; a recorded clone is its operand: elementwise_test.cc",
    "spmd::add_linear_dinput": "put together when a program is loaded",
    "spmd::roll_start": "where a shift is given at run time: test_changing_starts.py",
    "spmd::slice_part": "where a start is given at run time: test_changing_starts.py",
    "spmd::slice_put_part": "the same, written to",
    "spmd::slice_start": "where a start is given at run time; here it is aten::slice",
    "spmd::slice_start_scatter": "the same, written to",
}
# Sparse tensors; indices that must be on the host.
REFUSED = {"sparse_sampled_addmm", "sparse_mm_reduce", "tensor_split"}


def fold_of_cut(columns):
    if columns.device.type == "spmd":
        spmd.mark_sharding(columns, spmd.make_mesh((2,), ("x",)), (None, None, "x"))
    return torch.nn.functional.fold(columns, (4, 5), 2)


# Results that are wider than the computation: a mean and a variance in float32 give sums
# in float64 from which the squared mean can be subtracted without loss.
AS_PRECISE_AS = {"spmd::channel_moments": {"rtol": 1.3e-6, "atol": 1e-5}}  # float32's


def statistics_of_cut(images):
    if images.device.type == "spmd":
        spmd.mark_sharding(images, spmd.make_mesh((2,), ("x",)), ("x", None, None))
    return torch.nn.functional.batch_norm(images, None, None, training=True)


def gradient_of_statistics_of_cut(images):
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        results = statistics_of_cut(images)
        return torch.autograd.grad(results, images, results.detach() ** 3)


# Ops that no sample calls, or few.
MORE = [
    call(lambda x: torch.view_as_complex(2 * x) + 1, torch.rand(6, 2)),
    call(torch.all, torch.rand(6, 2) > 0.1),
    call(torch.linalg.eig, torch.rand(3, 4, 4, dtype=torch.float64)),
    call(torch.searchsorted, torch.rand(6).sort().values, 0.5),
    call(fold_of_cut, torch.rand(1, 8, 12)),
    call(statistics_of_cut, torch.rand(4, 3, 5)),
    call(gradient_of_statistics_of_cut, torch.rand(4, 3, 5, dtype=torch.float64)),
]


@pytest.fixture(scope="module")
def outcome():
    """The number of shardings compared per op, what differed, and what only the CPU ran."""
    compared, cut, tried, differ, refused = Counter(), Counter(), Counter(), [], {}
    for function, args, kwargs in programs():
        try:
            calls = spmd.testing.calls_of(function, *args, **kwargs)
        except Exception as error:
            if runs_on_host(function, args, kwargs):
                refused[str(function)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        for traced in calls:
            op = traced.op
            if not traced.has_rule:
                continue
            dtypes = re.findall(r"(\w+)\[", traced.text)
            key = op, str((traced.of_operand, traced.of_result, dtypes))
            if cut[key] == CALLS_CUT or tried[key] == CALLS_TRIED:
                continue
            # Every op at each commit, and the other ways to call it in parts.
            if compared[op] and not rotation.is_chosen(str(key)):
                continue
            tried[key] += 1
            try:
                unwritten, precision = PARTLY_WRITTEN.get(op, ()), AS_PRECISE_AS.get(op, {})
                n = traced.check(SHARDS, unwritten=unwritten, **precision)
            except (AssertionError, RuntimeError) as error:
                differ.append(f"{traced.text}: {error}")
                continue
            cut[key] += n > 0
            compared[op] += n
    return compared, differ, refused


def runs_on_host(function, args, kwargs):
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
    try:
        function(*args, **kwargs)
    except Exception:
        return False
    return True


def programs():
    """Functions of tensors on the CPU, and their arguments."""
    for dtype in DTYPES:
        for name in ops_of(dtype):
            gradients = differentiable(OPS[name], dtype)
            drawn = evenly(samples(OPS[name], dtype), SAMPLES)
            to_cut = rotation.some(range(len(drawn))) if dtype == CUT_DTYPE else []
            for number, sample in enumerate(drawn):
                arguments = (sample.input, *sample.args)
                tensors = tensors_of((arguments, sample.kwargs))
                for cut in [None, *cuts(tensors)] if number in to_cut else [None]:
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

    def __str__(self):
        return self.function.formatted_name

    def __call__(self, *args, **kwargs):
        tensors = tensors_of((args, kwargs))
        if self.cut is not None and tensors[0].device.type == "spmd":
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


def is_there(op):
    """Whether the installed PyTorch has the op: others come and go."""
    name, _, overload = op.partition(".")
    return overload in [s.overload_name for s in torch._C._jit_get_schemas_for_operator(name)]


def test_rules_hold_for_every_sharding(outcome):
    compared, differ, _ = outcome
    assert not differ, f"{len(differ)} differ:\n" + "\n".join(differ[:20])
    print(f"{compared.total()} cuts of {len(+compared)} ops")


def test_ops_that_run_on_the_host_are_traced(outcome):
    _, _, refused = outcome
    assert refused.keys() == REFUSED, refused


def test_every_rule_is_checked(outcome):
    compared, _, _ = outcome
    rules = {op for op in _C.rule_ops() if op.startswith(("aten::", "spmd::")) and is_there(op)}
    unchecked = rules - set(_C.rewritten_ops()) - set(+compared)
    assert unchecked - set(UNCHECKED) == set(), "nothing checks these rules"
    assert set(UNCHECKED) & rules - unchecked == set(), "take these out of UNCHECKED"
