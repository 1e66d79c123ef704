# SPDX-License-Identifier: Apache-2.0
"""F.embedding_bag of indices in rows: results and gradients as on the CPU, whole and cut by rows,
and nothing sent for reading them."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd

BAGS, SIZE, ROWS, WIDTH = 8, 5, 11, 6


def by_definition(indices, weight, mode, padding, factors):
    """The CPU's kernel divides gradients by the counts of other rows than their own."""
    rows = F.embedding(indices, weight, padding, scale_grad_by_freq=True)
    if factors is not None:
        rows = rows * factors.unsqueeze(2)
    counts = indices != (-1 if padding is None else padding)
    total = (rows * counts.unsqueeze(2)).sum(1)
    return total / counts.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


def call(device, between, mode, padding, weighted, by_frequency, dtype, rows):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, WIDTH, generator=generator).to(dtype)
    indices = torch.randint(0, ROWS, (BAGS, SIZE), generator=generator)
    indices[3] = padding or 0
    factors = torch.rand(BAGS, SIZE, generator=generator).to(dtype) if weighted else None
    slope = torch.randn(BAGS, WIDTH, generator=generator).to(dtype)
    weight, indices, slope = (t.to(device) for t in (weight, indices, slope))
    if weighted:
        factors = factors.to(device).requires_grad_()
    if device == "spmd" and rows:
        mesh = spmd.make_mesh((4,), ("x",))
        spmd.mark_sharding([indices, slope], mesh, ("x", None))
    weight.requires_grad_()
    if device == "cpu" and by_frequency:
        out = by_definition(indices, weight, mode, padding, factors)
    else:
        out = F.embedding_bag(
            indices,
            weight,
            mode=mode,
            padding_idx=padding,
            per_sample_weights=factors,
            scale_grad_by_freq=by_frequency,
        )
    between(out)
    out.backward(slope)
    grads = [weight.grad, *([factors.grad] if weighted else [])]
    return [t.detach().cpu() for t in (out, *grads)]


KINDS = [
    (mode, padding, weighted, by_frequency)
    for mode, padding, weighted, by_frequency in itertools.product(
        ("sum", "mean", "max"), (None, 2), (False, True), (False, True)
    )
    if not (weighted and mode != "sum") and not (by_frequency and mode == "max")
]


@pytest.mark.parametrize("rows", [False, True], ids=["whole", "rows"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_results_and_gradients(kind, rows):
    for dtype in (torch.float32, torch.float64):
        # A step may be cut between the two passes.
        for between in (lambda out: None, lambda out: out.sum().item()):
            want = call("cpu", between, *kind, dtype, rows)
            got = call("spmd", between, *kind, dtype, rows)
            for mine, expected in zip(got, want):
                torch.testing.assert_close(mine, expected)


def test_bags_of_other_sizes_follow():
    """The size of a bag is a number that is passed at run time; another one is another call."""
    weight = torch.randn(ROWS, WIDTH)
    for size in (4, 4, 2, 8, 2):
        indices = torch.arange(16).reshape(-1, size) % ROWS
        got = F.embedding_bag(indices.to("spmd"), weight.to("spmd"))
        torch.testing.assert_close(got.cpu(), F.embedding_bag(indices, weight))
        flat, ends = torch.arange(16) % ROWS, torch.tensor([0, 3, 9])
        got = F.embedding_bag(flat.to("spmd"), weight.to("spmd"), ends.to("spmd"))
        torch.testing.assert_close(got.cpu(), F.embedding_bag(flat, weight, ends))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("guard", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_bags_cut_by_rows_are_read_without_sending(mode, guard):
    mesh = spmd.make_mesh((4,), ("x",))
    with guard(), warnings.catch_warnings():
        warnings.simplefilter("error")
        indices = torch.randint(0, ROWS, (BAGS, SIZE)).to("spmd")
        spmd.mark_sharding(indices, mesh, ("x", None))
        weight = torch.randn(ROWS, WIDTH).to("spmd")
        spmd.mark_sharding(weight, mesh, (None, None))
        out = F.embedding_bag(indices, weight, mode=mode)
        spmd.sync()
    assert spmd.debug.collectives().rows == []
    torch.testing.assert_close(out.cpu(), F.embedding_bag(indices.cpu(), weight.cpu(), mode=mode))


def test_second_derivatives():
    weight = torch.randn(ROWS, WIDTH, device="spmd", requires_grad=True)
    indices = torch.randint(0, ROWS, (BAGS, SIZE)).to("spmd")
    out = F.embedding_bag(indices, weight, mode="sum").square().sum()
    (grad,) = torch.autograd.grad(out, weight, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), weight)
    w = weight.detach().cpu().requires_grad_()
    (first,) = torch.autograd.grad(
        F.embedding(indices.cpu(), w).sum(1).square().sum(), w, create_graph=True
    )
    torch.testing.assert_close(second.cpu(), torch.autograd.grad(first.sum(), w)[0])
