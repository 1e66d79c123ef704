# SPDX-License-Identifier: Apache-2.0
"""Whether two outcomes of an op differ by rounding only.

Some samples are ill-conditioned, and some types are narrow: the CPU's own result is then far from
the exact one, and a sum in another order as far from both. So the CPU's error is measured first,
against the same sample in a wider type. A result with no larger error is as right as the CPU's."""

import copy

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.float64: torch.float64,  # beside narrower operands, such as weights in float32
}

# How often the CPU's error is measured: on the sample, and on inputs whose last bit differs. In one
# run a result of few elements may be right by chance.
RUNS = 6

# How much farther than the CPU from the exact result a rounded one may be.
MULTIPLE = 4


def is_rounding(got, want, sample, run, same):
    """Whether all leaves that are not the `same` are as near to the exact ones as those of `want`.

    `run` computes the outcome of a sample; `want` is that of `sample`.
    """
    if len(leaves(got)) != len(leaves(want)):
        return False
    pairs = list(zip(leaves(got), leaves(want)))
    differing = [i for i, (a, b) in enumerate(pairs) if not same(a, b)]
    if not all(_comparable(*pairs[i]) for i in differing):
        return False
    ours = [Error() for _ in pairs]
    theirs = [Error() for _ in pairs]
    for number in range(RUNS):
        narrow = sample if number == 0 else nudged(sample, number)
        try:
            outcome = want if number == 0 else run(narrow)
            exact = in_wider_types(narrow, run)
            for i in differing:
                theirs[i].see(leaves(outcome)[i], leaves(exact)[i])
                if number == 0:
                    ours[i].see(pairs[i][0], leaves(exact)[i])
        except Exception:
            if number == 0:
                return False  # the op does not know the wider type
    return all(ours[i].within(theirs[i]) for i in differing)


class Error:
    """How far results are from exact ones: the farthest element's, and all elements' together."""

    def __init__(self):
        self.most = self.mean = 0.0

    def see(self, got, exact):
        finite = exact.isfinite()
        if got.shape != exact.shape or not torch.equal(got.isfinite(), finite):
            raise ValueError("nothing to measure")
        far = (got.to(exact.dtype) - exact)[finite].abs()
        self.most = max(self.most, float(far.max()))
        self.mean = max(self.mean, float(far.square().mean().sqrt()))

    def within(self, other):
        return self.most <= MULTIPLE * other.most and self.mean <= MULTIPLE * other.mean


def leaves(outcome):
    return tree_leaves((outcome.outputs, outcome.inputs, outcome.gradients))


def _comparable(a, b):
    """Whether two leaves could be rounded results of the same thing."""
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
        and b.dtype in WIDER
        and torch.equal(a.isfinite(), b.isfinite())
        and torch.allclose(a[~a.isfinite()], b[~b.isfinite()], equal_nan=True)
    )


def in_wider_types(sample, run):
    """The outcome of a sample in wider types, from the same random numbers."""
    narrow = getattr(sample.input, "dtype", torch.float32)
    if narrow not in WIDER or narrow.is_complex or narrow == torch.float64:
        narrow = torch.float32
    wider = {t: WIDER[t] for t in (narrow, torch.complex64)}

    def widened(leaf):
        if isinstance(leaf, torch.dtype):
            return wider.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor) and leaf.dtype in wider:
            return leaf.detach().to(wider[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return leaf

    with DrawsAs(wider):
        return run(_mapped(widened, sample))


def nudged(sample, seed):
    """A sample whose numbers are an ulp or two larger or smaller."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in WIDER:
            return leaf
        sign = torch.randint(0, 2, leaf.shape, generator=generator) * 2 - 1
        factor = (1 + torch.finfo(leaf.dtype).eps * sign).to(leaf.dtype)
        return (leaf.detach() * factor).requires_grad_(leaf.requires_grad)

    return _mapped(nudge, sample)


def _mapped(change, sample):
    mapped = copy.copy(sample)
    mapped.input, mapped.args, mapped.kwargs = tree_map(
        change, (sample.input, sample.args, dict(sample.kwargs))
    )
    return mapped


class DrawsAs(TorchDispatchMode):
    """Random numbers are drawn in narrow types, then widened, since wider types draw other
    numbers."""

    def __init__(self, wider):
        super().__init__()
        self.wider = wider
        self.narrower = {wide: narrow for narrow, wide in wider.items()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        drawn = func(*tree_map(self._narrow, args), **tree_map(self._narrow, kwargs))
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(self._widen, drawn)

    def _narrow(self, leaf):
        if isinstance(leaf, torch.dtype):
            return self.narrower.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.narrower.get(leaf.dtype, leaf.dtype))
        return leaf

    def _widen(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.wider.get(leaf.dtype, leaf.dtype))
        return leaf
