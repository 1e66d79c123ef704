# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples on `spmd`: every op variant of `op_db` that supports float32.

`--full-ops` takes every sample and every sharding; without it a choice that takes minutes, of which
a commit takes a quarter for each op.
"""

import pytest
from op_checks import check, some
from op_exceptions import EXCEPTIONS
from op_outcomes import has_form
from op_samples import OPS, all_cuts, evenly, first_cuts, ops_of, ranks, samples
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

MODULES = [info.formatted_name for info in module_db]
OPTIMIZERS = [info.name for info in optim_db]
SAMPLES = {"device": 16, "form": 8, "sharded": 8}  # of each op


@pytest.mark.parametrize("name", ops_of("float32"))
def test_the_device_is_pytorch(name, full_ops):
    chosen, exceptions = samples(OPS[name]), EXCEPTIONS["device"]
    if full_ops:
        exceptions = exceptions | EXCEPTIONS["device, full"]
    else:
        chosen = some(name, evenly(chosen, SAMPLES["device"]), exceptions)
    check(name, [(sample, None) for sample in chosen], exceptions)


@pytest.mark.in_parts
@pytest.mark.parametrize("form", ("strided", "empty", "in_place", "out"))
@pytest.mark.parametrize("name", ops_of("float32"))
def test_other_ways_to_call_it(name, form, full_ops):
    op = OPS[name]
    if not has_form(op, form):
        pytest.skip("has no such form")
    chosen, exceptions = samples(op), EXCEPTIONS[form]
    if not full_ops:
        chosen = some(name, evenly(chosen, SAMPLES["form"]), exceptions)
    check(name, [(sample, None) for sample in chosen], exceptions, form)


@pytest.mark.modes("free_moves")
@pytest.mark.parametrize("name", ops_of("float32"))
def test_sharded_equals_unsharded(name, full_ops):
    numbered = [pair for pair in enumerate(samples(OPS[name])) if any(ranks(pair[1]))]
    if full_ops:
        cases = [
            (sample, cut) for seed, sample in numbered for cut in all_cuts(ranks(sample), seed)
        ]
        check(name, cases, EXCEPTIONS["sharded"] | EXCEPTIONS["sharded, full"])
    else:
        chosen = some(name, evenly(numbered, SAMPLES["sharded"]), EXCEPTIONS["sharded"])
        cases = [
            (sample, cut) for seed, sample in chosen for cut in first_cuts(ranks(sample), seed)
        ]
        check(name, cases, EXCEPTIONS["sharded"])


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_exceptions_name_ops_and_say_what_is_wrong(kind):
    assert list(EXCEPTIONS[kind]) == sorted(EXCEPTIONS[kind])
    for name, reason in EXCEPTIONS[kind].items():
        assert name in {*OPS, *MODULES, *OPTIMIZERS}
        assert reason.startswith(("raises ", "differs "))
