# SPDX-License-Identifier: Apache-2.0
"""Random programs that take rows out by lists and put them back, and are cut anywhere."""

import random

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import _C, _options

N, D = 16, 8
ROWWISE = [
    torch.tanh,
    lambda t: torch.where(t > 0.5, t, t.cos()),
    lambda t: t.softmax(-1),
    lambda t: t[:, :4].repeat(1, 2),
    lambda t: t + t.flip(0) + t.mean(),  # rows meet
]


class Run:
    """One program on one device; what it draws depends on the seed only."""

    def __init__(self, seed, mesh):
        self.draw = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.mesh = mesh
        self.x = self.placed(torch.rand(N, D, generator=self.numbers), ("data", None))
        self.weights = [
            self.placed(torch.randn(D, D, generator=self.numbers) * 0.3, (None, None))
            for _ in range(2)
        ]
        for leaf in (self.x, *self.weights):
            leaf.requires_grad_()
        self.out = [torch.zeros_like(self.x) for _ in range(2)]
        self.lists, self.rows, self.seen = [], [], []
        self.new_list()
        self.read()

    def placed(self, tensor, spec):
        if self.mesh is None:
            return tensor
        return spmd.mark_sharding(tensor.to("spmd"), self.mesh, spec)

    def any_rows(self):
        """Rows, and the number of their list."""
        return self.draw.choice(self.rows)

    # --- what a program does ---
    def new_list(self):
        low = self.draw.choice([0, -N])
        i = torch.randint(low, N, (self.draw.choice([1, 2, 5, 9]),), generator=self.numbers)
        i = i if self.mesh is None else i.to("spmd")
        as_given = (i, i * 1, torch.stack([i, i * 0])[0])
        self.lists.append(self.draw.choice(as_given))

    def read(self):
        k = self.draw.randrange(len(self.lists))
        self.rows.append((self.x[self.lists[k]], k))

    def work(self):
        rows, k = self.any_rows()
        w = self.draw.choice(self.weights)
        self.rows.append((self.draw.choice([*ROWWISE, lambda t: t @ w])(rows), k))

    def combine(self):
        rows, k = self.any_rows()
        other = self.draw.choice([r for r, list_ in self.rows if list_ == k])
        self.rows.append((rows * other, k))

    def put_back(self):
        rows, k = self.any_rows()
        j = self.draw.randrange(2)
        self.out[j] = self.out[j].index_put((self.lists[k],), rows, accumulate=True)

    def cut(self):
        if self.mesh is not None:
            spmd.sync()

    def look(self):
        rows = self.any_rows()[0].detach()
        look = self.draw.choice([lambda t: t.cpu(), lambda t: t.sum(0), lambda t: t.T @ t])
        self.seen.append(look(rows).clone())

    def write(self):
        """In place, on rows that autograd has not saved, after their program has ended."""
        rows, k = self.any_rows()
        copies = [torch.clone, lambda t: torch.empty_like(t).copy_(t)]
        copied = self.draw.choice(copies)(rows.detach())
        self.rows.append((copied, k))
        self.cut()
        writes = [lambda t: t.mul_(2), lambda t: t[0].fill_(3), lambda t: t.T[1].zero_()]
        self.draw.choice(writes)(copied)

    def forget(self):
        if len(self.rows) > 1:
            self.rows.pop(self.draw.randrange(len(self.rows)))

    def mark(self):
        rows = self.any_rows()[0].detach().clone()
        self.cut()
        if self.mesh is not None:
            spmd.mark_sharding(rows, self.mesh, (None, "data"))
        self.seen.append(rows + 1)

    ACTIONS = (
        [new_list, look, write, forget, mark] + 2 * [read, combine, put_back] + 4 * [work, cut]
    )

    def results(self):
        for _ in range(self.draw.randint(12, 30)):
            self.draw.choice(self.ACTIONS)(self)
        total = sum(t.square().sum() for t in self.out) + sum(t.mean() for t, _ in self.rows)
        total.backward(retain_graph=True)
        self.cut()
        total.backward()
        gradients = [t.grad for t in (self.x, *self.weights) if t.grad is not None]
        tensors = [*(t for t, _ in self.rows), *self.out, *self.seen, *gradients]
        return [t.detach().cpu() for t in tensors]


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=str)
def test_numbers_are_those_of_plain_tensors(options):
    _C.forget_programs()
    mesh = spmd.make_mesh((4,), ("data",))
    with _options.options(**options):
        for seed in range(10 if options else 30):
            pairs = zip(Run(seed, mesh).results(), Run(seed, None).results(), strict=True)
            for number, (ours, theirs) in enumerate(pairs):
                torch.testing.assert_close(
                    ours,
                    theirs,
                    rtol=1e-3,
                    atol=1e-4,
                    equal_nan=True,
                    msg=lambda text, at=(seed, number): f"seed {at[0]}, result {at[1]}: {text}",
                )
    texts = [program.traced_text() for program in _C.programs()]
    assert any("spmd::rows_apart" in text for text in texts)
    assert any("spmd::rows_together" in text for text in texts)
