# SPDX-License-Identifier: Apache-2.0
"""What happens to a sharded op: is it partitioned, decomposed, or gathered?

Samples of every op variant of `op_db` run forward and backward with dimension 0 of their first
tensor of rank 2 or more sharded over two devices.

    partitioned   nothing is gathered
    decomposed    nothing is gathered, because an op that needs a whole dimension was decomposed
    gathered      some tensor is gathered, or the op ran on the host
"""

import contextlib
import re
import warnings
from collections import Counter

from op_outcomes import run
from op_samples import DTYPES, OPS, Cut, evenly, ranks, samples, tensors_of
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C

# Names of all ops in the graphs of what ran, before and after compiling.
traced_ops: set[str] = set()

KINDS = ("partitioned", "decomposed", "gathered")
SAMPLES = 16  # of each op


def coverage_of(name):
    """The kind of an op variant: that of most of its samples, or the better one of a tie; None if
    nothing can be sharded."""
    counts = Counter(filter(None, (kind_of(OPS[name], sample) for sample in chosen(name))))
    if not counts:
        return None
    if 2 * counts["gathered"] > counts.total():
        return "gathered"
    return "decomposed" if counts["decomposed"] else "partitioned"


def chosen(name):
    dtype = dtype_of(name)
    return evenly(samples(OPS[name], dtype), SAMPLES) if dtype else []


def dtype_of(name):
    """Float32; for ops on integers, bits or complex numbers, what they know; None for float8."""
    known = (d for d in ("float32", "int64", "complex64", "bool") if DTYPES[d] in OPS[name].dtypes)
    return next(known, None)


def kind_of(op, sample):
    """The kind of one sample, or None if there is nothing to shard or it does not run."""
    cut = first_dimension(sample)
    settle()
    _C.forget_programs()
    on_host = reported()["host_fallbacks"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(op, sample, "spmd", cut)
        spmd.sync(wait=True)
    except Exception:
        settle()
        return None
    note_ops()
    if cut is None:
        return None
    programs = _C.programs()
    gathers = any(row[0] == "all_gather" for p in programs for row in p.collectives())
    if gathers or reported()["host_fallbacks"] > on_host:
        return "gathered"
    return "decomposed" if any(p.decomposed for p in programs) else "partitioned"


def reach(call):
    """Notes the ops of a direct call, sharded; its results are tested elsewhere."""
    settle()
    _C.forget_programs()
    with contextlib.suppress(Exception):
        call.run("spmd", next(call.cuts(), None))
    note_ops()
    settle()


def note_ops():
    for program in _C.programs():
        for text in (program.traced_text(), program.graph_text()):
            traced_ops.update(re.findall(r"= (\w+::[\w.]+)\(", text))


def first_dimension(sample):
    """Dimension 0 of the first tensor of rank 2 or more, over two devices; None without one."""
    tensors = tensors_of((sample.input, sample.args, sample.kwargs))
    first = next((i for i, t in enumerate(tensors) if t.dim() >= 2 and t.shape[0] >= 2), None)
    if first is None:
        return None
    return Cut((2,), (None,) * first + (("x",) + (None,) * (ranks(sample)[first] - 1),))


def settle():
    """Runs what is left pending, and ignores errors."""
    with contextlib.suppress(Exception):
        spmd.sync(wait=True)
