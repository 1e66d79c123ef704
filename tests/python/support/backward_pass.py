# SPDX-License-Identifier: Apache-2.0
"""Nodes of a backward pass run as one task of the engine: a user cannot tell, but for the time.

Run by test_backward_pass.py, in a process where no other test has asked for PyTorch's thread."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint

import torch_spmd

DEVICES = ("cpu", "spmd")


class Block(nn.Module):
    """Layers that follow one another, with a way around and parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.parts = nn.Linear(4, 12)
        self.together = nn.Linear(4, 4, bias=False)
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.parts(self.norm(x)).split(4, dim=-1)
        mixed = (torch.tanh(a) @ b.transpose(-1, -2)) @ c
        x = x + self.together(mixed.transpose(0, 1).reshape(-1, 4)).view_as(x)
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def block_and_x(device: str) -> tuple[Block, Tensor]:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 5, 4)
    return block.to(device), x.to(device).requires_grad_()


def gradients(block: nn.Module, *others: Tensor) -> list[Tensor | None]:
    tensors = [*block.parameters(), *others]
    return [None if t.grad is None else t.grad.to("cpu", copy=True) for t in tensors]


def on_both(run: Callable[[str], Any]) -> Any:
    """What both devices give: lists of tensors nearly, all else exactly."""
    cpu, spmd = (run(device) for device in DEVICES)
    theirs, their_shape = tree_flatten(cpu)
    ours, our_shape = tree_flatten(spmd)
    assert our_shape == their_shape
    for mine, its in zip(ours, theirs, strict=True):
        if isinstance(mine, Tensor) and isinstance(its, Tensor):
            torch.testing.assert_close(mine, its)
        else:
            assert mine == its
    return spmd


