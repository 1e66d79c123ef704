# SPDX-License-Identifier: Apache-2.0
"""Random programs that move rows: each runs sharded over four devices, and on plain tensors."""

import random

import torch

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.device import options as _options


class RowProgram:
    """One program on one device; what it draws depends on the seed only. Subclasses have ACTIONS.

    `x` is sharded over its first dimension, and there are two weights of its last; all have
    gradients. `rows` are pairs of rows and the number of their list. Without a mesh, tensors are
    plain ones.
    """

    def __init__(self, seed, mesh, size):
        self.draw = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.mesh = mesh
        x = torch.rand(*size, generator=self.numbers)
        self.x = self.placed(x, ("data", *(None,) * (len(size) - 1)))
        square = (size[-1], size[-1])
        weights = [torch.randn(*square, generator=self.numbers) * 0.3 for _ in range(2)]
        self.weights = [self.placed(w, (None, None)) for w in weights]
        for leaf in (self.x, *self.weights):
            leaf.requires_grad_()
        self.rows = []

    def placed(self, tensor, spec):
        if self.mesh is None:
            return tensor
        return spmd.mark_sharding(tensor.to("spmd"), self.mesh, spec)

    def work_by(self, functions):
        """New rows by one of the functions or a weight."""
        rows, k = self.draw.choice(self.rows)
        w = self.draw.choice(self.weights)
        self.rows.append((self.draw.choice([*functions, lambda t: t @ w])(rows), k))

    def combine(self):
        rows, k = self.draw.choice(self.rows)
        other = self.draw.choice([r for r, number in self.rows if number == k])
        self.rows.append((rows * other, k))

    def cut(self):
        if self.mesh is not None:
            spmd.sync()

    def act(self):
        for _ in range(self.draw.randint(12, 30)):
            self.draw.choice(self.ACTIONS)(self)

    def gradients_of(self, total):
        """After two backward passes through the same graph, with a cut between them."""
        total.backward(retain_graph=True)
        self.cut()
        total.backward()
        return [t.grad for t in (self.x, *self.weights) if t.grad is not None]


def compare_with_plain_tensors(program, options):
    """Thirty programs, ten with options: `program(seed, mesh).results()` on a mesh and without one.
    Forgets all programs before."""
    _C.forget_programs()
    mesh = spmd.make_mesh((4,), ("data",))
    with _options.update(**options):
        for seed in range(10 if options else 30):
            pairs = zip(program(seed, mesh).results(), program(seed, None).results(), strict=True)
            for number, (ours, theirs) in enumerate(pairs):
                torch.testing.assert_close(
                    ours,
                    theirs,
                    rtol=1e-3,
                    atol=1e-4,
                    equal_nan=True,
                    msg=lambda text, at=(seed, number): f"seed {at[0]}, result {at[1]}: {text}",
                )
