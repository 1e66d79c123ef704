# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples in the dtypes beyond float32, forward and gradient, with and without
sharding.

`--full-ops` takes every sample and every sharding; without it a few of each.
"""

import pytest
from op_checks import all_cases, check, few_cases
from op_exceptions import EXCEPTIONS
from op_samples import DTYPES, OPS, ops_of

SAMPLES = 2  # of each op and dtype
CASES = [(name, dtype) for dtype in DTYPES if dtype != "float32" for name in ops_of(dtype)]


@pytest.mark.in_parts
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_dtype(name, dtype, full_ops):
    op, exceptions = OPS[name], EXCEPTIONS[dtype]
    if full_ops:
        check(name, all_cases(op, dtype), exceptions | EXCEPTIONS[f"{dtype}, full"])
    else:
        check(name, few_cases(op, dtype, SAMPLES), exceptions)
