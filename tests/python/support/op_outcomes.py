# SPDX-License-Identifier: Apache-2.0
"""Runs op samples on the CPU and on `spmd`, and describes how the two differ.

A sample runs on fresh copies of its tensors, forward and backward; the two `Outcome`s are compared.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from op_rounding import is_rounding
from op_samples import ranks, tensors_of
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Results are uninitialized memory: only their shapes and types can be compared.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

# Arguments that PyTorch requires on the host for every device.
HOST_INDICES = {"tensor_split"}

# Results that are on the CPU because the samples ask for it.
HOST_RESULTS = {"to"}

# A sum in another order errs by a fraction of its largest terms: per type of the result, the
# relative tolerance, the absolute one, and the absolute one as a fraction of the largest element.
TOLERANCES = {
    torch.bfloat16: (3e-2, 1e-2, 1e-2),
    torch.float16: (4e-3, 2e-3, 1e-3),
    torch.float32: (1e-4, 1e-5, 1e-6),
    torch.float64: (1e-7, 1e-9, 1e-11),
    torch.complex64: (1e-4, 1e-5, 1e-6),
    torch.complex128: (1e-7, 1e-9, 1e-11),
}

# Forms of a call: as a function; on inputs with gaps between elements, in column-major order; on
# inputs without elements; in place; with out=; with second gradients; with tangents.
FORMS = ("function", "strided", "empty", "in_place", "out", "second", "forward_mode")


# On inputs without elements PyTorch's own CPU kernels divide by zero or read out of bounds, so that
# the process ends, or their result is uninitialized memory.
UNDEFINED_ON_NOTHING = {
    "_native_batch_norm_legit",
    "_segment_reduce_lengths",
    "_segment_reduce_offsets",
    "native_batch_norm",
    "nn_functional_multi_margin_loss",
    "nn_functional_multilabel_margin_loss",
    "nn_functional_pdist",
    "resize_",
}


def has_form(op, form):
    """Whether an op can be called in this form."""
    known = {
        "empty": op.formatted_name not in UNDEFINED_ON_NOTHING,
        "in_place": op.get_inplace() is not None,
        "out": op.supports_out,
        "second": op.supports_gradgrad,
        "forward_mode": op.supports_forward_ad,
    }
    return known.get(form, True)


@dataclass
class Outcome:
    """The results of a run, on the host."""

    outputs: Any
    inputs: Any  # after the call: some ops write them
    gradients: Any
    devices: set[str]  # where the outputs were


class NothingToCompare(Exception):
    """The CPU refuses a sample."""


class Draws(TorchDispatchMode):
    """Notes whether an op drew random numbers, since many wrappers of `op_db` restore the state."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        self.seen = self.seen or not torch.equal(before, torch.get_rng_state())
        return result


def run(op, sample, device, cut=None, form="function"):
    """The outcome of a sample on a device, cut first."""

    rows = next((t.size(0) for t in tensors_of(sample.input) if t.dim()), None)

    def copy(leaf):
        if isinstance(leaf, torch.Tensor):
            fresh = leaf.detach().clone()
            if form == "empty" and leaf.dim() and leaf.size(0) == rows:
                fresh = fresh[:0].clone()  # of every tensor that has the rows of the first
            if leaf is sample.input or leaf.is_floating_point() or op.name not in HOST_INDICES:
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
        if form == "forward_mode":
            outputs, gradients = _tangents(op, inputs, sample.output_process_fn_grad)
        else:
            outputs = _call(op, inputs, form)
            results = sample.output_process_fn_grad(outputs)
            gradients = gradients_of(results, leaves, twice=form == "second")
        devices = {t.device.type for t in tensors_of(outputs)}
        return Outcome(on_host(outputs), on_host(leaves), on_host(gradients), devices)


def difference(got, want, values=True):
    """How two outcomes differ, in words; None if they are the same.

    Without `values` only shapes and types count.
    """
    for name in ("outputs", "inputs", "gradients"):
        ours, theirs = (tree_leaves(getattr(outcome, name)) for outcome in (got, want))
        if len(ours) != len(theirs):
            return f"differs: {len(ours)} {name}, not {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs)):
            if what := leaf_difference(a, b, values):
                return f"differs in {name}[{i}]: {what}"
    return None


