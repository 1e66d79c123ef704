# SPDX-License-Identifier: Apache-2.0
"""Changes one number among the arguments of an op from call to call, as a loop does.

The program is compiled for the first number, at most once more for the second (since the compiler
may know the first, such as a factor of 1), and not for the third.

    python tests/python/support/changing_numbers.py [op …]   all of PyTorch's own ops: minutes
"""

import itertools
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from op_outcomes import on_host
from op_samples import OPS, Cut, evenly, first_cuts, ops_of, ranks, samples, tensors_of
from reported import reported
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import torch_spmd as spmd
from torch_spmd import _C

# The number in the second and the third call.
CHANGES = (lambda v: v * 1.3 + 0.137, lambda v: v * 1.7 + 0.279)


@dataclass(frozen=True)
class Leaf:
    """A number among the flattened arguments of a sample."""

    position: int
    name: str

    def value(self, sample: Any) -> float:
        return tree_flatten((sample.args, sample.kwargs))[0][self.position]

    def call(self, op: Any, sample: Any, device: str, value: float, cut: Cut | None) -> list[Any]:
        """Results and gradients, on the host, with `value` in the number's place."""
        leaves, spec = tree_flatten((sample.args, sample.kwargs))
        leaves[self.position] = value
        args, kwargs = tree_unflatten(leaves, spec)
        torch.manual_seed(0)
        x, args, kwargs = tree_map(
            lambda t: _on(t, device) if isinstance(t, torch.Tensor) else t,
            (sample.input, args, kwargs),
        )
        tensors = tensors_of((x, args, kwargs))
        if cut is not None and device == "spmd":
            cut.mark([t.detach() for t in tensors])
        result = op(x, *args, **kwargs)
        outputs = [t for t in tensors_of(result) if t.requires_grad]
        grads: list[Any] = []
        if outputs:
            wanted = [t for t in tensors if t.requires_grad]
            total = sum(t.abs().sum() for t in outputs)
            grads = list(torch.autograd.grad(total, wanted, allow_unused=True))
        return on_host((result, grads))


def _on(t: torch.Tensor, device: str) -> torch.Tensor:
    return t.detach().clone().to(device).requires_grad_(t.requires_grad)


def numbers_of(sample: Any) -> list[Leaf]:
    """The floats among the arguments."""
    paths: list[Leaf] = []
    leaves, _ = tree_flatten((sample.args, sample.kwargs))
    names = [str(i) for i in range(len(tree_flatten(sample.args)[0]))]
    for name, value in sample.kwargs.items():
        names += [name] * len(tree_flatten(value)[0])
    for position, (name, leaf) in enumerate(zip(names, leaves)):
        if type(leaf) is float:
            paths.append(Leaf(position, name))
    return paths


def programs_for_the_third(name: str, sample: Any, leaf: Leaf, cut: Cut | None) -> int | None:
    """The number of programs compiled for the third number; None if the CPU refuses one of them."""
    op = OPS[name]
    first = leaf.value(sample)
    values = [first, *(change(first) for change in CHANGES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = [leaf.call(op, sample, "cpu", v, None) for v in values]
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            return None
        _C.forget_programs()
        compiled = 0
        for value, expected in zip(values, want):
            before = reported()["compiles"]
            got = leaf.call(op, sample, "spmd", value, cut)
            compiled = reported()["compiles"] - before
            if name not in RANDOM:
                _same(got, expected)
    return compiled


def _same(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


RANDOM = {
    name
    for name in OPS
    if any(word in name for word in ("dropout", "normal", "bernoulli", "rrelu", "uniform", "rand"))
    or any(word in name for word in ("attention", "multi_head", "cauchy", "exponential"))
    or any(word in name for word in ("geometric", "multinomial", "empty"))
}


# Prefixes of the names of ops with numbers that decide a shape: the size of an image.
STRUCTURAL = ("_upsample", "arange", "nn_functional_interpolate", "nn_functional_upsample")


def is_structural(name: str, leaf: Leaf) -> bool:
    """Whether one program per number is expected: `norm` has a gradient for each order."""
    return leaf.name == "scale_factor" or name == "norm" or name.startswith(STRUCTURAL)


def sweep(names: list[str], limit: int = 4) -> int:
    """Changes each number of some samples of each op, with and without sharding; prints errors."""
    cases = wrong = 0
    for name in names:
        with_numbers = [s for s in samples(OPS[name]) if numbers_of(s)]
        for sample in evenly(with_numbers, limit) if with_numbers else []:
            for leaf, cut in itertools.product(
                numbers_of(sample), [None, *first_cuts(ranks(sample), 0)[:1]]
            ):
                what = None
                try:
                    count = programs_for_the_third(name, sample, leaf, cut)
                    if count and not is_structural(name, leaf):
                        what = spmd.debug.explain_compile().rows[-1].reason
                except Exception as error:
                    count, what = 0, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                cases += count is not None
                wrong += what is not None
                if what is not None:
                    print(f"{name}: {leaf.name}={leaf.value(sample)}, {cut or 'whole'}: {what}")
    print(f"{cases} cases, {wrong} of them wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(sweep(sys.argv[1:] or ops_of("float32")) > 0)
