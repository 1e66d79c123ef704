# SPDX-License-Identifier: Apache-2.0
"""Random programs that take rows out by lists and put them back, and are cut anywhere."""

import pytest
import torch
from row_programs import RowProgram, compare_with_plain_tensors

import torch_spmd as spmd
from torch_spmd import _C

N, D = 16, 8
ROWWISE = [
    torch.tanh,
    lambda t: torch.where(t > 0.5, t, t.cos()),
    lambda t: t.softmax(-1),
    lambda t: t[:, :4].repeat(1, 2),
    lambda t: t + t.flip(0) + t.mean(),  # rows meet
]


class Run(RowProgram):
    def __init__(self, seed, mesh):
        super().__init__(seed, mesh, (N, D))
        self.out = [torch.zeros_like(self.x) for _ in range(2)]
        self.lists, self.seen = [], []
        self.new_list()
        self.read()

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
        self.work_by(ROWWISE)

    def put_back(self):
        rows, k = self.any_rows()
        j = self.draw.randrange(2)
        self.out[j] = self.out[j].index_put((self.lists[k],), rows, accumulate=True)

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
        [new_list, look, write, forget, mark]
        + 2 * [read, RowProgram.combine, put_back]
        + 4 * [work, RowProgram.cut]
    )

    def results(self):
        self.act()
        total = sum(t.square().sum() for t in self.out) + sum(t.mean() for t, _ in self.rows)
        gradients = self.gradients_of(total)
        tensors = [*(t for t, _ in self.rows), *self.out, *self.seen, *gradients]
        return [t.detach().cpu() for t in tensors]


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=str)
def test_numbers_are_those_of_plain_tensors(options):
    compare_with_plain_tensors(Run, options)
    texts = [program.traced_text() for program in _C.programs()]
    assert any("spmd::rows_apart" in text for text in texts)
    assert any("spmd::rows_together" in text for text in texts)
