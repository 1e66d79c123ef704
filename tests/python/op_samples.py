# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own op samples, run on the CPU and on `spmd`, and how the two differ.

Each `OpInfo` of `op_db` yields samples: an input, args and kwargs. A sample runs on fresh copies of
its tensors, forward and backward; what is compared is the `Outcome`.
"""

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_spmd as spmd

OPS = {op.formatted_name: op for op in op_db if torch.float32 in op.dtypes}

# Results are memory that nobody wrote: only their shapes and types can be compared.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

# Arguments that PyTorch wants on the host whatever the device.
HOST_INDICES = {"tensor_split"}

# Results that are on the CPU because the samples ask for it.
HOST_RESULTS = {"to"}

# A sum in another order errs by a part of its largest terms.
RTOL, ATOL, ATOL_OF_LARGEST = 1e-4, 1e-5, 1e-6

# Gradients that are 0 but for rounding: of the two weights of a covariance of two observations.
ATOL_OF_OP = {"cov": 2e-4}


@dataclass(frozen=True)
class Cut:
    """Which tensors of a sample are cut, and how: `specs` has one entry per tensor, or None."""

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


@dataclass
class Outcome:
    """What is left of a run, on the host."""

    outputs: Any
    inputs: Any  # after the call: some ops write them
    gradients: Any
    devices: set[str]  # where the outputs were


class NothingToCompare(Exception):
    """The CPU refuses a sample."""


class _Draws(TorchDispatchMode):
    """Notes whether an op drew random numbers: many wrappers of `op_db` put the state back."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        self.seen = self.seen or not torch.equal(before, torch.get_rng_state())
        return result


def samples(op):
    """The samples of an op in float32, the same at every call."""
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))


