# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples in float64: gradients of gradients, and forward-mode derivatives.

Both are compared with the CPU's, with and without sharding; for some ops gradcheck compares them
with finite differences, too. `--full-ops` takes every sample and every sharding."""

import functools

import pytest
import torch
from op_checks import all_cases, check, few_cases
from op_exceptions import EXCEPTIONS
from op_outcomes import has_form
from op_samples import OPS, differentiable, few_cuts, ops_of, ranks, samples, tensors_of
from torch.utils._pytree import tree_map_only

SAMPLES = 2  # of each op

DIFFERENTIABLE = [name for name in ops_of("float64") if differentiable(OPS[name], "float64")]
CASES = [
    (name, form)
    for form in ("second", "forward_mode")
    for name in DIFFERENTIABLE
    if has_form(OPS[name], form)
]

# Compared with finite differences as well, which takes a run per element.
CHECKED = (
    "cumsum",
    "gather",
    "linalg_inv",
    "logsumexp",
    "matmul",
    "mul",
    "nn_functional_conv2d",
    "nn_functional_layer_norm",
    "nn_functional_softplus",
    "softmax",
    "var",
    "where",
)


@pytest.mark.in_parts
@pytest.mark.parametrize(("name", "form"), CASES)
def test_derivatives(name, form, full_ops):
    cases = all_cases if full_ops else functools.partial(few_cases, limit=SAMPLES)
    check(name, cases(OPS[name], "float64"), EXCEPTIONS[form], form)


@pytest.mark.parametrize("check_of", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck(name, check_of):
    sample = samples(OPS[name], "float64")[0]
    for cut in (None, *few_cuts(ranks(sample), 0)):
        inputs = tree_map_only(torch.Tensor, on_spmd, (sample.input, sample.args, sample.kwargs))
        if cut is not None:
            cut.mark(tensors_of(inputs))
        first, args, kwargs = inputs
        function = functools.partial(OPS[name], **kwargs)
        assert check_of(function, (first, *args), fast_mode=True)


def on_spmd(tensor):
    return tensor.detach().clone().to("spmd").requires_grad_(tensor.requires_grad)
