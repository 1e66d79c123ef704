# SPDX-License-Identifier: Apache-2.0
"""What counts as rounding when outcomes of ops are compared, and what does not."""

import copy
from functools import partial

import pytest
import torch
from op_outcomes import Outcome, _same, run
from op_rounding import DrawsAs, is_rounding, leaves
from op_samples import OPS
from torch.testing._internal.opinfo.core import SampleInput


def excused(name, sample, got):
    again = partial(run, OPS[name], device="cpu")
    return is_rounding(got, again(sample), sample, again, _same)


def outcome_of(values, like):
    """`like` with other outputs."""
    changed = copy.copy(like)
    changed.outputs = [values]
    return changed


def cancelling():
    """A row whose large terms cancel: its sum depends on the order by more than a tolerance."""
    generator = torch.Generator().manual_seed(3)
    terms = 1e6 * torch.randn(1, 5000, generator=generator)
    return torch.cat([terms, -terms, torch.rand(1, 9, generator=generator)], 1)


def test_sums_in_another_order_are_rounding():
    row = cancelling()
    sample = SampleInput(row, args=(1,))
    want = run(OPS["sum"], sample, "cpu")
    order = torch.randperm(row.size(1), generator=torch.Generator().manual_seed(0))
    got = outcome_of(row[:, order].double().cumsum(1).float()[:, -1], want)
    assert not _same(leaves(got)[0], leaves(want)[0])
    assert excused("sum", sample, got)


@pytest.mark.parametrize("lost", (1, 100))
def test_missing_terms_are_no_rounding(lost):
    row = cancelling()
    sample = SampleInput(row, args=(1,))
    got = outcome_of(row[:, lost:].double().sum(1).float(), run(OPS["sum"], sample, "cpu"))
    assert not excused("sum", sample, got)


def test_a_wrong_row_is_no_rounding():
    rows = torch.randn(4, 8, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    want = run(OPS["softmax"], SampleInput(rows, args=(1,)), "cpu")
    got = outcome_of(want.outputs[0].roll(1, 0), want)
    assert not excused("softmax", SampleInput(rows, args=(1,)), got)


def test_whole_numbers_and_infinities_have_no_rounding():
    sample = SampleInput(torch.tensor([1.0, 5.0, 5.0]), args=(0,))
    want = run(OPS["argmax"], sample, "cpu")
    assert not excused("argmax", sample, outcome_of(want.outputs[0] + 1, want))

    sample = SampleInput(torch.tensor([1.0, 0.0]))
    want = run(OPS["reciprocal"], sample, "cpu")
    assert not excused("reciprocal", sample, outcome_of(torch.ones(2), want))
    assert not excused("reciprocal", sample, outcome_of(-want.outputs[0], want))


def test_other_types_and_shapes_are_no_rounding():
    sample = SampleInput(torch.rand(3, generator=torch.Generator().manual_seed(2)))
    want = run(OPS["exp"], sample, "cpu")
    assert not excused("exp", sample, outcome_of(want.outputs[0].double(), want))
    assert not excused("exp", sample, outcome_of(want.outputs[0][None], want))
    assert not excused("exp", sample, Outcome([], [], [], set()))


def test_wider_types_draw_the_same_numbers():
    wider = {torch.float32: torch.float64}
    torch.manual_seed(0)
    narrow = torch.randn(40), torch.rand(3, 7), torch.empty(20).exponential_()
    torch.manual_seed(0)
    with DrawsAs(wider):
        wide = (
            torch.randn(40, dtype=torch.float64),
            torch.rand(3, 7, dtype=torch.float64),
            torch.empty(20, dtype=torch.float64).exponential_(),
        )
    for few, many in zip(narrow, wide):
        assert many.dtype == torch.float64
        assert torch.equal(few.double(), many)
