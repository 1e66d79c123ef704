# SPDX-License-Identifier: Apache-2.0
"""Backward passes of layers give the CPU's gradients, whatever looks on or takes part."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
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


def test_leaves_of_one_node() -> None:
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
    """PyTorch allows it."""

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


@pytest.mark.parametrize("tripled", [False, True])
@pytest.mark.parametrize("what", ["after", "before", "gradient", "kept"])
def test_hooks_between_layers(what: str, tripled: bool) -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        seen: list[str] = []
        found: list[Any] = []
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
            end.sum().backward()
            found += gradients(block, x)
            if kept is not None:
                assert kept.grad is not None
                found.append(kept.grad.cpu())
        return [*seen, *found]

    on_both(run)


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


def test_a_long_pass() -> None:
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


def test_on_pytorchs_thread_for_the_device() -> None:
    def run(device: str) -> list[Any]:
        block, x = block_and_x(device)
        with torch.autograd.set_multithreading_enabled(True):
            for _ in range(3):
                block(block(x)).square().mean().backward()
        return gradients(block, x)

    on_both(run)
