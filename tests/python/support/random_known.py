# SPDX-License-Identifier: Apache-2.0
"""Bugs that random programs found and that are not fixed yet.

Each entry has the shortest program that shows the bug, which is a test that is expected to fail,
and says which other programs show it, too: the difference and a line must match."""

import re
from dataclasses import dataclass

from random_programs import Program


@dataclass(frozen=True)
class Known:
    """A bug: `text` is looked for in the difference, `line` in the lines of a program."""

    reason: str
    text: str
    line: str
    mesh: tuple[int, ...]
    lines: tuple[str, ...]

    @property
    def program(self):
        return Program(self.mesh, self.lines)


KNOWN = (
    Known(
        "an op that fails undoes writes that were pending with it",
        r"differs in the values|the value was lost",
        r"refused\(\).*t\d+\[index",
        (2,),
        (
            "t0, t1 = torch.ones(3, device=device), torch.zeros(4, device=device)",
            "t0.mul_(5)",
            "with refused(): t1[index([7])] = 1.0",
        ),
    ),
    Known(
        "indices into no elements are not looked at",
        r"is nothing, not (RuntimeError|IndexError)",
        r"refused.*index_select",
        (2,),
        (
            "t0 = torch.zeros(0, 4, device=device)",
            "with refused(): t0.index_select(-1, index([2, 5]))",
        ),
    ),
    Known(
        "a bit view of an empty tensor",
        r"must be divisible by|is nothing, not RuntimeError",
        r"\.view\(torch",
        (2,),
        (
            "t0 = torch.arange(0, dtype=torch.float32, device=device) % 2",
            "t1 = t0[None].view(torch.complex64)",
        ),
    ),
    Known(
        "an index out of a cut dimension is an error of another type",
        r"is IndexError, not RuntimeError",
        r"refused.*index_select",
        (3,),
        (
            "t0 = torch.ones(6, 4, device=device) * 2",
            "mark(t0, None, 'x')",
            "with refused(): t1 = t0.index_select(1, index([1, 0, 5]))",
        ),
    ),
)


def known(program, text):
    """The reason of a difference, if it is known."""
    for bug in KNOWN:
        if re.search(bug.text, text) and re.search(bug.line, "\n".join(program.lines)):
            return bug.reason
    return None
