# SPDX-License-Identifier: Apache-2.0
"""Writes random programs, line by line; each line runs on the CPU to know what may follow."""

import warnings

import torch
from random_lines import LINES, NotPossible, source
from random_programs import Program, start

MESHES = ((2,), (3,), (4,), (2, 2), (2, 3), (8,))
LARGEST = 400  # elements of a tensor
BOUND = 1e4  # of the values of a tensor that is used further


class Scope:
    """What a program has so far: its random choices, its lines and its tensors on the CPU."""

    def __init__(self, random):
        self.random = random
        self.mesh = random.choice(MESHES)
        self.repeated = random.random() < 0.2
        self.lines = []
        self.count = 0  # of names
        self.seeds = 0
        self.marked = set()  # names
        self.run = start(self.program, "cpu")

    @property
    def program(self):
        return Program(self.mesh, tuple(self.lines), self.repeated)

    def name(self):
        """A name not used yet."""
        self.count += 1
        return f"t{self.count - 1}"

    def pick(self, accept=lambda t: True):
        """A name, more likely a late one, of a tensor that `accept` accepts."""
        names = [name for name, t in self.run.tensors.items() if _accepted(t, accept)]
        if not names:
            raise NotPossible
        return self.random.choice(names[-3:] if self.random.random() < 0.5 else names)

    def tensor(self, name):
        return self.run.names[name]

    def add(self, line):
        """Appends a line, marked as one that raises if it does."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(line, self.run.names)
            except Exception:
                inner = line.removeprefix("with ") if line.startswith("with ") else None
                line = f"with refused(), {inner}" if inner else f"with refused(): {line}"
        self.lines.append(line)


def write(random, length=None):
    """A program of some 4 to 18 lines after those that make its first tensors."""
    scope = Scope(random)
    first = [source] * random.randint(1, 3)
    others = random.choices(list(LINES), list(LINES.values()), k=length or random.randint(4, 18))
    for kind in first + others:
        try:
            kind(scope)
        except NotPossible:
            continue
    return scope.program


def _accepted(t, accept):
    try:
        return _usable(t) and (t.is_leaf or True) and accept(t)
    except (RuntimeError, IndexError):
        return False  # a view that autograd has given up


def _usable(t):
    """Small enough, and of values whose products still are."""
    if t.numel() > LARGEST or t.dim() > 5:
        return False
    values = t.detach().abs() if t.dtype != torch.bool else t
    return not t.numel() or bool((values <= BOUND).all())
