# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of op samples: compares cases, and checks that exceptions are still true."""

import pytest
import rotation
from op_outcomes import NothingToCompare, compare
from op_samples import OPS, all_cuts, evenly, few_cuts, ranks, samples

import torch_spmd as spmd

SHOWN = 5


def some(name, chosen, exceptions):
    """Of the chosen samples those that this commit tests; all where only some are wrong."""
    return chosen if name in exceptions else rotation.some(chosen)


def few_cases(op, dtype, limit):
    """Pairs (sample, cut): samples unsharded, sharded along dimension 0, and sharded at random."""
    chosen = evenly(list(enumerate(samples(op, dtype))), limit)
    for turn, (seed, sample) in enumerate(chosen):
        yield sample, None
        cuts = few_cuts(ranks(sample), seed)
        if cuts:
            yield sample, cuts[turn % 2]


def all_cases(op, dtype):
    """Every sample unsharded and under every sharding."""
    for seed, sample in enumerate(samples(op, dtype)):
        yield sample, None
        for cut in all_cuts(ranks(sample), seed):
            yield sample, cut


def check(name, cases, exceptions, form="function"):
    """Fails unless every case (sample, cut) is right, or wrong as `exceptions` says."""
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
    hold(name, wrong, compared, exceptions)


def hold(name, wrong, compared, exceptions):
    """Fails unless nothing is wrong, or all that is wrong is so as `exceptions[name]` says."""
    reason = exceptions.get(name)
    found = f"{len(wrong)} of {compared} cases are wrong:\n" + "\n".join(wrong[:SHOWN])
    if reason is None:
        assert not wrong, found
        return
    assert wrong or reason.startswith("differs by chance"), (
        f"all {compared} cases pass: take {name!r} out of op_exceptions.py"
    )
    assert all(f": {reason.split()[0]} " in what for what in wrong), f"{found}\nnot: {reason}"
    pytest.xfail(reason)


def settle():
    """Runs the pending work of a failed case, so that the next one starts clean."""
    try:
        spmd.sync(wait=True)
    except Exception:
        return