def evenly(items, limit):
    """At most `limit` of the items, the first among them."""
    step = max(1, -(-len(items) // limit))
    return items[::step]


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def ranks(sample):
    """Of every tensor of a sample, in the order in which a `Cut` counts them."""
    return [t.dim() for t in tensors_of((sample.input, sample.args, sample.kwargs))]


def first_cuts(sample, seed):
    """Dimension 0 of the first tensor that has one, over 2 and 4 devices; all at random over 6."""
    first = next((i for i, rank in enumerate(ranks(sample)) if rank), None)
    if first is None:
        return []
    spec = ("x",) + (None,) * (ranks(sample)[first] - 1)
    return [Cut((size,), (None,) * first + (spec,)) for size in (2, 4)] + [_random(sample, seed)]


def all_cuts(sample, seed):
    """Each dimension of each tensor, pairs of dimensions, and all tensors at once, at random."""
    every = list(enumerate(ranks(sample)))
    for tensor, rank in every:
        for dim in range(rank):
            for mesh, axes in (((2,), "x"), ((4,), "x"), ((3,), "x"), ((2, 2), AXES)):
                yield _one(mesh, tensor, rank, {dim: axes})
            if dim + 1 < rank:
                yield _one((2, 2), tensor, rank, {dim: "x", dim + 1: "y"})
    if any(rank for _, rank in every):
        yield _random(sample, seed)


# Ways to call an op: as the function that it is; on inputs whose elements lie apart, first
# dimension first; writing its first input; writing a tensor given for the result.
FORMS = ("function", "strided", "in_place", "out")


def run(op, sample, device, cut=None, form="function"):
    """The outcome of a sample on a device, cut first."""

    def copy(leaf):
        if isinstance(leaf, torch.Tensor):
            fresh = leaf.detach().clone()
            if leaf.is_floating_point() or op.name not in HOST_INDICES:
                fresh = fresh.to(device)
            if form == "strided":
                fresh = _apart(fresh)
            return fresh.requires_grad_(leaf.requires_grad and form != "out")
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    inputs = tree_map(copy, (sample.input, sample.args, dict(sample.kwargs)))
    if "device" in inputs[2]:
        inputs[2]["device"] = device
    leaves = tensors_of(inputs)
    if cut is not None:
        cut.mark(leaves)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = _call(op, inputs, form)
        gradients = _gradients(sample.output_process_fn_grad(outputs), leaves)
        devices = {t.device.type for t in tensors_of(outputs)}
        return Outcome(_on_host(outputs), _on_host(leaves), _on_host(gradients), devices)


def draws(op, sample, form):
    """Whether a sample draws random numbers."""
    with _Draws() as mode:
        run(op, sample, "cpu", form=form)
    return mode.seen


def difference(got, want, values=True, atol=ATOL):
    """How two outcomes differ, in words; None if they are the same.

    Without `values` only shapes and types count.
    """
    for name in ("outputs", "inputs", "gradients"):
        ours, theirs = (tree_leaves(getattr(outcome, name)) for outcome in (got, want))
        if len(ours) != len(theirs):
            return f"differs: {len(ours)} {name}, not {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs)):
            if what := _leaf_difference(a, b, values, atol):
                return f"differs in {name}[{i}]: {what}"
    return None


def compare(op, sample, cut=None, form="function"):
    """What is wrong with a sample on `spmd`: "raises …", "differs …", or None.

    Errors: NothingToCompare when the CPU itself refuses.
    """
    try:
        want = run(op, sample, "cpu", form=form)
        drawn = draws(op, sample, form)
    except Exception as error:
        raise NothingToCompare from error
    try:
        if drawn and cut is not None:
            want = run(op, sample, "spmd", form=form)  # the same numbers, whatever the mesh
        got = run(op, sample, "spmd", cut, form=form)
    except Exception as error:
        return f"raises {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    asks_for_device = op.name not in HOST_RESULTS and (ranks(sample) or "device" in sample.kwargs)
    if asks_for_device and not got.devices <= {"spmd"}:
        return f"differs: results on {sorted(got.devices)}"
    values = op.name not in UNINITIALISED and (not drawn or cut is not None)
    return difference(got, want, values, ATOL_OF_OP.get(op.name, ATOL))


def _one(mesh, tensor, rank, axes_of_dim):
    return Cut(mesh, (None,) * tensor + (tuple(axes_of_dim.get(d) for d in range(rank)),))


def _random(sample, seed):
    choose, specs = random.Random(seed), []
    for rank in ranks(sample):
        entries = list(AXES) + [None] * rank
        choose.shuffle(entries)
        specs.append(tuple(entries[:rank]))
    return Cut((2, 3), tuple(specs))


def _apart(t):
    if t.dim() == 0 or t.layout != torch.strided:
        return t
    wide = torch.zeros(*reversed(t.shape), 2, dtype=t.dtype, device=t.device)
    return wide[..., 0].permute(*reversed(range(t.dim()))).copy_(t)


def _call(op, inputs, form):
    first, args, kwargs = inputs
    if form == "in_place":
        return op.get_inplace()(first.clone(), *args, **kwargs)  # a leaf cannot be written
    if form != "out":
        return op(first, *args, **kwargs)
    state = torch.get_rng_state()
    out = tree_map(torch.zeros_like, op(first, *args, **kwargs))
    torch.set_rng_state(state)
    result = op(first, *args, **kwargs, out=out)
    return result, out


def _gradients(outputs, leaves):
    """Of every leaf, for random weights of the outputs."""
    outputs = [t for t in tensors_of(outputs) if t.requires_grad]
    leaves = [t for t in leaves if t.requires_grad]
    if not outputs or not leaves:
        return []
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device) for t in outputs
    ]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def _on_host(tree):
    return [
        leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
        for leaf in tree_leaves(tree)
    ]


def _leaf_difference(a, b, values, atol):
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        same = type(a) is type(b) and (not values or a == b or a != a)
        return None if same else f"{a!r}, not {b!r}"
    for what in ("shape", "dtype", "layout"):
        if getattr(a, what) != getattr(b, what):
            return f"{what} {getattr(a, what)}, not {getattr(b, what)}"
    if not values:
        return None
    try:
        torch.testing.assert_close(a, b, **_tolerances(b, atol), equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split("\n\n")[-1].split())
    return None


def _tolerances(want, atol):
    if not (want.is_floating_point() or want.is_complex()) or want.layout != torch.strided:
        return {"rtol": 0, "atol": 0}
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0
    return {"rtol": RTOL, "atol": atol + ATOL_OF_LARGEST * largest}
