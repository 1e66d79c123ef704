# SPDX-License-Identifier: Apache-2.0
"""What random programs found and is not right yet.

Each entry has the shortest program that shows it, which is a test that is expected to fail, and
says which other programs show it too: the difference and a line must fit.
"""

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
        r"differs in the values",
        r"with refused\(\): t1\[index\(\[7\]\)\] = 1.0",
        (2,),
        (
            "t0, t1 = torch.ones(3, device=device), torch.zeros(4, device=device)",
            "t0.mul_(5)",
            "with refused(): t1[index([7])] = 1.0",
        ),
    ),
    Known(
        "an op that fails takes along what was pending with it",
        r"the value was lost",
        r"refused",
        (2,),
        (
            "t0 = torch.ones(3, device=device)",
            "t1 = t0 * 5",
            "with refused(): t2 = t0.index_select(0, index([7]))",
        ),
    ),
    Known(
        "element types that a kernel refuses are refused when it runs",
        r"need of a gradient|the value was lost",
        r"refused.* - ",
        (2,),
        (
            "t0 = torch.ones(3, device=device) > 0",
            "t1 = torch.ones(3, device=device)",
            "with refused(): t2 = True - t0",
            "t3 = t1 + 1",
        ),
    ),
    Known(
        "writes through unfold are not supported",
        r"writing through unfold|NotImplementedError, not RuntimeError",
        r"unfold",
        (2,),
        ("t0 = torch.zeros(6, device=device)", "t0.unfold(0, 2, 2).add_(1)"),
    ),
    Known(
        "fill_, zero_ and indexed writes of expanded tensors are refused",
        r"more than one element of the written-to tensor",
        r"expand",
        (2,),
        ("t0 = torch.ones((), device=device)", "t0.expand(3).fill_(2)"),
    ),
    Known(
        "a write to an expanded tensor of one element per place, or none, loses the value",
        r"aten::view.* changes the number of elements",
        r"",
        (2,),
        ("t0 = torch.ones((), device=device)", "t0.expand(2)[1:].fill_(2)"),
    ),
    Known(
        "a view that the strides do not allow is not refused",
        r"is nothing, not RuntimeError",
        r"refused.*\.view\(",
        (2,),
        (
            "t0 = torch.zeros((8, 3), device=device)[:, 1:]",
            "with refused(): t1 = t0.view(16)",
        ),
    ),
    Known(
        "indexed writes of values that do not fit are refused late, without elements not at all",
        r"is nothing, not RuntimeError|need of a gradient|shape mismatch|invalid gradient",
        r"refused.*\[index",
        (2,),
        (
            "t0 = torch.zeros(4, 0, device=device)",
            "with refused(): t0[index([])] = torch.ones(4, 0, device=device)",
        ),
    ),
    Known(
        "min and max over an empty dimension of an empty result are not refused",
        r"is nothing, not IndexError",
        r"refused.*\.(min|max)\(",
        (2,),
        ("t0 = torch.zeros(0, 0, device=device)", "with refused(): t0.min(1)"),
    ),
    Known(
        "what a kernel refuses is not refused where there are no elements",
        r"is nothing, not (RuntimeError|NotImplementedError|IndexError)",
        r"refused.*(argmax|topk|index_select)",
        (2,),
        (
            "t0 = torch.ones(0, 4, dtype=torch.bool, device=device)",
            "with refused(): t0.topk(1, 1)",
        ),
    ),
    Known(
        "logsumexp over an empty dimension",
        r"amax\(\): Expected reduction dim",
        r"logsumexp",
        (2,),
        ("t0 = torch.ones(3, 0, device=device)", "mark(t0, None, 'x')", "t1 = t0.logsumexp(-1)"),
    ),
    Known(
        "terms of a maximum and of a sum are mixed",
        r"differs in the (values|gradient)",
        r"max|min\b|prod\(|any\(|all\(",
        (2,),
        (
            "t0 = torch.arange(3.0, device=device)",
            "mark(t0, 'x')",
            "t1 = t0.max() + t0.sum()",
        ),
    ),
    Known(
        "index_add and its like of terms lose the other terms",
        r"differs in the (values|gradient)",
        r"index_add|scatter_add|accumulate=True",
        (2,),
        (
            "t0 = torch.ones(6, 3, device=device)",
            "mark(t0, 'x', None)",
            "t1 = (t0.mT @ t0).index_add(0, index([0, 2]), torch.ones(2, 3, device=device)) * 1",
        ),
    ),
    Known(
        "the second derivative of a complex linear",
        r"linear_backward does not support",
        r"F\.linear",
        (2,),
        (
            "t0 = make((2, 2), torch.complex64, 1)",
            "t0.requires_grad_()",
            "t1 = F.linear(t0, t0).abs().square().sum()",
            "t2, = torch.autograd.grad(t1, t0, create_graph=True)",
        ),
    ),
    Known(
        "a linear with a weight of one dimension",
        r"einsum rule",
        r"F\.linear",
        (2,),
        ("t0 = torch.ones(3, 3, device=device)", "t1 = F.linear(t0, t0[-1])"),
    ),
    Known(
        "a bit view of an empty tensor",
        r"must be divisible by",
        r"\.view\(torch",
        (2,),
        (
            "t0 = torch.arange(0, dtype=torch.float32, device=device) % 2",
            "t1 = t0[None].view(torch.complex64)",
        ),
    ),
    Known(
        "a broadcast write through a bit view loses the value",
        r"view\.dtype.*must be 1 to view|must be divisible by",
        r"\.view\(torch",
        (2,),
        (
            "t0 = torch.ones(3, 4, device=device)",
            "mark(t0, None, 'x')",
            "t0[:1].view(torch.complex64).copy_(torch.ones((), device=device))",
        ),
    ),
    Known(
        "strides of results computed from tensors that are not contiguous",
        r"differs in the strides",
        r"index|take_along|unfold|diagonal|nonzero|as_strided|movedim|\[\[",
        (2,),
        (
            "t0 = torch.ones(4, 4, device=device).unfold(0, 2, 1)",
            "t1 = t0[[2, 2]]",
        ),
    ),
)


def known(program, text):
    """The reason of a difference, if it is known."""
    for bug in KNOWN:
        if re.search(bug.text, text) and re.search(bug.line, "\n".join(program.lines)):
            return bug.reason
    return None
