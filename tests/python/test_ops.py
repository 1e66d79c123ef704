# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples on `spmd`: every op variant of `op_db` that knows float32.

`--full-ops` takes every sample and every cut; without it a choice that ends in minutes.
"""

import pytest
from op_exceptions import EXCEPTIONS
from op_samples import (
    FORMS,
    OPS,
    NothingToCompare,
    all_cuts,
    compare,
    evenly,
    first_cuts,
    ranks,
    samples,
)

import torch_spmd as spmd

SAMPLES = {"device": 32, "form": 8, "sharded": 8}  # of each op
SHOWN = 5


@pytest.mark.parametrize("name", OPS)
def test_the_device_is_pytorch(name, full_ops):
    chosen, exceptions = samples(OPS[name]), EXCEPTIONS["device"]
    if full_ops:
        exceptions = exceptions | EXCEPTIONS["device, full"]
    else:
        chosen = evenly(chosen, SAMPLES["device"])
    check(name, [(sample, None) for sample in chosen], exceptions)


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("name", OPS)
def test_other_ways_to_call_it(name, form, full_ops):
    op = OPS[name]
    if form == "in_place" and op.get_inplace() is None:
        pytest.skip("has no in-place variant")
    if form == "out" and not op.supports_out:
        pytest.skip("takes no out=")
    chosen = samples(op) if full_ops else evenly(samples(op), SAMPLES["form"])
    check(name, [(sample, None) for sample in chosen], EXCEPTIONS[form], form)


@pytest.mark.parametrize("name", OPS)
def test_sharded_equals_unsharded(name, full_ops):
    numbered = [pair for pair in enumerate(samples(OPS[name])) if any(ranks(pair[1]))]
    if full_ops:
        cases = [(sample, cut) for seed, sample in numbered for cut in all_cuts(sample, seed)]
        check(name, cases, EXCEPTIONS["sharded"] | EXCEPTIONS["sharded, full"])
    else:
        chosen = evenly(numbered, SAMPLES["sharded"])
        cases = [(sample, cut) for seed, sample in chosen for cut in first_cuts(sample, seed)]
        check(name, cases, EXCEPTIONS["sharded"])


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_exceptions_name_ops_and_say_what_is_wrong(kind):
    assert list(EXCEPTIONS[kind]) == sorted(EXCEPTIONS[kind])
    for name, reason in EXCEPTIONS[kind].items():
        assert name in OPS
        assert reason.startswith(("raises ", "differs "))


def check(name, cases, exceptions, form="function"):
    """Fails unless every case is right, or wrong as `exceptions` says."""
    wrong, compared = [], 0
    for number, (sample, cut) in enumerate(cases):
        try:
            what = compare(OPS[name], sample, cut, form)
        except NothingToCompare:
            continue
        compared += 1
        if what:
            wrong.append(f"case {number}, {cut or 'whole'}, {sample.summary()}: {what}")
            settle()
    if not compared:
        pytest.skip("no case that the CPU runs")
    reason = exceptions.get(name)
    found = f"{len(wrong)} of {compared} cases are wrong:\n" + "\n".join(wrong[:SHOWN])
    if reason is None:
        assert not wrong, found
        return
    assert wrong, f"all {compared} cases pass: take {name!r} out of op_exceptions.py"
    assert all(f": {reason.split()[0]} " in what for what in wrong), f"{found}\nnot: {reason}"
    pytest.xfail(reason)


def settle():
    """Runs what a failed case left pending, so that the next one starts clean."""
    try:
        spmd.sync(wait=True)
    except Exception:
        return
