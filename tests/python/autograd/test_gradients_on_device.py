# SPDX-License-Identifier: Apache-2.0
"""Gradients whose formulas in PyTorch look at values on the host, which would end the program."""

import pytest
import torch
from reported import reported

import torch_spmd as spmd

WHOLE = {
    "max": torch.max,
    "min": torch.min,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "prod": torch.prod,
}
ALONG = {
    "prod.dim": lambda x: x.prod(1),
    "prod.dim, kept": lambda x: x.prod(-1, keepdim=True),
    "prod, float64": lambda x: x.prod(0, dtype=torch.float64),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod of the first": lambda x: x.cumprod(-2),
    "cumprod, float64": lambda x: x.cumprod(1, dtype=torch.float64),
}
OPS = WHOLE | ALONG


def values():
    generator = torch.Generator().manual_seed(0)
    plain = torch.rand(8, 6, generator=generator) + 0.5
    one, several, ties, nan = plain.clone(), plain.clone(), plain.clone(), plain.clone()
    one[3, 2] = 0
    several[3, 2] = several[3, 4] = several[5, 2] = several[0, 0] = several[7, 5] = several[6] = 0
    ties[1] = ties.max()
    ties[2] = ties.min()
    ties[4] = ties.median()
    nan[2, 3] = float("nan")
    negative = plain - 1
    return {
        "plain": plain,
        "one zero": one,
        "several zeros": several,
        "ties": ties,
        "nan": nan,
        "negative": negative,
    }


VALUES = values()


def gradient(op, x, create_graph=False):
    """The gradient of x through op, with weights that differ from element to element."""
    y = op(x)
    weights = torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape).to(y.device)
    return torch.autograd.grad((y * weights).sum(), x, create_graph=create_graph)[0]


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("op", OPS)
def test_values_are_those_of_pytorch(op, kind):
    x = VALUES[kind].clone().requires_grad_()
    expected = gradient(OPS[op], x)
    mesh = spmd.make_mesh((4,), ("x",))
    for spec in (None, ("x", None), (None, "x")):
        ours = VALUES[kind].to("spmd")
        if spec is not None:
            spmd.mark_sharding(ours, mesh, spec)
        result = gradient(OPS[op], ours.requires_grad_()).cpu()
        assert result.dtype == expected.dtype
        exact = kind == "plain" and spec is None
        torch.testing.assert_close(
            result, expected, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {})
        )


@pytest.mark.parametrize("op", OPS)
def test_a_step_is_one_program(op):
    weight = torch.nn.Parameter(VALUES["one zero"].to("spmd"))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        OPS[op](weight * 1.5).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    spmd.sync(wait=True)
    before = reported()["runs"]
    step()
    spmd.sync(wait=True)
    assert reported()["runs"] == before + 1


@pytest.mark.parametrize("op", OPS)
def test_second_derivatives_are_those_of_pytorch(op):
    results = []
    for device in ("cpu", "spmd"):
        x = VALUES["one zero"].double().to(device).requires_grad_()
        y = OPS[op](x.square())
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append([first.detach().cpu(), second.cpu()])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("op", ["prod", "prod.dim", "cumprod"])
def test_complex_products(op):
    x = torch.complex(VALUES["several zeros"], VALUES["several zeros"] * 0.5)
    results = []
    for device in ("cpu", "spmd"):
        leaf = x.detach().clone().to(device).requires_grad_()
        y = OPS[op](leaf)
        y.real.square().sum().backward()
        results.append(leaf.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("op", OPS)
def test_a_node_is_used_once(op):
    x = VALUES["one zero"].to("spmd").requires_grad_()
    y = OPS[op](x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@pytest.mark.parametrize("op", OPS)
def test_hooks_of_saved_tensors_see_them(op):
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        x = VALUES["one zero"].to("spmd").requires_grad_()
        y = OPS[op](x)
    y.sum().backward()
    assert packed == [x.shape, y.shape]


@pytest.mark.parametrize("op", OPS)
def test_transforms(op):
    """torch.func differentiates by PyTorch's formulas; a vmap of the ops has ours below it."""
    results = []
    for device in ("cpu", "spmd"):
        x = VALUES["one zero"].double().to(device)

        def total(x):
            return OPS[op](x).sum()

        rows = torch.stack([x, x.flip(0)]).requires_grad_()
        torch.func.vmap(total)(rows).sum().backward()
        tangent = torch.func.jvp(total, (x,), (x + 1,))[1]
        results.append([t.detach().cpu() for t in (torch.func.grad(total)(x), rows.grad, tangent)])
    torch.testing.assert_close(results[1], results[0])


def test_small_sizes():
    for size in [(), (1,), (0,)]:
        for op in ("prod", "cumprod"):
            results = []
            for device in ("cpu", "spmd"):
                x = torch.zeros(size).to(device).requires_grad_()
                y = x.cumprod(0) if op == "cumprod" else x.prod()
                y.sum().backward()
                results.append(x.grad.cpu())
            torch.testing.assert_close(results[1], results[0])
