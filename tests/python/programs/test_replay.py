# SPDX-License-Identifier: Apache-2.0
"""Repeated steps are replayed from the recording of the step before: they compute the same as the
first time, also after they stop being replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dropping import drop_on_other_threads
from reported import reported
from torch import Tensor

import torch_spmd as spmd
from torch_spmd import _C

pytestmark = pytest.mark.modes("coalesced", "in_turns")

Step = Callable[[str, int], list[Tensor]]


def compiles() -> int:
    return reported()["compiles"]


def same_on_both(step: Step, times: int = 4) -> int:
    """Runs `step(device, k)` on both devices for each k; returns how many programs the last k
    compiled."""
    for k in range(times):
        before = compiles()
        got = [t.cpu() for t in step("spmd", k)]
        for mine, expected in zip(got, step("cpu", k)):
            assert mine.dtype == expected.dtype
            torch.testing.assert_close(mine, expected)
        last = compiles() - before
    return last


def ramp(*sizes: int) -> Tensor:
    n = int(torch.Size(sizes).numel())
    return torch.arange(n, dtype=torch.float32).reshape(sizes) / n


def test_numbers_change_from_step_to_step() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = (ramp(4, 3) + k).to(device)
        y = torch.add(x, x, alpha=k + 2) * (k + 0.5)
        y.add_(x, alpha=0.25 * k + 3).mul_(k + 2)
        return [y, y.masked_fill(y > 20, float(k))]

    assert same_on_both(step) == 0


def test_zeros_of_either_sign_are_different_numbers() -> None:
    x = -torch.ones(2, device="spmd")
    for zero in (0.0, -0.0, 0.0):
        filled = torch.full((2,), zero, device="spmd")
        leaked = torch.nn.functional.leaky_relu(x, zero)
        negative = [bool(t.cpu().signbit().all()) for t in (filled, leaked)]
        assert negative == [str(zero) == "-0.0", str(zero) != "-0.0"]


def test_two_views_that_were_one_in_the_recording_are_distinct() -> None:
    # From the second step on `first` is where `second` was in the step before.
    def step(device: str, k: int) -> list[Tensor]:
        weights, x = ramp(3, 4, 4).to(device), ramp(2, 4).to(device) * 2
        second = weights[0]
        first = second if k == 0 else weights[k % 3]
        return [(x @ first + 1) @ second * 3]

    same_on_both(step)


def test_a_view_saved_for_a_later_program_is_not_that_of_the_one_before() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(3, 6).to(device).requires_grad_()
        rows, terms = ramp(2, 6).to(device), []
        for row in range(2):
            doubled = x * 2
            doubled.sum().item()  # ends the program
            terms.append((doubled.sin() * rows[row]).sum())
        (terms[0] + terms[1]).backward()
        assert x.grad is not None
        return [x.grad]

    same_on_both(step)


def test_a_number_that_becomes_the_default_is_another_program() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(5).to(device)
        return [torch.add(x, x, alpha=(2, 3, 1, 1)[k])]

    assert same_on_both(step) == 0


def test_operands_that_were_one_tensor_become_two() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x, y = ramp(4).to(device), (ramp(4) + 1).to(device)
        other = x if k % 2 == 0 else y
        return [(x - other) * x + other, x * y]

    same_on_both(step, 6)


def test_another_op_in_the_middle() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(6).to(device)
        for i in range(8):
            x = x.sin() if i == k else x + 1
        return [x, x * 2]

    same_on_both(step, 8)
    assert same_on_both(step, 8) == 0


def test_steps_that_end_early_and_late() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(6).to(device)
        for _ in range((5, 2, 7, 5)[k % 4]):
            x = x * 1.5 + 0.5
        return [x]

    assert same_on_both(step, 9) == 0


def test_strides_of_operands_decide_those_of_results() -> None:
    for k in range(4):
        x = ramp(2, 3, 4, 5)
        if k % 2 == 1:
            x = x.to(memory_format=torch.channels_last)
        ours = x.to("spmd") + 1
        assert ours.stride() == (x + 1).stride()
        torch.testing.assert_close(ours.cpu(), x + 1)


def test_writes_through_views() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x, b = ramp(8).to(device), (ramp(4) + k).to(device)
        for _ in range(3):
            x[2:6].mul_(b)
            x.view(2, 4)[1].add_(b)
            x.view(4, 2).t()[0].copy_(b)
        first, second = x.split(4)
        return [x, first + second, x.view(2, 4).t() @ x.view(2, 4)]

    assert same_on_both(step) == 0


def test_views_that_differ_in_how_they_are_read_alone() -> None:
    """Views of one storage with equal sizes and strides: conjugated, or derived in another way."""
    held: dict[str, list[Tensor]] = {}
    for device in ("spmd", "cpu"):
        x = torch.complex(ramp(3, 3), ramp(3, 3) + 1).to(device)
        y = torch.complex(ramp(3, 3) - 1, ramp(3, 3)).to(device)
        held[device] = [x[1:3], x[1:3].conj(), y[1:3], y.conj()[1:3], x.t()[:, 1:3].t(), y.t()[1:3]]

    def step(device: str, k: int) -> list[Tensor]:
        views = held[device]
        known, other = views[0], views[k % len(views)]
        first = known + 1  # what follows it is replayed
        return [first, known[0].clone(), other[0].clone(), other.clone().add_(known)]

    same_on_both(step, times=13)


def test_lists_of_sizes_and_dimensions_count() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(2, 3, 4).to(device) + 1
        viewed = x.view(((2, 12), (12, 2), (24,), (2, 12))[k % 4])
        turned = x.permute(((0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0))[k % 4])
        summed = x.sum(((0,), (1,), (0, 2), None)[k % 4])
        return [viewed * 2, turned * 3, summed]

    same_on_both(step, times=9)


def test_places_of_slices_change_from_step_to_step() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        x = ramp(16, 3).to(device)
        y = x + 1
        y[k] = 7.0
        return [x[2 * k : 2 * k + 4] * 2, y, y.narrow(0, k, 2).sum()]

    assert same_on_both(step, 6) == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training(momentum: float) -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        x, y = ramp(4, 6).to(device), torch.tensor([0, 1, 2, 1]).to(device)
        seen = []
        for k in range(6):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if k == 3:
                loss = loss * 2  # a step unlike the others
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        return seen

    assert losses("spmd") == pytest.approx(losses("cpu"), rel=1e-5)


def test_a_marked_tensor_keeps_its_layout() -> None:
    mesh = spmd.make_mesh((4,), ("x",))
    w = spmd.mark_sharding(ramp(8, 2).to("spmd"), mesh, ("x", None))
    expected = ramp(8, 2)
    before = 0
    for k in range(5):
        x = spmd.mark_sharding((ramp(8, 2) + k).to("spmd"), mesh, ("x", None))
        w.mul_(0.5).add_(x)
        expected.mul_(0.5).add_(ramp(8, 2) + k)
        spmd.sync()
        if k == 1:
            before = compiles()
    assert compiles() == before
    torch.testing.assert_close(w.cpu(), expected)
    assert spmd.sharding_of(w).spec == ("x", None)


def test_errors_come_at_their_line() -> None:
    def step(columns: int) -> Tensor:
        x, y = ramp(2, 3).to("spmd"), ramp(2, columns).to("spmd")
        return ((x + 1) * y).cpu()

    for _ in range(3):
        step(3)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        step(4)
    torch.testing.assert_close(step(3), (ramp(2, 3) + 1) * ramp(2, 3))


def test_saved_tensors_that_were_written_are_noticed() -> None:
    for _ in range(3):
        x = ramp(4).to("spmd").requires_grad_()
        y = x.exp()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_the_default_dtype_counts() -> None:
    def step(device: str, k: int) -> list[Tensor]:
        torch.set_default_dtype(torch.float64 if k % 2 else torch.float32)
        try:
            x = torch.arange(4, device=device)
            return [(x.sqrt() + 1).cpu(), (x / 2).cpu()]
        finally:
            torch.set_default_dtype(torch.float32)

    same_on_both(step, 6)


def test_a_loop_of_equal_steps_compiles_nothing_from_its_third_step_on():
    x, b = torch.ones(8, device="spmd"), torch.ones(8, device="spmd")
    counts = []
    for _ in range(4):
        before = compiles()
        y = x
        for _ in range(50):
            y = y + b * 2
            y = y.view(2, 4).t().reshape(8)
        assert y[0].item() == 101
        counts.append(compiles() - before)
    assert counts[2:] == [0, 0]


def test_steps_that_diverge_have_their_own_values() -> None:
    """Where a step leaves the recording of the one before, it makes a recording of its own."""
    _C.forget_programs()  # those of the same steps with other options
    x = torch.full((8,), 2.0, device="spmd")
    found, counts = [], []
    for step in range(5):
        before = compiles()
        y = x + 1
        y = y.neg() if step == 0 else y.square()
        y = y * 2
        found.append(y[0].item())
        counts.append(compiles() - before)
    assert found == [-6, 18, 18, 18, 18]
    assert counts[2:] == [0, 0, 0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0, 1, 1, 0)])
def test_an_op_that_writes_one_tensor_is_told_from_one_that_writes_two(
    order: tuple[int, ...],
) -> None:
    """Two tensors may hold one value when the same op writes to one, or to both."""

    def step(device: str, other_reads: int) -> list[list[float]]:
        a = torch.full((4,), 0.5).to(device)
        x = torch.arange(1.0, 5.0).to(device)
        middle = a * 1
        y = x.clone()
        y.sub_(x if other_reads else y, alpha=2)
        results = [x, y, middle]
        if device == "spmd":
            spmd.sync()
        return [t.tolist() for t in results]

    for other_reads in order:
        assert step("spmd", other_reads) == step("cpu", other_reads)


def test_list_ops_that_write_one_tensor_twice_are_told_from_others() -> None:
    def step(device: str, shared: bool) -> list[list[float]]:
        x = torch.arange(1.0, 5.0).to(device)
        y = x.clone()
        start = x * 1
        torch._foreach_mul_([x, x] if shared else [x, y], [2.0, 3.0])
        torch._foreach_add_([x, y], [y, y] if shared else [x, y])
        torch._foreach_add_([x[:2], y[1:3], x[1:]] if shared else [x[:2], y, x[2:]], 1.0)
        if device == "spmd":
            spmd.sync()
        return [t.tolist() for t in (x, y, start)]

    for shared in (False, True, False, False, True, True, False):
        assert step("spmd", shared) == step("cpu", shared)


SELF_COPIES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "tensors": lambda a, b: a.copy_(b),
    "lists": lambda a, b: torch._foreach_copy_([a], [b]),
    "views": lambda a, b: a.view(4).copy_(b.view(4)),
    "parts": lambda a, b: a[1:].copy_(b[1:]),
    "detached": lambda a, b: a.detach().copy_(b.detach()),
}


@pytest.mark.parametrize("copy", SELF_COPIES)
@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1, 0, 1), (1, 0, 0)])
def test_a_copy_to_itself_is_not_replayed_as_another_copy(
    copy: str, order: tuple[int, ...]
) -> None:
    """A copy of a tensor to itself does nothing, and leaves nothing to compare."""

    def run(device: str) -> list[list[float]]:
        a, b, m = (torch.full((4,), v).to(device) for v in (1.0, 5.0, 2.0))
        results = []
        for other in order:
            m.mul_(2.0)
            SELF_COPIES[copy](a, b if other else a)
            b.add_(1.0)
            results += [a.clone(), b.clone()]
            if device == "spmd":
                spmd.sync()
        return [t.tolist() for t in results]

    assert run("spmd") == run("cpu")


def test_a_dropped_tensor_leaves_its_place_to_the_next() -> None:
    """Within a step, recorded or replayed: what is pending keeps no dead tensor."""
    for _ in range(3):
        x = ramp(4).to("spmd")
        places = set()
        for k in range(20):
            y = x * 2 if k % 2 else x.add_(1).t()
            places.add((x + y).untyped_storage().data_ptr())
            del y
        assert len(places) <= 2
        spmd.sync()


def test_a_mark_on_one_of_two_tensors_with_one_value() -> None:
    """From the second step on the value has not been asked for by then. The mark is of one
    tensor."""
    mesh = spmd.make_mesh((2,), ("x",))
    for k in range(4):
        a = (ramp(4, 2) + k).to("spmd") * 2
        b = torch.empty_like(a)
        b.copy_(a)
        c = b.detach()
        spmd.mark_sharding(b, mesh, ("x", None))
        d = a + b
        spmd.sync()
        assert ["marked" in spmd.debug.explain(t) for t in (a, b, c)] == [False, True, True]
        torch.testing.assert_close(a.cpu(), (ramp(4, 2) + k) * 2)
        torch.testing.assert_close(b.cpu(), a.cpu())
        torch.testing.assert_close(d.cpu(), 2 * a.cpu())


def test_tensors_end_on_other_threads_while_programs_are_made() -> None:
    """A tensor that is dropped removes itself from the pending work, on whatever thread."""
    drop_on_other_threads(tensors=30, steps=40)
