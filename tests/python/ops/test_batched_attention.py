# SPDX-License-Identifier: Apache-2.0
"""Fused attention under vmap, with and without masks, and derivatives inside and outside of it."""

import pytest
import torch
import torch.nn.functional as F


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


def test_widths_that_differ_are_refused_as_on_the_cpu():
    query, key = numbers(2, 2, 5, 8), numbers(2, 2, 5, 6)
    with pytest.raises(RuntimeError) as expected:
        F.scaled_dot_product_attention(query, key, key)
    query, key = query.to("spmd"), key.to("spmd")
    with pytest.raises(RuntimeError) as raised:
        F.scaled_dot_product_attention(query, key, key)
    assert str(raised.value) == str(expected.value)
