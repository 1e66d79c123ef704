# SPDX-License-Identifier: Apache-2.0
"""`sharding_of` of pending values: what a question plans, and what its answer depends on."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from random_programs import start
from random_scope import write
from torch import Tensor, nn

import torch_spmd as spmd
from torch_spmd import _C, P

PLANNED_AGAIN = 128  # records, csrc/trace/session/pending_layouts.h


def planned() -> int:
    return int(_C.statistics()["planned_of_pending"])


def a_row() -> tuple[Tensor, spmd.Mesh]:
    mesh = spmd.make_mesh((2, 2), ("a", "b"))
    x = spmd.mark_sharding(torch.rand(8, 8).to("spmd"), mesh, ("a", None))
    spmd.sync()
    return x, mesh


def recorded(x: Tensor, mesh: spmd.Mesh) -> Tensor:
    return x * 1.5


def in_place(x: Tensor, mesh: spmd.Mesh) -> Tensor:
    return x.mul_(1.5)


def marked(x: Tensor, mesh: spmd.Mesh) -> Tensor:
    return spmd.reshard(x * 1.5, mesh, (None, "b")).relu()


def dropped(x: Tensor, mesh: spmd.Mesh) -> Tensor:
    return (x * 1.5).sum(0) + x


def of_views(x: Tensor, mesh: spmd.Mesh) -> Tensor:
    return x.t().contiguous().view(2, 4, 8).transpose(0, 1).reshape(8, 8)


@pytest.mark.parametrize("hold", [True, False], ids=["held", "dropped"])
@pytest.mark.parametrize("step", [recorded, in_place, marked, dropped, of_views])
def test_a_question_plans_no_more_where_more_is_pending(
    step: Callable[[Tensor, spmd.Mesh], Tensor], hold: bool
) -> None:
    """A loop that records a little and asks."""

    def of_questions(pending: int) -> int:
        x, mesh = a_row()
        held = [x * 1]
        for _ in range(pending):
            held.append(step(held[-1], mesh))
            if not hold:
                del held[:-1]
        assert spmd.sharding_of(held[-1]).is_provisional
        before = planned()
        for _ in range(20):
            held.append(step(held[-1], mesh))
            assert spmd.sharding_of(held[-1]).is_provisional
        count = planned() - before
        assert count > 0
        spmd.sync()
        return count

    assert of_questions(200) == of_questions(800)


def test_a_question_plans_what_is_new_and_some_of_what_was_there() -> None:
    x, _ = a_row()
    values = [x * 1.5]
    for _ in range(999):
        values.append(values[-1] * 1.5)
    for new in (0, 1, 10, 300):
        for _ in range(new):
            values.append(values[-1] * 1.5)
        before = planned()
        assert spmd.sharding_of(values[-1]).spec == P("a", None)
        assert planned() - before == (max(new, PLANNED_AGAIN) if new else 1000)
        assert spmd.sharding_of(values[0]).spec == P("a", None)
        assert planned() - before == (max(new, PLANNED_AGAIN) if new else 1000)


def test_a_value_that_was_not_alive_is_planned_when_it_is_asked_for() -> None:
    x, _ = a_row()
    base = x * 1.5
    hidden = base.t()  # read through a view, and not held
    y = hidden.contiguous() * 2
    for _ in range(200):
        y = y * 1.5
    assert spmd.sharding_of(y).spec == P(None, "a")
    again = base.t().contiguous()
    assert spmd.sharding_of(again).spec == P(None, "a")


def test_what_is_dropped_changes_no_answer_about_what_is_left() -> None:
    x, _ = a_row()
    last = x * 1.5
    for _ in range(300):
        last = last * 1.5
    other = last.t()
    assert spmd.sharding_of(last).spec == P("a", None)
    other = other.contiguous()
    assert spmd.sharding_of(other).spec == P(None, "a")
    before = planned()
    del other
    assert spmd.sharding_of(last).spec == P("a", None)
    assert planned() - before <= 2


def far_mark(ask_before: bool) -> P:
    """The sharding of a value whose only use that is marked lies 300 records behind it."""
    mesh = spmd.make_mesh((2, 2), ("a", "b"))
    first = torch.rand(8, 8).to("spmd") * 1.5
    last = first
    for _ in range(300):
        last = last * 1.5
        if ask_before:
            spmd.sharding_of(last)
    spmd.mark_sharding(last, mesh, ("a", None))
    spec = spmd.sharding_of(first).spec
    spmd.sync()
    return spec


def test_a_mark_far_behind_changes_no_answer_that_was_given() -> None:
    assert far_mark(ask_before=False) == P("a", None)
    assert far_mark(ask_before=True) == P(None, None)


def answers(program: object, ask: bool) -> dict[str, object]:
    """What is answered for all tensors at the end of a program; asked after each line, too."""

    def all_of(names: dict[str, object]) -> dict[str, object]:
        tensors = {k: v for k, v in names.items() if k[:1] == "t" and k[1:].isdigit()}
        return {k: spmd.sharding_of(v) for k, v in tensors.items() if isinstance(v, Tensor)}

    spmd.sync(wait=True)
    run = start(program, "spmd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in program.lines:  # type: ignore[attr-defined]
            try:
                exec(line, run.names)
            except Exception:
                break
            if ask:
                all_of(run.names)
    return {k: (a.spec, a.unreduced, a.is_provisional) for k, a in all_of(run.names).items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_answers_about_random_programs_do_not_depend_on_earlier_questions(first: int) -> None:
    for seed in range(first, first + 50):
        program = write(random.Random(seed))
        assert answers(program, ask=True) == answers(program, ask=False), f"seed {seed}\n{program}"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


RULES = {
    "qkv": P("model", None),
    "out": P(None, "model"),
    "up": P("model", None),
    "down": P(None, "model"),
}


def step_of_a_model(how: str, ask: bool) -> dict[str, object]:
    torch.manual_seed(0)
    spmd.sync(wait=True)
    mesh = spmd.make_mesh((2, 2), ("data", "model"))
    model = nn.Sequential(*(Block(32) for _ in range(6))).to("spmd")
    if how in ("tp", "2d"):
        for block in model:
            for name, spec in RULES.items():
                spmd.mark_sharding(getattr(block, name).weight, mesh, spec)
    if how in ("fsdp", "2d"):
        spmd.fsdp(model, mesh, "data")
    held: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: object, out: Tensor) -> None:
            held[f"{name} {len(held)}"] = out
            if ask:
                spmd.sharding_of(out)

        return keep

    for name, module in model.named_modules():
        module.register_forward_hook(hook(name))
    x = torch.rand(8, 16, 32).to("spmd")
    spmd.mark_sharding(x, mesh, ("data" if how != "tp" else None, None, None))
    loss = model(model(model(model(x)))).square().mean()
    held["loss"] = loss
    assert int(_C.sizes()["pending_records"]) > 2 * PLANNED_AGAIN
    found = {name: spmd.sharding_of(t) for name, t in held.items()}
    assert all(a.is_provisional for a in found.values())
    loss.backward()
    spmd.sync(wait=True)
    return {name: (a.spec, a.unreduced) for name, a in found.items()}


@pytest.mark.parametrize("how", ["dp", "tp", "fsdp", "2d"])
def test_answers_about_models_do_not_depend_on_earlier_questions(how: str) -> None:
    assert step_of_a_model(how, ask=True) == step_of_a_model(how, ask=False)
