# SPDX-License-Identifier: Apache-2.0
"""An op that fails takes with it what depends on it and nothing else; Buffers keep their values."""

import contextlib

import pytest
import torch

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns")


@pytest.fixture(autouse=True)
def _failures_are_reported_in_their_own_test():
    yield
    with contextlib.suppress(Exception):
        spmd.sync(wait=True)


def _accumulate():
    """While gradients accumulate, a backward pass is a program of its own."""
    x = torch.ones(2).to("spmd").requires_grad_()
    for _ in range(2):
        x.sum().backward()


@pytest.fixture(params=["one program a step", "several programs a step"])
def step(request):
    if request.param != "one program a step":
        _accumulate()
    torch.manual_seed(0)
    weight = torch.randn(5, 3).to("spmd").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def run(rows):
        loss = weight.index_select(0, torch.tensor(rows).to("spmd")).square().sum()
        loss.backward()
        if request.param != "one program a step":
            loss = weight.index_select(0, torch.tensor(rows).to("spmd")).square().sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.weight = weight
    return run


def test_the_error_names_the_op_and_parameters_stay(step):
    step([0, 1]).item()
    before = step.weight.detach().cpu()
    for _ in range(2):
        loss = step([0, 9])
        with pytest.raises(IndexError, match=r"aten::index_select.*index out of range"):
            loss.item()
        assert torch.equal(step.weight.detach().cpu(), before)
    assert step([0, 1]).item() > 0
    assert not torch.equal(step.weight.detach().cpu(), before)


def test_steps_after_a_failing_one_fail_with_it(step):
    step([0, 1]).item()
    before = step.weight.detach().cpu()
    losses = [step([0, 9]), step([0, 1]), step([1, 2])]
    for loss in reversed(losses):
        with pytest.raises(IndexError, match="index out of range"):
            loss.item()
    assert torch.equal(step.weight.detach().cpu(), before)


def test_sync_raises_unreported_failures(step):
    step([0, 1]).item()  # a momentum that a failing step would create is lost with it
    step([0, 9])
    with pytest.raises(IndexError, match="index out of range"):
        spmd.sync(wait=True)
    assert step([0, 1]).item() > 0


ROWS = torch.arange(12.0).view(4, 3)


@pytest.fixture(params=["whole", "cut"])
def rows(request):
    x = ROWS.clone().to("spmd")
    if request.param == "cut":
        spmd.mark_sharding(x, spmd.make_mesh((2,), ("x",)), ("x", None))
    return x


def pick(x, row):
    return x.index_select(0, torch.tensor([row]).to(x.device))


# The op called on unsharded tensors, and on tiles.
PICK = r"(aten::index_select|spmd::index_part)\(.*(index out of range|index 9 is out of bounds)"
GATHER = r"(aten::gather|spmd::gather_part)\(.*index 7 is out of bounds"


def raises(what, message=PICK):
    with pytest.raises(IndexError, match=message):
        what.cpu()


def raises_at_sync():
    with pytest.raises(IndexError, match=PICK):
        spmd.sync(wait=True)


def test_values_independent_of_the_failed_op_are_right(rows):
    before, bad, after = rows * 2, pick(rows, 9), rows + 1
    dependent, unrelated = bad + after[0], torch.ones(3, device="spmd") - 1
    raises(bad, f"^{PICK}")
    raises(dependent, f"^the value was lost, because ops that it depends on failed: {PICK}")
    assert torch.equal(before.cpu(), ROWS * 2)
    assert torch.equal(after.cpu(), ROWS + 1)
    assert unrelated.tolist() == [0, 0, 0]


def test_values_may_be_read_in_any_order(rows):
    bad, good = pick(rows, 9), rows * 2
    assert torch.equal(good.cpu(), ROWS * 2)
    raises(bad, f"^{PICK}")


def test_a_write_that_fails_is_undone_and_others_stay(rows):
    kept, lost = torch.zeros(3, device="spmd"), torch.zeros(3, device="spmd")
    (kept + lost).cpu()
    kept.add_(rows[0])
    lost.add_(pick(rows, 9)[0])
    raises_at_sync()
    assert kept.tolist() == [0, 1, 2]
    assert lost.tolist() == [0, 0, 0]


def test_two_failing_ops_are_named_by_their_dependents(rows):
    first, second = pick(rows, 9), rows.gather(0, torch.full((1, 3), 7).to("spmd"))
    of_first, of_second, of_none = first * 2, second * 2, rows * 2
    raises(of_first)
    with pytest.raises(RuntimeError, match=GATHER):
        of_second.cpu()
    assert torch.equal(of_none.cpu(), ROWS * 2)
    raises(first)
    with pytest.raises(RuntimeError, match=GATHER):
        second.cpu()


def test_an_element_type_that_a_kernel_refuses(rows):
    wide = torch.zeros(70, 70, device="spmd").half()  # too large to be tried when it is recorded
    bad, good = torch.linalg.cholesky_ex(wide).L, rows * 2
    with pytest.raises(RuntimeError, match="aten::linalg_cholesky_ex"):
        bad.cpu()
    assert torch.equal(good.cpu(), ROWS * 2)


def test_a_failing_op_of_a_decomposition(rows):
    target = torch.tensor([0, 1, 7, 2]).to("spmd")
    bad, good = torch.nn.functional.cross_entropy(rows, target), rows * 2
    with pytest.raises((IndexError, RuntimeError), match=r"7 is out of bounds"):
        bad.cpu()
    assert torch.equal(good.cpu(), ROWS * 2)


