# SPDX-License-Identifier: Apache-2.0
"""The op variants that gather when they are sharded, and the rules that nothing reaches, are
known."""

import re
from collections import Counter

import pytest
import rotation
from op_calls import CALLS, DRAWS
from op_gathered import GATHERED, UNREACHED
from op_gathering import KINDS, coverage_of, reach, traced_ops
from op_programs import PROGRAMS
from op_samples import OPS

from torch_spmd import _C

# Of the variants that have a tensor to shard.
LEAST_NOT_GATHERED = 0.975


@pytest.fixture(scope="module")
def coverage():
    """Kind by variant that this commit tests, and the ops that were traced or created by
    decompositions."""
    traced_ops.clear()
    chosen = filter(rotation.is_chosen, OPS)
    kinds = {name: kind for name in chosen if (kind := coverage_of(name))}
    if rotation.parts() == 1:
        for call in CALLS + DRAWS + PROGRAMS:
            reach(call)
    return kinds, set(traced_ops)


def test_gathering_variants_are_listed(coverage, capsys):
    kinds, _ = coverage
    counts = Counter(kinds.values())
    with capsys.disabled():
        numbers = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        print(f"\nop variants with a dimension cut: {numbers}")
    gathered = {name for name, kind in kinds.items() if kind == "gathered"}
    assert gathered - set(GATHERED) == set(), "these did not gather before"
    listed = set(filter(rotation.is_chosen, GATHERED))
    assert listed - gathered == set(), "take these out of op_gathered.py"
    assert rotation.parts() > 1 or 1 - counts["gathered"] / counts.total() >= LEAST_NOT_GATHERED


@pytest.mark.skipif("rotation.parts() > 1", reason="test_rule_tiles.py calls every rule")
def test_every_rule_is_reached(coverage):
    _, reached = coverage
    rules = {op for op in _C.rule_ops() if re.match("aten::|spmd::", op)}
    unreached = rules - reached
    assert unreached - set(UNREACHED) == set(), "nothing reaches these rules"
    assert set(UNREACHED) - unreached == set(), "take these out of op_gathered.py"
