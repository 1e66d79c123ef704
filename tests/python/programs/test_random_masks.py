# SPDX-License-Identifier: Apache-2.0
"""Random programs that read rows by the places of masks and write them by those of others."""

import random

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import _C, _options

S, L, D = 8, 6, 4  # samples, their length, the width

ROWWISE = [
    torch.tanh,
    lambda t: torch.where(t > 0.5, t, t.cos()),
    lambda t: t.softmax(-1),
    lambda t: t.view(len(t), 2, D // 2).flip(1).reshape(len(t), D),
    lambda t: t + t.flip(0) + t.mean(),  # rows meet
]
PLACES = [
    lambda mask: mask.nonzero(as_tuple=True),
    lambda mask: tuple(mask.nonzero().unbind(1)),
    lambda mask: tuple(mask.nonzero()[:, k] for k in range(2)),
    lambda mask: torch.where(mask),
    lambda mask: tuple(mask.long().nonzero().t()),
]
COUNTS = [
    lambda g: torch.randint(0, L + 1, (S,), generator=g),
    lambda g: torch.full((S,), 2),
    lambda g: torch.tensor([0, 0, 1, 0, L, 0, 0, 3]),
    lambda g: (torch.arange(S) == 3).long(),
    lambda g: torch.zeros(S, dtype=torch.long),
]


class Run:
    """One program on one device; what it draws depends on the seed only."""

    def __init__(self, seed, mesh):
        self.draw = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.mesh = mesh
        self.x = self.placed(torch.rand(S, L, D, generator=self.numbers), ("data", None, None))
        weights = [torch.randn(D, D, generator=self.numbers) * 0.3 for _ in range(2)]
        self.weights = [self.placed(w, (None, None)) for w in weights]
        for leaf in (self.x, *self.weights):
            leaf.requires_grad_()
        # Tensors of [S, length, D], the places of a mask of [S, length], and rows with the number
        # of their counts; masks with the same counts have the same samples in their lists.
        self.tensors, self.places, self.rows = [self.x * 1], [], []
        self.counts = []
        self.new_counts()
        while not self.rows:
            self.new_mask()
            self.read()

    def placed(self, tensor, spec):
        if self.mesh is None:
            return tensor
        return spmd.mark_sharding(tensor.to("spmd"), self.mesh, spec)

    # --- what a program does ---
    def new_counts(self):
        self.counts.append(self.draw.choice(COUNTS)(self.numbers))

    def new_mask(self):
        k = self.draw.randrange(len(self.counts))
        counts = self.counts[k]
        length = self.draw.choice([L, L, max(1, int(counts.max()))])
        order = torch.rand(S, length, generator=self.numbers).argsort(1)
        order = self.draw.choice([order, torch.arange(length).expand(S, length)])
        mask = self.placed(order < counts[:, None], ("data", None))
        self.places.append((self.draw.choice(PLACES)(mask), length, k))

    def read(self):
        t = self.draw.choice(self.tensors)
        fitting = [p for p in self.places if p[1] == t.shape[1]]
        if not fitting:
            return
        (s, at), _, k = self.draw.choice(fitting)
        ways = [
            lambda: t[s, at],
            lambda: t.transpose(0, 1)[at, s],
            lambda: t.view(S, t.shape[1], 2, D // 2).transpose(1, 2)[s, :, at].reshape(len(s), D),
        ]
        self.rows.append((self.draw.choice(ways)(), k))

    def work(self):
        rows, k = self.draw.choice(self.rows)
        w = self.draw.choice(self.weights)
        self.rows.append((self.draw.choice([*ROWWISE, lambda t: t @ w])(rows), k))

    def combine(self):
        rows, k = self.draw.choice(self.rows)
        other = self.draw.choice([r for r, number in self.rows if number == k])
        self.rows.append((rows * other, k))

    def put(self):
        rows, k = self.draw.choice(self.rows)
        fitting = [p for p in self.places if p[2] == k]
        if not fitting:
            return
        (s, at), length, _ = self.draw.choice(fitting)
        into = [t for t in self.tensors if t.shape[1] == length]
        t = self.draw.choice([torch.zeros(S, length, D, device=rows.device), *into])
        t, accumulate = t.clone(), self.draw.choice([False, True])
        if self.draw.choice([False, True]):
            t.transpose(0, 1).index_put_((at, s), rows, accumulate=accumulate)
        else:
            t.index_put_((s, at), rows, accumulate=accumulate)
        self.tensors.append(t)

    def fill(self):
        t = self.draw.choice(self.tensors).clone()
        for (s, at), length, _ in self.places:
            if length == t.shape[1]:
                t[s, at] = 3.0
                self.tensors.append(t)
                return

    def mix(self):
        """Over the places of each sample, as attention does."""
        t = self.draw.choice(self.tensors)
        self.tensors.append((t @ t.mT).softmax(-1) @ t)

    def cut(self):
        if self.mesh is not None:
            spmd.sync()

    def forget(self):
        if len(self.places) > 2:
            self.places.pop(self.draw.randrange(len(self.places)))

    ACTIONS = (
        [new_counts, fill, forget, cut]
        + 2 * [mix, combine, cut]
        + 4 * [new_mask]
        + 5
        * [
            read,
            work,
            put,
        ]
    )

    def results(self):
        for _ in range(self.draw.randint(12, 30)):
            self.draw.choice(self.ACTIONS)(self)
        total = sum(t.square().sum() for t in self.tensors)
        total = total + sum(t.mean() for t, _ in self.rows if t.numel() > 0)
        total.backward(retain_graph=True)
        self.cut()
        total.backward()
        gradients = [t.grad for t in (self.x, *self.weights) if t.grad is not None]
        lists = [i for places, _, _ in self.places for i in places]
        tensors = [*(t for t, _ in self.rows), *self.tensors, *lists, *gradients]
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
    texts = [program.program_text() for program in _C.programs()]
    assert sum("spmd::index_put_rows" in text for text in texts) > len(texts) / 5
