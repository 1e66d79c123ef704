# SPDX-License-Identifier: Apache-2.0
"""Autograd on the device, op by op, is autograd on the CPU."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_unary_op_db,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import torch_spmd

DEVICES = ("cpu", "spmd")


def on_both(run: Any) -> None:
    cpu, spmd = (run(device) for device in DEVICES)
    assert spmd == cpu


def test_versions_count() -> None:
    def run(device: str) -> list[int]:
        x = torch.ones(4, device=device)
        versions = []
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                view = x[1:3]
                view.mul_(2)
                x.add_(x).relu_()
                versions += [x._version, view._version, (x + x)._version]
        return versions

    on_both(run)


LIST_OPS = [
    op
    for ops in (
        foreach_unary_op_db,
        foreach_binary_op_db,
        foreach_pointwise_op_db,
        foreach_other_op_db,
    )
    for op in ops
    if op.inplace_variant is not None
]


def of_device(value: Any, device: str) -> Any:
    move = partial(Tensor.to, device=device, copy=True)
    return tree_map_only(Tensor, move, value)


@pytest.mark.parametrize("op", LIST_OPS, ids=lambda op: op.name)
def test_versions_of_lists_count(op: Any) -> None:
    """Recorded, followed and replayed; by numbers, lists of numbers, lists of tensors, a tensor."""
    samples = list(op.sample_inputs("cpu", torch.float32))[:6]

    def run(device: str) -> list[Any]:
        results: list[Any] = []
        for _ in range(3):
            for sample in samples:
                tensors = of_device(sample.input, device)
                known = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
                before = [t._version for t in tensors]
                try:
                    with torch.no_grad():
                        op.inplace_variant(tensors, *of_device(sample.args, device), **known)
                except RuntimeError:  # samples of comparisons and of bools
                    results.append("refused")
                    continue
                results.append([t._version - v for t, v in zip(tensors, before, strict=True)])
            torch_spmd.sync()
        return results

    on_both(run)


def test_an_operand_that_a_list_op_writes_is_noticed() -> None:
    def run(device: str) -> list[str]:
        errors = []
        for _ in range(3):
            x = torch.ones(4, device=device, requires_grad=True)
            y = (x * x).sum()
            with torch.no_grad():
                torch._foreach_add_([x], 1.0)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
                y.backward()
            errors.append(str(error.value).split("[")[0])
        return errors

    on_both(run)


def test_lists_with_gradients() -> None:
    """Some elements are differentiated, and some are views, or one tensor twice."""

    def run(device: str) -> list[Any]:
        results = []
        for _ in range(3):
            x = torch.arange(1.0, 5.0, device=device, requires_grad=True)
            free, base = torch.ones(4, device=device), x * 1
            tensors = [x * 2, free, base[1:3], x + 1]
            torch._foreach_mul_(tensors, 3.0)
            torch._foreach_add_(tensors, [x, free, x[1:3], x], alpha=0.5)
            halves = [torch.full_like(t, 0.5) for t in tensors]
            torch._foreach_addcdiv_(tensors, torch._foreach_sqrt(halves), halves, 2.0)
            norms = torch._foreach_norm(tensors)
            loss = torch.stack(norms).sum() + base.sum()
            loss.backward()
            assert x.grad is not None
            names = [t.grad_fn.name() if t.grad_fn else "" for t in tensors]
            results += [x.grad.tolist(), names, [t._version for t in tensors], base.tolist()]
            twice = [free, free]
            torch._foreach_mul_(twice, 2.0)
            results += [free.tolist(), free._version]
            torch_spmd.sync()
        return results

    on_both(run)


def test_lists_in_inference_mode() -> None:
    def run(device: str) -> list[Any]:
        results: list[Any] = []
        for _ in range(3):
            with torch.inference_mode():
                tensors = [torch.ones(2, device=device), torch.ones(3, device=device)]
                torch._foreach_mul_(tensors, 2.0)
                results.append([t.tolist() for t in torch._foreach_neg(tensors)])
            with pytest.raises(RuntimeError, match="inference tensor") as error:
                torch._foreach_mul_([*tensors, torch.ones(2, device=device)], 2.0)
            results.append(str(error.value))
            if device == "spmd":  # the CPU has written it before
                assert [t.tolist() for t in tensors] == [[2, 2], [2, 2, 2]]
        return results

    on_both(run)


def test_a_saved_tensor_that_is_written_without_grad_is_noticed() -> None:
    def run(device: str) -> str:
        x = torch.ones(4, device=device, requires_grad=True)
        y = x.exp()
        with torch.no_grad():
            y[0].zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            y.sum().backward()
        return str(error.value).split("[")[0]

    on_both(run)


def test_a_leaf_is_written_without_grad_only() -> None:
    def run(device: str) -> tuple[str, list[float]]:
        x = torch.ones(3, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf") as error:
            x.mul_(2)
        with torch.no_grad():
            x.mul_(2)
        return str(error.value), x.tolist()

    on_both(run)


def test_a_view_made_without_grad_is_not_differentiated() -> None:
    def run(device: str) -> tuple[str, bool]:
        x = torch.ones(4, device=device, requires_grad=True).clone()
        with torch.no_grad():
            view = x[1:3]
        with pytest.raises(RuntimeError, match="no_grad") as error:
            view.mul_(x[0])
        return str(error.value), view.requires_grad

    on_both(run)


def test_views_made_with_grad_are_differentiated_by_their_own_formulas() -> None:
    x = torch.ones(4, 3, device="spmd", requires_grad=True)
    with torch.no_grad():
        x[1:].t()  # how this view was derived is not kept
    base = x * 2
    view = base[1:].t()
    view.mul_(3)
    assert view.grad_fn is not None
    assert view.grad_fn.name() == "TBackward0"
    base.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0] * 3, *[[6.0] * 3] * 3]


def test_a_tensor_without_gradient_takes_one_through_a_view() -> None:
    def run(device: str) -> tuple[list[float], list[float]]:
        x, w = torch.zeros(4, device=device), torch.ones(2, device=device, requires_grad=True)
        view = x[1:3]
        view.add_(w * 3)
        x.square().sum().backward()
        assert w.grad is not None
        return x.detach().tolist(), w.grad.tolist()

    on_both(run)


@pytest.mark.parametrize("grad", [True, False])
def test_tangents_pass(grad: bool) -> None:
    def run(device: str) -> list[list[float]]:
        def primal_and_tangent(t: Tensor) -> list[list[float]]:
            return [part.tolist() for part in forward_ad.unpack_dual(t) if part is not None]

        with torch.set_grad_enabled(grad), forward_ad.dual_level():
            x = forward_ad.make_dual(
                torch.arange(4.0).to(device), torch.arange(1.0, 5.0).to(device)
            )
            plain = torch.ones(4, device=device)
            view = plain[1:3]
            view.add_(x[2:] * x[:2])
            y = x.view(2, 2).t()[0].mul(2)
            return primal_and_tangent(plain) + primal_and_tangent(view) + primal_and_tangent(y)

    on_both(run)


def test_modes_below_autograd_see_every_op() -> None:
    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def run(device: str) -> list[str]:
        x = torch.ones(4, device=device)
        with torch.no_grad(), Names() as mode:
            x[1:3].mul_(2)
            (x + 1).relu_()
        return mode.names

    on_both(run)


def x_and_y(device: str, grads: str) -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.5, 2, 6, device=device).view(2, 3).clone()
    y = torch.linspace(1, 3, 3, dtype=torch.float64, device=device)
    return x.requires_grad_("x" in grads), y.requires_grad_("y" in grads)


# Writes through views of views in grad mode: PyTorch derives the views again from their root.
WRITES: dict[str, Any] = {
    "one step": lambda base, w: base.view(3, 2).mul_(w),
    "three steps": lambda base, w: base.view(3, 2)[1:].t().mul_(w),
    "a permutation": lambda base, w: base.unsqueeze(0).permute(2, 0, 1)[0].mul_(w),
    "an expanded slice": lambda base, w: base.select(0, 1)[:2].unsqueeze(1).add_(w),
    "below another": lambda base, w: base.t()[0].squeeze(0).mul_(2).add_(w),
    "a diagonal in between": lambda base, w: base.t().diagonal()[1:].mul_(w),
}


@pytest.mark.parametrize("root", ["leaf", "made"])
@pytest.mark.parametrize("op", WRITES)
def test_writes_through_views_with_gradients(op: str, root: str) -> None:
    def run(device: str) -> list[Any]:
        results: list[Any] = []
        for _ in range(3):
            x, _ = x_and_y(device, "x" if root == "made" else "")
            w = torch.tensor(3.0, device=device, requires_grad=True)
            base = x * 2 if root == "made" else x
            before = base.t()[1:]
            view = WRITES[op](base, w)
            after = before * 2
            names = [t.grad_fn.name() for t in (base, before, view)]
            (base.square().sum() + after.sum() + view.sum()).backward()
            assert w.grad is not None
            mine = [] if x.grad is None else x.grad.tolist()
            results.append((base.tolist(), w.grad.tolist(), mine, names, base._version))
        return results

    on_both_nearly(run)


def on_both_nearly(run: Any) -> None:
    cpu, spmd = (run(device) for device in DEVICES)
    torch.testing.assert_close([r[:3] for r in spmd], [r[:3] for r in cpu])
    # PyTorch derives a view by its strides if it has no function for it; we always have one.
    assert [r[4:] for r in spmd] == [r[4:] for r in cpu]


def test_a_view_of_one_of_several_is_not_written() -> None:
    def run(device: str) -> str:
        x, _ = x_and_y(device, "x")
        part = (x * 2).split(1)[0]
        with pytest.raises(RuntimeError, match="multiple") as error:
            part.view(3).mul_(2)
        return str(error.value)[:60]

    on_both(run)


def test_tangents_pass_through_views_in_grad_mode() -> None:
    def run(device: str) -> list[Any]:
        with forward_ad.dual_level():
            base = torch.zeros(2, 3, device=device)
            view = base.view(3, 2)[1:].t()
            one, two = torch.ones(2, 2, device=device), torch.full((2, 2), 5.0, device=device)
            view.copy_(forward_ad.make_dual(one, two))
            of_base = forward_ad.unpack_dual(base).tangent
            of_view = forward_ad.unpack_dual(base.t()[1]).tangent
            assert of_base is not None
            assert of_view is not None
            return [of_base.tolist(), of_view.tolist()]

    on_both(run)


def test_detached_tensors() -> None:
    def run(device: str) -> list[Any]:
        results: list[Any] = []
        for _ in range(3):
            x, _ = x_and_y(device, "x")
            made = x * 2
            cut = made.detach()
            cut.add_(1)
            results.append([cut.requires_grad, cut.grad_fn, cut._is_view(), made._version])
            results.append([made.tolist(), cut.is_leaf])
            view = x.detach()[0]
            results.append([view._is_view(), view._base is not None, view.tolist()])
        return results

    on_both(run)


def test_linear_keeps_its_operands() -> None:
    for _ in range(3):
        x = torch.ones(4, 3, device="spmd", requires_grad=True)
        w, b = torch.ones(2, 3, device="spmd", requires_grad=True), torch.ones(2, device="spmd")
        for bias, grads in ((b.clone().requires_grad_(), 3), (b, 2), (None, 2)):
            end = torch.nn.functional.linear(x, w, bias)
            node: Any = end.grad_fn
            assert node.name() == "LinearBackward0"
            assert len(node.next_functions) == 3
            assert sum(n is not None for n, _ in node.next_functions) == grads
            assert node._saved_weight is w
            assert node._saved_input is x
            (end * torch.arange(2.0, device="spmd")).sum().backward()
            assert w.grad is not None
            assert w.grad.tolist() == [[0.0] * 3, [4.0] * 3]
            w.grad = None


def test_attention_keeps_its_operands() -> None:
    for _ in range(3):
        torch.manual_seed(0)
        host = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
        mine = [t.detach().to("spmd").requires_grad_(k != 1) for k, t in enumerate(host)]
        ends = []
        for q, k, v in (host, mine):
            ends.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3))
            ends[-1].square().sum().backward()
        node: Any = ends[1].grad_fn
        assert node.name() == "ScaledDotProductFusedAttentionOverrideableBackward0"
        assert [n is not None for n, _ in node.next_functions] == [True, False, True, False]
        assert (node._saved_is_causal, node._saved_scale, node._saved_dropout_p) == (True, 0.3, 0.0)
        assert (node._saved_max_q, node._saved_max_k) == (5, 5)
        with pytest.raises(RuntimeError, match="already been freed"):
            node._saved_query  # noqa: B018
        torch.testing.assert_close(ends[1].cpu(), ends[0])
        for theirs, ours in zip((host[0], host[2]), (mine[0], mine[2]), strict=True):
            assert ours.grad is not None
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
        assert mine[1].grad is None


def test_a_reshape_that_copies_is_one_node() -> None:
    def run(device: str) -> list[Any]:
        results: list[Any] = []
        for _ in range(3):
            x, _ = x_and_y(device, "x")
            turned = (x * 1).t()
            end = turned.reshape(-1)
            with torch.no_grad():
                turned.zero_()  # a copy does not see it
            (first,) = torch.autograd.grad(end.pow(3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            results.append([end.tolist(), first.tolist(), second.tolist(), end._is_view()])
            results.append([end.stride(), x.detach()[:, 1:].t().reshape(4, 1).tolist()])
            node: Any = end.grad_fn
            if device == "spmd":
                assert node.name() == "ReshapeCopyBackward0"
                assert node.next_functions[0][0].name() == "TBackward0"
            with pytest.raises(RuntimeError) as error:
                turned.reshape(4, -1)
            results.append(str(error.value))
        return results

    on_both(run)


def test_replayed_metadata_is_pytorchs() -> None:
    """Memory formats, density and numbers of elements of results, recorded and replayed."""

    def run(device: str) -> list[Any]:
        results: list[Any] = []
        image = torch.arange(96.0).view(2, 4, 3, 4).to(device)
        for _ in range(3):
            last = image.contiguous(memory_format=torch.channels_last)
            made = [last, last + 1, last.relu(), last[:, :2], last.permute(0, 2, 3, 1), image[:0]]
            made += [image.unsqueeze(2) * 2, image.sum(), *image.unbind(1)]
            for t in made:
                formats = [torch.contiguous_format, torch.channels_last, torch.channels_last_3d]
                results.append(
                    [t.is_contiguous(memory_format=f) for f in formats if t.dim() in (4, 5)]
                )
                results.append([t.numel(), t.stride(), t.storage_offset()])
                results.append(torch.empty_like(t).stride())  # by knowing what is dense
        return results

    on_both(run)


def test_a_kept_operand_that_was_written_is_noticed() -> None:
    def run(device: str) -> str:
        x, y = x_and_y(device, "x")
        factor = y.float()
        product = x * factor
        factor.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            product.sum().backward()
        return str(error.value).split("[")[0]

    on_both(run)


def test_hooks_on_what_is_kept() -> None:
    def run(device: str) -> tuple[int, int, list[float]]:
        packed: list[Tensor] = []
        unpacked: list[Tensor] = []

        def unpack(t: Tensor) -> Tensor:
            unpacked.append(t)
            return t

        x, y = x_and_y(device, "xy")
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, unpack):
            end = (x * y).tanh()
        end.sum().backward()
        assert y.grad is not None
        return len(packed), len(unpacked), y.grad.tolist()

    cpu, spmd = (run(device) for device in DEVICES)
    assert spmd[:2] == cpu[:2] == (3, 3)
    torch.testing.assert_close(spmd[2], cpu[2])


def test_hooks_of_tensors_and_nodes() -> None:
    def run(device: str) -> list[str]:
        x, y = x_and_y(device, "x")
        seen: list[str] = []
        middle = x * 2
        middle.retain_grad()
        middle.register_hook(lambda g: seen.append(f"middle {g.sum().item()}"))
        end = middle + y
        end.grad_fn.register_hook(lambda i, o: seen.append(f"end {len(i)} {len(o)}"))
        x.register_post_accumulate_grad_hook(lambda t: seen.append(f"leaf {t.grad.sum().item()}"))
        end.sum().backward()
        assert middle.grad is not None
        return [*seen, str(middle.grad.tolist())]

    on_both(run)


def test_an_integer_result_of_tensors_with_gradients_is_refused_alike() -> None:
    def run(device: str) -> str:
        x, _ = x_and_y(device, "x")
        with pytest.raises(RuntimeError) as error:
            torch.add(torch.ones(3, dtype=torch.int64, device=device), x, alpha=1.5).add_(
                torch.ones(3, 3, 3, device=device)
            )
        return str(error.value)[:30]

    on_both(run)


def test_an_error_of_pythons_is_raised_again() -> None:
    for _ in range(3):
        transposed = torch.ones(4, 4, device="spmd").t()
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            torch.ops.aten._unsafe_view(transposed, [-1])


def test_an_op_that_is_refused_leaves_no_node() -> None:
    x, _ = x_and_y("spmd", "x")
    with pytest.raises(RuntimeError, match="size"):
        x + torch.ones(7, device="spmd")
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0] * 3] * 2


def test_backward_stays_on_the_thread_that_asks() -> None:
    """As on the CPU, unless the user asks for PyTorch's thread for the device."""

    def names(device: str) -> list[str]:
        seen: list[str] = []
        x, _ = x_and_y(device, "x")
        end = (x * 2).sum()
        end.register_hook(lambda g: seen.append(threading.current_thread().name))
        end.backward()
        return seen

    on_both(names)
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(names("spmd")), name="mine")
    thread.start()
    thread.join()
    assert found == [["mine"]]
    with torch.autograd.set_multithreading_enabled(True):
        assert names("spmd") != ["MainThread"]
    assert names("spmd") == ["MainThread"]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_linear_with_a_vector(mode: Any) -> None:
    def run(device: str) -> list[list[float]]:
        x, w = torch.arange(6.0, device=device).view(2, 3), torch.arange(3.0, device=device)
        with mode():
            return [
                torch.nn.functional.linear(x, w).tolist(),
                torch.nn.functional.linear(x, x).tolist(),
            ]

    for _ in range(3):
        on_both(run)