def nodes_of(end: Tensor) -> list[Any]:
    seen: dict[Any, None] = {}
    left: list[Any] = [end.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        left += [n for n, _ in node.next_functions]
    return list(seen)


def graph_of(end: Tensor) -> list[tuple[str, list[str | None]]]:
    """Every node, with where its gradients go."""
    return [
        (node.name(), [n and n.name() for n, _ in node.next_functions]) for node in nodes_of(end)
    ]


class Tasks(TorchDispatchMode):
    """The node that the engine runs at each op of a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node: Any = torch._C._current_autograd_node()
        self.names.append(f"{node and node.name()} {op.overloadpacket}")
        return op(*args, **(kwargs or {}))


def tasks_of(end: Tensor) -> list[str]:
    with Tasks() as tasks:
        end.backward()
    return tasks.names


def test_layers_are_one_task() -> None:
    """If this fails, the other tests of this file test PyTorch."""
    block, x = block_and_x("spmd")

    def run(keep: Callable[[Tensor], Tensor]) -> list[str]:
        block.zero_grad()
        bent = F.gelu(keep(block.wide(block.norm(x))))
        end = block.narrow(keep(bent)).sum()
        del bent
        return [name for name in tasks_of(end) if "gelu" in name or "layer_norm" in name]

    kept: list[Tensor] = []
    for _ in range(3):
        kept.clear()  # a graph that is alive holds its leaves
        assert run(lambda t: t) == [
            "LinearBackward0 aten.gelu_backward",
            "LinearBackward0 aten.native_layer_norm_backward",
        ]
        assert run(lambda t: kept.append(t) or t) == [  # type: ignore[func-returns-value]
            "GeluBackward0 aten.gelu_backward",
            "LinearBackward0 aten.native_layer_norm_backward",
        ]


def test_lines_are_those_of_the_forward_ops() -> None:
    block, x = block_and_x("spmd")
    x = block.norm(x.erfc())  # no other test begins so: its recording would have its lines
    x = block.wide(x)
    x = F.gelu(x)
    end = block.narrow(x).sum()
    end.backward()
    end.item()
    lines: dict[str, list[int]] = {}
    for op, line in re.findall(r"::(\w+)\(.* at \"\S+:(\d+)\"", torch_spmd.debug.print_graph()):
        lines.setdefault(op, []).append(int(line))
    narrow, wide = lines["linear_dweight"]
    assert lines["linear"] == [wide, narrow] == [narrow - 2, narrow]
    assert lines["gelu_backward"] == [narrow - 1]
    assert lines["native_layer_norm_backward"] == [narrow - 3]


@pytest.mark.parametrize("steps", [1, 4])
def test_gradients(steps: int) -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        found: list[Any] = []
        for step in range(steps):
            block(block(x)).square().mean().backward()
            found.append(gradients(block, x))
            if step == 1:  # the third adds to the second's, the fourth starts anew
                continue
            block.zero_grad()
            x.grad = None
        return found

    on_both(run)


def test_gradients_are_taken_over() -> None:
    """A leaf's gradient is the tensor that the node made, and nobody else's memory."""
    layer = nn.Linear(4, 4, device="spmd")
    for _ in range(3):
        layer.zero_grad()
        layer(torch.ones(2, 4, device="spmd")).sum().backward()
        for p in layer.parameters():
            assert p.grad is not None
            assert (p.grad.is_leaf, p.grad.requires_grad, p.grad.grad_fn) == (True, False, None)
            assert p.grad.shape == p.shape
            assert not p.grad._is_view()
        weight, bias = (p.grad for p in layer.parameters())
        assert weight is not None
        assert bias is not None
        weight.zero_()
        assert bias.tolist() == [2.0] * 4


def test_tied_and_repeated_weights() -> None:
    def run(device: str) -> list[Any]:
        torch.manual_seed(0)
        table = nn.Embedding(7, 4).to(device)
        first, last = nn.Linear(4, 4).to(device), nn.Linear(4, 7, bias=False).to(device)
        last.weight = table.weight
        x = torch.tensor([[1, 2, 6]], device=device)
        for _ in range(3):
            last(first(F.relu(first(F.relu(first(table(x))))))).square().sum().backward()
        return gradients(nn.ModuleList([table, first, last]))

    on_both(run)


def test_frozen_and_absent_operands() -> None:
    def run(device: str) -> list[Any]:
        found = []
        for frozen in range(5):
            for _ in range(3):
                block, x = block_and_x(device)
                leaves = [x, *block.wide.parameters(), *block.narrow.parameters()]
                leaves[frozen].requires_grad_(False)
                end = block.narrow(F.relu(block.wide(F.layer_norm(x, (4,)))))
                end.sum().backward()
                found.append([None if t.grad is None else t.grad.cpu() for t in leaves])
        return found

    on_both(run)


def test_the_graph_stays_as_it_was() -> None:
    for _ in range(3):
        block, x = block_and_x("spmd")
        end = block(block(x)).sum()
        before = graph_of(end)
        assert len(before) > 20
        end.backward()
        assert graph_of(end) == before

    def fail(grad: Tensor) -> Tensor:
        raise ValueError("no")

    end = block(block(x)).sum()
    block.norm.weight.register_hook(fail)
    before = graph_of(end)
    assert len(before) > 10
    with pytest.raises(ValueError, match="no"):
        end.backward()
    assert graph_of(end) == before


def test_hooks_see_the_graph_as_it_is() -> None:
    def run(device: str) -> list[Any]:
        found: list[Any] = []
        for _ in range(3):
            block, x = block_and_x(device)
            end = block.norm(x.sin())
            total = end.sum()

            def look(grad: Tensor, end: Tensor = end, total: Tensor = total) -> None:
                found.append(len(nodes_of(end)))
                with pytest.raises(RuntimeError) as error:
                    torch.autograd.grad(total, [block.norm.weight], allow_unused=True)  # noqa: B023
                found.append(str(error.value))

            x.register_hook(look)
            total.backward()
        return found

    found = on_both(run)
    assert len(found) == 6
    assert "a second time" in found[1]


def test_leaves_of_one_node() -> None:
    """All are the engine's where one of them is."""

    def run(device: str) -> list[Any]:
        found: list[Any] = []
        for others in range(5):
            for _ in range(3):
                block, x = block_and_x(device)
                norm = block.norm
                norm.weight.register_post_accumulate_grad_hook(
                    lambda w: found.append(("weight", norm.bias.grad is None))  # noqa: B023
                )
                norm.bias.register_hook(
                    lambda g: found.append(("bias", norm.weight.grad is None))  # noqa: B023
                )
                ends = [norm(x), *[(x * 1).sin() for _ in range(others)]]
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        return found

    on_both(run)


def test_a_pass_is_the_last_one_unless_told() -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        end = block(x).sum()
        end.backward(retain_graph=True)
        end.backward()
        twice = gradients(block, x)
        with pytest.raises(RuntimeError) as error:
            end.backward()
        return [twice, gradients(block, x), str(error.value)]

    on_both(run)


def test_a_second_pass_where_nothing_is_kept() -> None:
    """PyTorch allows it, and chains from sums and parts leave the graph as it was."""

    def run(device: str) -> list[Any]:
        found: list[Any] = []
        for _ in range(3):
            block, x = block_and_x(device)
            layers = F.layer_norm(x.detach(), (4,)) + block.together(x.detach())
            a, b = (x.transpose(0, 1) + x.view(5, 3, 4)).split(2, dim=-1)
            end = (a + b.sum(0)).sum()
            for _ in range(2):
                end.backward()
                found.append(gradients(block, x))
            end = (layers + x).sum()
            end.backward()
            found.append(gradients(block, x))
            with pytest.raises(RuntimeError) as error:
                end.backward()
            found.append(str(error.value))
        return found

    on_both(run)


def test_some_gradients_only() -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        found: list[Any] = []
        for _ in range(3):
            given = torch.autograd.grad(block(x).square().mean(), [block.wide.weight, x])
            found.append([t.cpu() for t in given])
            block(x).square().mean().backward(inputs=[block.norm.bias, block.narrow.weight])
            found.append(gradients(block, x))
        (first,) = torch.autograd.grad(block(x).square().mean(), x, create_graph=True)
        first.square().mean().backward()
        return [*found, gradients(block, x)]

    on_both(run)


See = Callable[[str], None]


def watch(name: str, see: See) -> Callable[..., None]:
    return lambda *args: see(name)


WATCHED: dict[str, Callable[[Block, See], Any]] = {
    "leaves": lambda block, see: [
        p.register_hook(watch(name, see)) for name, p in block.named_parameters()
    ],
    "some leaves": lambda block, see: [
        p.register_hook(watch(name, see)) for name, p in list(block.named_parameters())[1::3]
    ],
    "filled leaves": lambda block, see: [
        p.register_post_accumulate_grad_hook(watch(name, see))
        for name, p in block.named_parameters()
    ],
    "modules": lambda block, see: [
        m.register_full_backward_hook(watch(name, see)) for name, m in block.named_modules()
    ],
    "accumulators": lambda block, see: [
        (node, node.register_hook(watch("accumulator", see)))
        for node in [
            torch.autograd.graph.get_gradient_edge(block.wide.weight).node,
            torch.autograd.graph.get_gradient_edge(block.norm.bias).node,
        ]
    ],
    "all of some": lambda block, see: torch.autograd.graph.register_multi_grad_hook(
        [block.wide.weight, block.norm.weight], watch("both", see)
    ),
    "first of some": lambda block, see: torch.autograd.graph.register_multi_grad_hook(
        [block.wide.weight, block.norm.weight], watch("one", see), mode="any"
    ),
}


def hold(end: Tensor, how: bool) -> list[Any]:
    """With every node held by somebody all tasks are the engine's."""
    return nodes_of(end) if how else []


@pytest.mark.parametrize("what", list(WATCHED))
def test_hooks_come_in_the_engines_order(what: str) -> None:
    """Each sees which gradients are there by then."""

    def run(held: bool) -> tuple[list[str], list[Tensor | None]]:
        block, x = block_and_x("spmd")
        seen: list[str] = []

        def see(name: str) -> None:
            there = [n for n, p in block.named_parameters() if p.grad is not None]
            seen.append(f"{name}: {there}")

        hooks = WATCHED[what](block, see)
        for _ in range(3):
            block.zero_grad()
            end = block(block(x)).square().mean()
            nodes = hold(end, held)
            end.backward()
            del nodes
        del hooks
        return seen, gradients(block, x)

    (seen, found), (want_seen, want) = (run(held) for held in (False, True))
    assert seen == want_seen
    assert len(seen) >= 3
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("tripled", [False, True])
@pytest.mark.parametrize("what", ["after", "before", "gradient", "kept"])
def test_hooks_between_layers(what: str, tripled: bool) -> None:
    def run(held: bool) -> tuple[list[str], list[Tensor | None]]:
        block, x = block_and_x("spmd")
        seen: list[str] = []
        found = []
        for k in range(6):
            wide = block.wide(block.norm(x))
            bent = F.gelu(wide)
            node: Any = (wide if k & 1 else bent).grad_fn
            if what == "after":
                node.register_hook(lambda i, o: seen.append(f"after {len(i)} {len(o)}"))
            elif what == "before":
                node.register_prehook(lambda o: seen.append(f"before {len(o)}"))
            elif what == "gradient":
                wide.register_hook(lambda g: g * 2)
            else:
                bent.retain_grad()
            end = block.narrow(bent)
            if tripled:
                end.grad_fn.register_hook(lambda i, o: (i[0] * 3, *i[1:]))
            kept = bent if what == "kept" else None
            del wide, bent, node
            nodes = hold(end, held)
            end.sum().backward()
            del nodes
            found += gradients(block, x)
            if kept is not None:
                assert kept.grad is not None
                found.append(kept.grad.cpu())
        return seen, found

    (seen, found), (want_seen, want) = (run(held) for held in (False, True))
    assert seen == want_seen
    torch.testing.assert_close(found, want)


def test_optimizers_in_the_pass() -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)

        def step(p: Tensor) -> None:
            assert p.grad is not None
            p.detach().sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in block.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            block(x).square().mean().backward()
        return [p.detach().cpu() for p in block.parameters()]

    on_both(run)


