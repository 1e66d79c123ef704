# SPDX-License-Identifier: Apache-2.0
"""Rules alone: every legal cut of a call, the op run on tiles by hand, against the whole.

For the rules that are a text. Those that are computed have theirs in tests/cpp/rules and, cut by
the partitioner, in test_ops.py.
"""

from collections import Counter, defaultdict
from contextlib import suppress

import torch
from op_samples import OPS, ops_of, samples
from torch.utils._python_dispatch import TorchDispatchMode

import torch_spmd as spmd
from torch_spmd import _C

SAMPLES = 6
CALLS = 2  # of each op and rank
# The attributes of a tile are others, which check_rule knows of rules of users only.
LOCAL = {"aten::tril", "aten::triu"}
LEAST_OPS = 25  # that these samples cut


class Calls(TorchDispatchMode):
    """The first calls of every op, with tensors on the CPU."""

    def __init__(self):
        super().__init__()
        self.of = defaultdict(list)
        self._kept = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        schema = function._schema
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        rank = next((t.dim() for t in args if isinstance(t, torch.Tensor)), 0)
        self._kept[name, rank] += 1
        if self._kept[name, rank] <= CALLS:
            self.of[name].append((args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def has_text(op):
    try:
        _C.call_factors(op, [], [])
    except ValueError as error:
        return "has no rule" not in str(error)
    return True


def test_rules_that_are_a_text_hold_for_every_cut():
    calls = Calls()
    for name in ops_of("float64"):
        for _, sample in zip(range(SAMPLES), samples(OPS[name], "float64")):
            with suppress(Exception), calls:  # some run on GPUs only
                OPS[name](sample.input, *sample.args, **sample.kwargs)
    checked = {}
    for op in sorted(set(calls.of) & set(_C.rule_ops()) - LOCAL):
        if not has_text(op) or any(isinstance(a, list) for a in calls.of[op][0][0]):
            continue
        checked[op] = sum(
            spmd.testing.check_rule(op, *args, **kwargs)
            for args, kwargs in calls.of[op]
            if not kwargs.keys() & {"atol", "rtol"}  # which check_rule takes for its own
            and all(t.numel() > 0 for t in args if isinstance(t, torch.Tensor))
        )
    assert len([op for op, cuts in checked.items() if cuts > 0]) >= LEAST_OPS, checked
