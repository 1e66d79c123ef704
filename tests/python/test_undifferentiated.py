# SPDX-License-Identifier: Apache-2.0
"""Calls that nothing differentiates pass autograd by: a user cannot tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_spmd  # noqa: F401

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
        x[1:].t()  # how this one was made is not kept
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