def test_functions_and_passes_within_a_pass() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            with torch.enable_grad():
                weight = torch.ones(4, 4, device=grads[0].device, requires_grad=True)
                F.linear(F.relu(F.linear(grads[0], weight)), weight).sum().backward()
            assert weight.grad is not None
            return grads[0] * 2 + weight.grad.sum()

    def run(device: str) -> list[Any]:
        found: list[Any] = []
        for _ in range(3):
            block, x = block_and_x(device)
            y = block.together(Twice.apply(block.norm(x)))
            y = checkpoint(block, y, use_reentrant=False)
            checkpoint(block, y, use_reentrant=True).square().mean().backward()
            found.append(gradients(block, x))
        return found

    on_both(run)


def test_leaves_that_are_views_and_written_middles() -> None:
    def run(device: str) -> list[Any]:
        found: list[Any] = []
        for _ in range(3):
            block, x = block_and_x(device)
            flat = torch.arange(24.0, device=device)
            weight = flat[:16].view(4, 4).requires_grad_()
            bias = flat[16:20].requires_grad_()
            middle = F.linear(x * 1, weight, bias)
            middle[..., 1:3] = F.linear(x, weight[:2])
            middle.mul_(2)
            block.together(F.relu(middle)).square().mean().backward()
            found.append(gradients(block, x, weight, bias))
        return found

    on_both(run)


