# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples, and how their tensors are sharded.

Each `OpInfo` of `op_db` yields samples of a dtype: an input, args and kwargs.
"""

import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED
from torch.utils._pytree import tree_leaves

import torch_spmd as spmd

OPS = {op.formatted_name: op for op in op_db}

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.complex64,
        torch.int64,
        torch.bool,
    )
}


def ops_of(dtype):
    """The names of the op variants that support a dtype."""
    return [name for name, op in OPS.items() if DTYPES[dtype] in op.dtypes]


@dataclass(frozen=True)
class Cut:
    """Which of some tensors are sharded, and how: `specs` has one entry per tensor, or None."""

    mesh: tuple[int, ...]
    specs: tuple[tuple[Any, ...] | None, ...]

    def __str__(self):
        marks = ", ".join(f"tensor {i} {s}" for i, s in enumerate(self.specs) if s is not None)
        return f"mesh {self.mesh}: {marks}"

    def mark(self, tensors):
        mesh = spmd.make_mesh(self.mesh, AXES[: len(self.mesh)])
        for tensor, spec in zip(tensors, self.specs):
            if spec is not None and tensor.device.type == "spmd":
                spmd.mark_sharding(tensor, mesh, spec)


AXES = ("x", "y")


def differentiable(op, dtype):
    """Whether an op has gradients in a dtype."""
    continuous = DTYPES[dtype].is_floating_point or DTYPES[dtype].is_complex
    return op.supports_autograd and continuous and DTYPES[dtype] in op.backward_dtypes


def samples(op, dtype="float32"):
    """The samples of an op in a dtype, the same at every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # As `op.sample_inputs`, which looks for a unittest.TestCase in all frames, with their
        # source lines: that takes longer than the samples.
        drawn = op.sample_inputs_func(op, "cpu", DTYPES[dtype], differentiable(op, dtype))
        return list(_each_from_one_seed(drawn))


def _each_from_one_seed(drawn):
    """Seeds as PyTorch's samples do; but its `torch.manual_seed` takes a traceback each time."""
    drawn = iter(drawn)
    while True:
        torch.default_generator.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            yield next(drawn)
        except StopIteration:
            return


def evenly(items, limit):
    """At most `limit` of the items, the first among them."""
    step = max(1, -(-len(items) // limit))
    return items[::step]


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def ranks(sample):
    """Of every tensor of a sample, in the order in which a `Cut` counts them."""
    return [t.dim() for t in tensors_of((sample.input, sample.args, sample.kwargs))]


def first_cuts(ranks, seed):
    """Dimension 0 of the first tensor that has one, over 2 and 4 devices; all at random over 6."""
    first = next((i for i, rank in enumerate(ranks) if rank), None)
    if first is None:
        return []
    spec = ("x",) + (None,) * (ranks[first] - 1)
    whole = (None,) * first
    return [Cut((size,), (*whole, spec)) for size in (2, 4)] + [random_cut(ranks, seed)]


def few_cuts(ranks, seed):
    """Dimension 0 of the first tensor that has one, over 2 devices; all at random over 6."""
    return first_cuts(ranks, seed)[::2]


def all_cuts(ranks, seed):
    """Each dimension of each tensor, pairs of dimensions, and all tensors at once, at random."""
    for tensor, rank in enumerate(ranks):
        for dim in range(rank):
            for mesh, axes in (((2,), "x"), ((4,), "x"), ((3,), "x"), ((2, 2), AXES)):
                yield _one(mesh, tensor, rank, {dim: axes})
            if dim + 1 < rank:
                yield _one((2, 2), tensor, rank, {dim: "x", dim + 1: "y"})
    if any(ranks):
        yield random_cut(ranks, seed)


def random_cut(ranks, seed):
    """Every tensor over 2 × 3 devices: which axis shards which dimension, if any, is drawn."""
    choose, specs = random.Random(seed), []
    for rank in ranks:
        entries = list(AXES) + [None] * rank
        choose.shuffle(entries)
        specs.append(tuple(entries[:rank]))
    return Cut((2, 3), tuple(specs))


def _one(mesh, tensor, rank, axes_of_dim):
    return Cut(mesh, (None,) * tensor + (tuple(axes_of_dim.get(d) for d in range(rank)),))