def test_a_program_behind_a_failed_one_is_recovered_in_parts(rows):
    bad, good = pick(rows, 9), rows * 2
    spmd.sync()
    worse, better = bad + 1, good + 1
    spmd.sync()
    assert torch.equal((better + 1).cpu(), ROWS * 2 + 2)
    raises(worse)
    assert torch.equal(good.cpu(), ROWS * 2)


def test_work_recorded_before_the_failure_was_reported(rows):
    bad, good = pick(rows, 9), rows * 2
    spmd.sync()
    worse, better = bad + 1, good + 1
    raises(bad)
    assert torch.equal(better.cpu(), ROWS * 2 + 1)
    raises(worse)


def test_the_same_failure_many_times(rows):
    total = torch.zeros(3, device="spmd")
    for k in range(4):
        total += rows[k % 2]
        raises(pick(rows, 9) + total)
    assert total.tolist() == [6, 10, 14]


def test_a_training_step_happens_as_a_whole_or_not(rows):
    good = torch.ones(3, device="spmd", requires_grad=True)
    bad = torch.ones(3, device="spmd", requires_grad=True)
    spmd.sync(wait=True)  # parameters that the failing program itself creates have no earlier value
    optimizer = torch.optim.SGD([good, bad], lr=1.0, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        (good * 2).sum().backward()
        (bad * pick(rows, 9)).sum().backward()
        optimizer.step()
        raises_at_sync()
        bad.grad = None
    assert good.tolist() == [1, 1, 1]
    assert bad.tolist() == [1, 1, 1]


class _Interrupted(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(1)
        raise ValueError("no step")


def test_after_a_step_that_an_exception_leaves(rows):
    """What it has written stays, and what follows belongs to no step."""
    weight = torch.zeros(3, device="spmd", requires_grad=True)
    with pytest.raises(ValueError, match="no step") as raised:
        _Interrupted([weight], lr=1.0).step()
    bad, good = pick(rows, 9), rows * 2
    raises(bad)
    assert torch.equal(good.cpu(), ROWS * 2)
    assert weight.tolist() == [1, 1, 1]
    del raised  # until here it holds the frame of the step


def test_a_step_within_one_that_an_exception_leaves(rows):
    weight = torch.zeros(3, device="spmd", requires_grad=True)

    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                weight.add_(1)
            with contextlib.suppress(ValueError):
                inner.step()
            with torch.no_grad():
                weight.add_(pick(rows, 9)[0])

    inner, outer = _Interrupted([weight], lr=1.0), Outer([weight], lr=1.0)
    weight.cpu()
    outer.step()
    raises_at_sync()
    assert weight.tolist() == [0, 0, 0]


def test_programs_that_nobody_waits_for(rows):
    """Whether the first program has failed when the next one is compiled is left to chance."""
    for _ in range(20):
        bad, good = pick(rows, 9), rows * 2
        spmd.sync()
        worse, better = bad + good, good + 1
        spmd.sync()
        assert torch.equal((better + 1).cpu(), ROWS * 2 + 2)
        raises(worse)


def test_a_failure_without_tensors_is_reported_by_sync(rows):
    bad, good = pick(rows, 9), rows * 2
    spmd.sync()
    del bad
    for k in range(3):
        assert torch.equal((good + k).cpu(), ROWS * 2 + k)
    raises_at_sync()
    spmd.sync(wait=True)


def test_a_row_outside_of_a_cache_leaves_it_as_it_was(rows):
    """Uploaded indices are checked before the cache is written in place."""
    cache = torch.zeros(2, 4, 3).to("spmd")
    expected = torch.zeros(2, 4, 3)

    def write(row):
        at = torch.tensor([row]).to("spmd")
        for half in cache:
            half.index_copy_(0, at, rows[:1])
        return cache.sum()

    for row in (1, 2, 4, 3):
        total = write(row)
        if row == 4:
            with pytest.raises(IndexError, match=r"out of (bounds|range)"):
                total.cpu()
        else:
            expected[:, row] = ROWS[0]
            assert total.item() == expected.sum()
        assert torch.equal(cache.cpu(), expected)


def test_an_indexed_op_that_refuses_a_type_leaves_other_tensors_as_they_were():
    kept = torch.zeros(100, 100).to("spmd")
    refused = torch.zeros(100, 100).to(torch.float8_e4m3fn).to("spmd")
    at, rows = torch.tensor([1, 2]).to("spmd"), torch.ones(2, 100)
    mine, small = rows.to("spmd"), rows.to(torch.float8_e4m3fn).to("spmd")
    for t in (kept, at, mine, refused, small):
        t.cpu()
    kept[:50].index_copy_(0, at, mine)
    with pytest.raises(NotImplementedError):
        refused.index_add_(0, at, small)
        spmd.sync(wait=True)
    assert kept.sum().item() == 200


@pytest.mark.parametrize(
    "divide",
    [
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    ],
)
def test_writes_before_a_division_by_zero_stay(rows, divide):
    whole, zeros = torch.arange(3, device="spmd"), torch.zeros(3, dtype=torch.long, device="spmd")
    (rows.sum() + whole.sum() + zeros.sum()).cpu()
    rows.mul_(2)
    bad = divide(whole, zeros)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        bad.cpu()
    assert torch.equal(rows.cpu(), ROWS * 2)