def test_anomalies_are_found() -> None:
    block, x = block_and_x("spmd")
    end = block.narrow(F.gelu(block.wide(F.relu(block.norm(x)) / 0))).sum()
    with (
        pytest.warns(UserWarning, match="Error detected"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(
            RuntimeError, match=r"LinearBackward0.*returned nan values in its 1th output"
        ),
    ):
        end.backward()


def test_a_profiler_sees_every_task() -> None:
    block, x = block_and_x("spmd")
    end = block(x).sum()
    tasks = len(graph_of(end))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        end.backward()
    named = [e for e in profile.events() if e.name.startswith("autograd::engine::evaluate")]
    assert len(named) == tasks


def test_a_long_pass() -> None:
    """Longer than what is run as one task."""

    def run(device: str) -> list[Any]:
        torch.manual_seed(0)
        layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(300)]).to(device)
        for _ in range(3):
            layers.zero_grad()
            layers(torch.ones(2, 3, device=device)).sum().backward()
        return gradients(layers)

    on_both(run)


def test_threads_share_parameters() -> None:
    block, x = block_and_x("spmd")
    block(x).square().mean().backward()
    want = [g and None if g is None else g * 8 for g in gradients(block)]
    block.zero_grad()

    def work() -> None:
        for _ in range(4):
            block(x.detach()).square().mean().backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(gradients(block), want)


def test_alone_only() -> None:
    """Another thread that uses the device may go through the same graph."""
    block, x = block_and_x("spmd")

    def tasks() -> list[str]:
        block.zero_grad()
        names = tasks_of(block.narrow(F.gelu(block.wide(x))).sum())
        return [name for name in names if "gelu" in name]

    used, leave = threading.Event(), threading.Event()

    def work() -> None:
        assert torch.ones(3, device="spmd").sum().item() == 3
        used.set()
        leave.wait()

    assert tasks() == ["LinearBackward0 aten.gelu_backward"]
    other = threading.Thread(target=work)
    other.start()
    used.wait()
    assert tasks() == ["GeluBackward0 aten.gelu_backward"]
    leave.set()
    other.join()  # Python's thread: that of the system ends a little later
    for _ in range(500):
        if tasks() == ["LinearBackward0 aten.gelu_backward"]:
            return
        time.sleep(0.01)
    pytest.fail("the thread never ended")


def test_on_pytorchs_thread_for_the_device() -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        with torch.autograd.set_multithreading_enabled(True):
            for _ in range(3):
                block(block(x)).square().mean().backward()
        return gradients(block, x)

    on_both(run)
