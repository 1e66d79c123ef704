# SPDX-License-Identifier: Apache-2.0
"""Loops that read nothing run by themselves, a part at a time: pending work is bounded in ops and
bytes, and the number of programs does not depend on the length of the loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from reported import reported
from torch import Tensor, nn

import torch_spmd as spmd
from torch_spmd import _C

LONG = 4000  # pending ops: more than a few parts, far less than these loops record
BATCHES = 120  # of some 30 ops


def statistics(name: str) -> int:
    return reported()[name]


def pending_ops() -> int:
    return int(_C.sizes()["pending_records"])


class Net(nn.Module):
    """About 30 ops forward, batch norm among them."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            x = x + norm(F.gelu(layer(x)))
        return x


def batch(k: int, rows: int = 4) -> Tensor:
    return torch.sin(torch.arange(rows * 16.0) + k).reshape(rows, 16)


def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = Net()
    other = Net().to("spmd")
    other.load_state_dict(model.state_dict())
    return model, other


def loop(body: Callable[[int], None], batches: int = BATCHES) -> tuple[int, int, int]:
    """Runs the body for each batch; returns runs, programs compiled, and the most pending ops."""
    spmd.sync()
    runs, compiles, most = statistics("runs"), statistics("compiles"), 0
    for k in range(batches):
        body(k)
        most = max(most, pending_ops())
    return statistics("runs") - runs, statistics("compiles") - compiles, most


@pytest.fixture(autouse=True)
def nothing_waits() -> None:
    spmd.sync()
    _C.forget_programs()


def test_results_that_nobody_keeps_are_not_computed() -> None:
    model = nets()[1].eval()

    def body(k: int) -> None:
        model(batch(k).to("spmd"))

    with torch.no_grad():
        runs, compiles, most = loop(body)
    assert (runs, compiles) == (0, 0)
    assert most < LONG / 4


@pytest.mark.parametrize("ops_before", range(0, 24, 4))
def test_layers_are_no_parts_wherever_the_tape_is_looked_at(ops_before: int) -> None:
    """Layers do the same ops at the same distance, too, but with parameters of all parts."""
    model = nets()[1].eval()
    first = torch.ones((), device="spmd")

    def body(k: int) -> None:
        for _ in range(ops_before if k == 0 else 0):
            first.sin()
        model(batch(k).to("spmd"))

    with torch.no_grad():
        runs, compiles, most = loop(body)
    assert (runs, compiles) == (0, 0)
    assert most < LONG / 4


