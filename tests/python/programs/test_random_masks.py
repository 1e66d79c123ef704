# SPDX-License-Identifier: Apache-2.0
"""Random programs that read rows by the places of masks and write them by those of others."""

import pytest
import torch
from row_programs import RowProgram, compare_with_plain_tensors

from torch_spmd import _C

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


class Run(RowProgram):
    def __init__(self, seed, mesh):
        super().__init__(seed, mesh, (S, L, D))
        # Tensors of [S, length, D], the places of a mask of [S, length], and rows with the number
        # of their counts; masks with the same counts have the same samples in their lists.
        self.tensors, self.places = [self.x * 1], []
        self.counts = []
        self.new_counts()
        while not self.rows:
            self.new_mask()
            self.read()

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
        self.work_by(ROWWISE)

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

    def forget(self):
        if len(self.places) > 2:
            self.places.pop(self.draw.randrange(len(self.places)))

    ACTIONS = (
        [new_counts, fill, forget, RowProgram.cut]
        + 2 * [mix, RowProgram.combine, RowProgram.cut]
        + 4 * [new_mask]
        + 5
        * [
            read,
            work,
            put,
        ]
    )

    def results(self):
        self.act()
        total = sum(t.square().sum() for t in self.tensors)
        total = total + sum(t.mean() for t, _ in self.rows if t.numel() > 0)
        gradients = self.gradients_of(total)
        lists = [i for places, _, _ in self.places for i in places]
        tensors = [*(t for t, _ in self.rows), *self.tensors, *lists, *gradients]
        return [t.detach().cpu() for t in tensors]


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=str)
def test_numbers_are_those_of_plain_tensors(options):
    compare_with_plain_tensors(Run, options)
    texts = [program.program_text() for program in _C.programs()]
    assert sum("spmd::index_put_rows" in text for text in texts) > len(texts) / 5