def draws(op, sample, form):
    """Whether a sample draws random numbers."""
    with Draws() as mode:
        run(op, sample, "cpu", form=form)
    return mode.seen


def compare(op, sample, cut=None, form="function"):
    """What is wrong with a sample on `spmd`: "raises …", "differs …", or None.

    Errors: NothingToCompare when the CPU itself refuses.
    """
    try:
        want = run(op, sample, "cpu", form=form)
    except Exception as error:
        raise NothingToCompare from error
    try:
        got = run(op, sample, "spmd", cut, form=form)
        asks_for_device = op.name not in HOST_RESULTS and (
            ranks(sample) or "device" in sample.kwargs
        )
        if asks_for_device and not got.devices <= {"spmd"}:
            return f"differs: results on {sorted(got.devices)}"
        values, reference = op.name not in UNINITIALISED, "cpu"
        what = difference(got, want, values)
        if what and draws(op, sample, form):
            if cut is None:
                return difference(got, want, values=False)
            reference = "spmd"  # the same numbers, whatever the mesh
            want = run(op, sample, reference, form=form)
            what = difference(got, want, values)
        again = partial(run, op, device=reference, form=form)
        return None if what and is_rounding(got, want, sample, again, _same) else what
    except Exception as error:
        return f"raises {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"


def _same(a, b):
    return leaf_difference(a, b) is None


def leaf_difference(a, b, values=True, atol=0):
    """How two leaves differ, in words; None if they are the same."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        same = type(a) is type(b) and (not values or a == b or a != a)
        return None if same else f"{a!r}, not {b!r}"
    for what in ("shape", "dtype", "layout"):
        if getattr(a, what) != getattr(b, what):
            return f"{what} {getattr(a, what)}, not {getattr(b, what)}"
    if not values or _same_numbers(a, b):
        return None
    if b.layout == torch.sparse_csr:
        parts = [(t.crow_indices(), t.col_indices(), t.values()) for t in (a, b)]
        found = (leaf_difference(*each, values, atol) for each in zip(*parts))
        return next(filter(None, found), None)
    try:
        torch.testing.assert_close(a, b, **_tolerances(b, atol), equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split("\n\n")[-1].split())
    return None


def _same_numbers(a, b):
    return b.dtype in TOLERANCES and b.layout == torch.strided and torch.equal(a, b)


def _tolerances(want, atol):
    if want.dtype not in TOLERANCES or want.layout != torch.strided:
        return {"rtol": 0, "atol": 0}
    rtol, smallest, of_largest = TOLERANCES[want.dtype]
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0
    return {"rtol": rtol, "atol": max(atol, smallest) + of_largest * largest}


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


def gradients_of(outputs, leaves, twice=False):
    """Of every leaf, for random weights of the outputs; `twice`: and of these gradients."""
    outputs = [t for t in tensors_of(outputs) if t.requires_grad]
    leaves = [t for t in leaves if t.requires_grad]
    if not outputs or not leaves:
        return []
    generator = torch.Generator().manual_seed(1)
    weights = [random_like(t, generator).requires_grad_(twice) for t in outputs]
    first = torch.autograd.grad(outputs, leaves, weights, allow_unused=True, create_graph=twice)
    if not twice:
        return first
    return first, gradients_of([t for t in first if t is not None], leaves + weights)


def _tangents(op, inputs, process):
    """The outputs, and their tangents for random ones of the inputs."""

    generator = torch.Generator().manual_seed(1)

    def dual(leaf):
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad:
            return leaf
        return forward_ad.make_dual(leaf, random_like(leaf, generator))

    with forward_ad.dual_level():
        first, args, kwargs = tree_map(dual, inputs)
        outputs = process(op(first, *args, **kwargs))
        pairs = [forward_ad.unpack_dual(t) for t in tensors_of(outputs)]
    return [pair.primal for pair in pairs], [pair.tangent for pair in pairs]


def random_like(t, generator):
    return torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device)


def on_host(tree):
    return [
        leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
        for leaf in tree_leaves(tree)
    ]
