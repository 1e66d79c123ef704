# SPDX-License-Identifier: Apache-2.0
"""Fused attention under vmap, with and without masks, and derivatives inside and outside of it."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


MASKS = {
    "none": (None, None),
    "causal": (None, None),
    "of_all": (numbers(5, 5) < 1, None),
    "of_heads": (numbers(2, 5, 5) < 1, None),
    "of_examples": (numbers(2, 1, 5, 5), None),
    "batched": (numbers(3, 5, 5), 0),
    "batched_last": (numbers(2, 2, 5, 5, 3), 4),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [(0, 0, 0), (2, 0, None)], ids=str)
def test_it_is_attention_of_each_item(dims, mask):
    operands = []
    for i, d in enumerate(dims):
        t = (
            numbers(2, 2, 5, 4, seed=i)
            if d is None
            else numbers(3, 2, 2, 5, 4, seed=i).movedim(0, d)
        )
        operands.append(t)
    bias, bias_dim = MASKS[mask]

    def attention(q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=mask == "causal")

    def loss(q, k, v, bias):
        return attention(q, k, v, bias).sin().sum()

    in_dims = (*dims, bias_dim)
    for f in (attention, torch.func.grad(loss, (0, 1, 2))):  # and the derivative inside
        expected = torch.vmap(f, in_dims)(*operands, bias)
        on_device = [None if t is None else t.to("spmd") for t in (*operands, bias)]
        got = torch.vmap(f, in_dims)(*on_device)
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (got, expected))):
            torch.testing.assert_close(a.cpu(), b)
    leaves = [t.clone().requires_grad_() for t in operands]
    ours = [t.to("spmd").detach().requires_grad_() for t in operands]
    torch.vmap(attention, in_dims)(*leaves, bias).square().sum().backward()
    torch.vmap(attention, in_dims)(*ours, on_device[3]).square().sum().backward()
    for a, b in zip(ours, leaves):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


SHARED_HEADS = {"enable_gqa": True}


def way_of(device):
    """The CPU's fused kernel refuses what vmap hides; the device chooses by itself."""
    return sdpa_kernel(SDPBackend.MATH) if device == "cpu" else contextlib.nullcontext()


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("sizes", [(5, 5), (4, 5, 5), (2, 4, 5, 5), (2, 1, 5, 5), (1, 1, 1, 5)])
def test_gradients_of_a_mask(sizes, levels):
    """vmap hides that the mask requires one: its own and one that all items share."""

    def gradients(device):
        q = numbers(3, 3, 2, 4, 5, 6).to(device).requires_grad_()
        k, v = (numbers(3, 3, 2, 2, 5, 6, seed=i).to(device).requires_grad_() for i in (1, 2))
        own, shared = (
            numbers(*lead, *sizes, seed=i).to(device).requires_grad_()
            for i, lead in ((3, (3, 3)), (4, ()))
        )

        def attention(q, k, v, own, shared):
            by_own = F.scaled_dot_product_attention(q, k, v, own, **SHARED_HEADS)
            return by_own + F.scaled_dot_product_attention(q, k, v, shared, **SHARED_HEADS)

        f = attention
        for _ in range(levels):
            f = torch.vmap(f, (0, 0, 0, 0, None))
        args = [t if levels == 2 else t[0] for t in (q, k, v, own)]
        with way_of(device):
            y = f(*args, shared)
        (y * torch.arange(6.0, device=device)).sum().backward()
        return [t.grad.cpu() for t in (q, k, v, own, shared)]

    for got, expected in zip(gradients("spmd"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_mask_that_requires_a_gradient_and_a_derivative_inside():
    def gradients(device):
        q, k, v = (numbers(3, 2, 4, 5, 6, seed=i).to(device) for i in range(3))
        k, v, bias = k[:, :, :2], v[:, :, :2], numbers(5, 5).to(device).requires_grad_()

        def loss(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, bias, scale=0.3, **SHARED_HEADS).sum()

        with way_of(device):
            return torch.vmap(torch.func.grad(loss, (0, 1)))(q, k, v)

    for got, expected in zip(gradients("spmd"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got.detach().cpu(), expected.detach())


@pytest.mark.parametrize("causal", [False, True])
def test_tangents(causal):
    def slope(device):
        t, tangent = numbers(3, 2, 2, 5, 4).to(device), numbers(3, 2, 2, 5, 4, seed=1).to(device)

        def attention(t):
            return F.scaled_dot_product_attention(t, t * 2, t.sin(), is_causal=causal)

        with way_of(device):
            return torch.func.jvp(torch.vmap(attention), (t,), (tangent,))[1].cpu()

    torch.testing.assert_close(slope("spmd"), slope("cpu"))


def test_widths_that_differ_are_refused_as_on_the_cpu():
    query, key = numbers(2, 2, 5, 8), numbers(2, 2, 5, 6)
    with pytest.raises(RuntimeError) as expected:
        F.scaled_dot_product_attention(query, key, key)
    query, key = query.to("spmd"), key.to("spmd")
    with pytest.raises(RuntimeError) as raised:
        F.scaled_dot_product_attention(query, key, key)
    assert str(raised.value) == str(expected.value)
