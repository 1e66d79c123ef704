# SPDX-License-Identifier: Apache-2.0
"""Ops called directly, with and without sharding, give what the CPU gives."""

import itertools

import pytest
from op_calls import CALLS, WRONG
from op_outcomes import leaf_difference
from op_programs import PROGRAMS

pytestmark = pytest.mark.modes("free_moves")


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("call", CALLS + PROGRAMS, ids=str)
def test_call_matches_the_cpu(call, request):
    if str(call) in WRONG:
        request.applymarker(pytest.mark.xfail(reason=WRONG[str(call)], strict=True))
    want = call.run("cpu")
    for cut in itertools.chain([None], call.cuts()):
        got = call.run("spmd", cut)
        assert len(got) == len(want)
        for k, (ours, theirs) in enumerate(zip(got, want)):
            assert leaf_difference(ours, theirs) is None, f"[{k}], {cut or 'whole'}"
