# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples in float64: gradients of gradients, and forward-mode derivatives.

Both are compared with the CPU's, whole and cut; of a choice of ops gradcheck compares them with
differences, too. `--full-ops` takes every sample and every cut.
"""

import functools

import pytest
from op_checks import all_cases, check, few_cases
from op_exceptions import EXCEPTIONS
from op_outcomes import has_form
from op_samples import OPS, differentiable, ops_of

SAMPLES = 2  # of each op

DIFFERENTIABLE = [name for name in ops_of("float64") if differentiable(OPS[name], "float64")]
CASES = [
    (name, form)
    for form in ("second", "forward_mode")
    for name in DIFFERENTIABLE
    if has_form(OPS[name], form)
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_derivatives(name, form, full_ops):
    cases = all_cases if full_ops else functools.partial(few_cases, limit=SAMPLES)
    check(name, cases(OPS[name], "float64"), EXCEPTIONS[form], form)