def test_batches_of_results_that_nobody_keeps_are_dropped() -> None:
    resource = pytest.importorskip("resource")
    rows = torch.ones(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = statistics("runs")
    for k in range(400):  # 1.6 GiB
        (rows * k).to("spmd").sum()
    assert statistics("runs") == runs
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


def test_the_last_result_is_kept() -> None:
    model, other = nets()
    model.eval()
    other.eval()
    kept: dict[str, Tensor] = {}

    def body(k: int) -> None:
        kept["y"] = other(batch(k).to("spmd"))

    with torch.no_grad():
        runs, compiles, most = loop(body)
        expected = model(batch(BATCHES - 1))
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 4
    torch.testing.assert_close(kept["y"].cpu(), expected)


def test_a_running_sum() -> None:
    model, other = nets()
    model.eval()
    other.eval()
    total = torch.zeros((), device="spmd")

    def body(k: int) -> None:
        nonlocal total
        total = total + other(batch(k).to("spmd")).square().mean()

    with torch.no_grad():
        runs, compiles, most = loop(body)
        expected = sum(model(batch(k)).square().mean() for k in range(BATCHES))
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 4
    torch.testing.assert_close(total.cpu(), expected)


def test_a_sum_in_place_and_statistics_of_batch_norm() -> None:
    model, other = nets()
    total = torch.zeros((), device="spmd")
    expected = torch.zeros(())

    def body(k: int) -> None:
        total.add_(other(batch(k).to("spmd")).mean())

    with torch.no_grad():
        runs, compiles, most = loop(body)
        for k in range(BATCHES):
            expected += model(batch(k)).mean()
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 4
    torch.testing.assert_close(total.cpu(), expected, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(other.buffers(), model.buffers()):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)


def test_results_in_a_list() -> None:
    model, other = nets()
    model.eval()
    other.eval()
    results: list[Tensor] = []

    def body(k: int) -> None:
        results.append(other(batch(k).to("spmd")).argmax(1))

    with torch.no_grad():
        runs, compiles, most = loop(body)
        expected = [model(batch(k)).argmax(1) for k in range(BATCHES)]
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 4
    for mine, theirs in zip(results, expected):
        assert torch.equal(mine.cpu(), theirs)


def test_a_longer_loop_compiles_no_more() -> None:
    other = nets()[1].eval()
    total = torch.zeros((), device="spmd")

    def body(k: int) -> None:
        total.add_(other(batch(k).to("spmd")).mean())

    with torch.no_grad():
        loop(body)
        _, compiles, _ = loop(body, 2 * BATCHES)
        assert compiles <= 2  # the beginning of the loop after what was read before
        _, compiles, _ = loop(body, 2 * BATCHES)
        assert compiles == 0


def test_batches_of_other_sizes_compile_once_each() -> None:
    model, other = nets()
    model.eval()
    other.eval()
    total = torch.zeros((), device="spmd")

    def body(k: int) -> None:
        total.add_(other(batch(k, rows=3 + k // 5 % 4).to("spmd")).mean())

    with torch.no_grad():
        _, _, most = loop(body)
        assert most < LONG / 2
        loop(body)
        _, compiles, _ = loop(body)
        expected = 3 * sum(model(batch(k, rows=3 + k // 5 % 4)).mean() for k in range(BATCHES))
    assert compiles == 0
    torch.testing.assert_close(total.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_without_no_grad() -> None:
    other = nets()[1].eval()
    total = torch.zeros((), device="spmd")

    def body(k: int) -> None:
        total.add_(other(batch(k).to("spmd")).mean().detach())

    runs, compiles, most = loop(body)
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 2


def test_a_result_that_is_the_next_input() -> None:
    x = torch.full((8,), 0.25, device="spmd")
    y = torch.full((8,), 0.25)

    def body(k: int) -> None:
        nonlocal x
        x = torch.cos(x)

    runs, compiles, most = loop(body, 24000)
    for _ in range(24000):
        y = torch.cos(y)
    assert runs >= 4
    assert compiles <= 3
    assert most < 1.25 * LONG
    torch.testing.assert_close(x.cpu(), y)


def test_a_chain_that_is_read_is_one_program() -> None:
    """Equal ops in a row, as they are in long expressions and unrolled solvers."""
    start, one = torch.zeros(8, device="spmd"), torch.ones(8, device="spmd")
    spmd.sync()
    for chain in (lambda x: x + one, lambda x: x.view(2, 4).t().reshape(8), lambda x: x * 0.5):
        before = statistics("runs"), statistics("compiles")
        for _ in range(3):
            x = start
            for _ in range(1000):
                x = chain(x)
            x.cpu()
        assert (statistics("runs") - before[0], statistics("compiles") - before[1]) == (3, 1)


def test_steps_written_by_hand() -> None:
    torch.manual_seed(1)
    start = torch.randn(16, 16) / 4

    def train(device: str) -> tuple[list[Tensor], Callable[[int], None]]:
        weights = [start.clone().to(device).requires_grad_() for _ in range(3)]

        def body(k: int) -> None:
            h = batch(k).to(device)
            for w in weights:
                h = torch.tanh(h @ w)
            gradients = torch.autograd.grad(h.square().mean(), weights)
            with torch.no_grad():
                for w, g in zip(weights, gradients):
                    w.sub_(g, alpha=0.1)

        return weights, body

    mine, body = train("spmd")
    runs, compiles, most = loop(body)
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 2
    theirs, body = train("cpu")
    for k in range(BATCHES):
        body(k)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


def test_a_step_of_many_equal_layers_stays_one_program() -> None:
    """Its layers repeat ops, but each has parameters of its own, and keeps what its gradient
    needs."""
    torch.manual_seed(2)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(300)).to("spmd")
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=True)

    def body(k: int) -> None:
        h = batch(k, 2)[:, :8].to("spmd")
        for layer in layers:
            h = h + torch.tanh(layer(h))
        h.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for k in range(3):  # in the first ones the session learns that no gradients accumulate
        body(k)
    runs, compiles, _ = loop(body, 2)
    assert (runs, compiles) == (2, 0)


def test_inference_through_many_equal_layers_stays_one_program() -> None:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(300)).to("spmd").eval()

    def body(k: int) -> None:
        h = batch(k, 2)[:, :8].to("spmd")
        for layer in layers:
            h = h + torch.tanh(layer(h))
        h.mean().item()

    with torch.no_grad():
        body(0)
        runs, compiles, _ = loop(body, 2)
    assert (runs, compiles) == (2, 0)


def test_bytes_that_wait_are_bounded() -> None:
    total = torch.zeros((), device="spmd")
    rows = torch.ones(1 << 20)  # 4 MiB, eighty times
    spmd.sync()
    most = 0
    for k in range(80):
        total.add_((rows * k).to("spmd").sum())
        most = max(most, _C.sizes()["pending_uploads"])
    assert most <= 96 << 20
    assert total.item() == float(sum(range(80)) * (1 << 20))


def test_a_mark_in_the_loop() -> None:
    model, other = nets()
    model.eval()
    other.eval()
    mesh = spmd.make_mesh((4,), ("data",))
    total = torch.zeros((), device="spmd")

    def body(k: int) -> None:
        x = spmd.mark_sharding(batch(k).to("spmd"), mesh, ("data", None))
        total.add_(other(x).square().mean())

    with torch.no_grad():
        runs, compiles, most = loop(body)
        expected = sum(model(batch(k)).square().mean() for k in range(BATCHES))
    assert runs >= 4
    assert compiles <= 3
    assert most < LONG / 4
    torch.testing.assert_close(total.cpu(), expected)
