# SPDX-License-Identifier: Apache-2.0
"""Users' ops with an implementation for the CPU and no sharding rule run unsharded."""

import itertools
import re

import pytest
import torch
from processes import run_script
from torch import Tensor

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns")

NUMBERS = itertools.count()


@pytest.fixture(params=["without a fake", "with a fake"])
def fake(request):
    return request.param == "with a fake"


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 2), ("x", "y"))


@pytest.fixture
def x(mesh):
    t = torch.arange(12.0).view(4, 3).to("spmd")
    return spmd.mark_sharding(t, mesh, ("x", "y"))


def custom_op(function, mutates=(), fake=None, schema=None, device_types="cpu"):
    """A new op that calls a function."""
    name = f"torch_spmd_tests::op{next(NUMBERS)}"
    op = torch.library.custom_op(
        name, function, mutates_args=mutates, schema=schema, device_types=device_types
    )
    if fake is not None:
        op.register_fake(fake)
    return op


def same(op, *arguments):
    """The op on the device's tensors and on their host copies."""
    got = op(*arguments)
    want = op(*torch.utils._pytree.tree_map_only(Tensor, lambda t: t.cpu(), arguments))
    got, want = (r if isinstance(r, (tuple, list)) else (r,) for r in (got, want))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.device.type == "spmd"
        torch.testing.assert_close(a.cpu(), b)
    return got


def test_a_result(x, fake):
    def twice(t: Tensor, times: int = 2) -> Tensor:
        return t * times

    op = custom_op(twice, fake=(lambda t, times=2: torch.empty_like(t)) if fake else None)
    same(op, x)
    same(op, x + 1, 3)
    assert (op(x * 2) + x).sum().item() == 5 * 66


def test_an_implementation_for_all_devices_gets_our_tensors(x):
    devices = []

    def twice(t: Tensor) -> Tensor:
        devices.append(t.device.type)
        return t * 2

    same(custom_op(twice, device_types=None), x)
    assert devices == ["spmd", "cpu"]


def test_several_results(x, fake):
    def halves(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return t[:2] * 2, t[2:].clone(), t.sum()

    def shapes(t):
        return t.new_empty(2, 3), t.new_empty(2, 3), t.new_empty(())

    same(custom_op(halves, fake=shapes if fake else None), x)


def test_a_list_of_results(x, fake):
    def rows(t: Tensor) -> list[Tensor]:
        return [row.clone() for row in t]

    op = custom_op(rows, fake=(lambda t: [t.new_empty(3) for _ in t]) if fake else None)
    same(op, x)


def test_lists_and_keywords(x, fake):
    def join(parts: list[Tensor], scale: Tensor, offset: Tensor | None = None) -> Tensor:
        result = torch.cat(parts) * scale
        return result if offset is None else result + offset

    def shape(parts, scale, offset=None):
        return torch.cat(parts) * scale

    op = custom_op(join, fake=shape if fake else None)
    want = torch.cat([x.cpu(), x.cpu() * 2]) * 3
    got = op([x, x * 2], scale=torch.tensor(3.0).to("spmd"))
    assert torch.equal(got.cpu(), want)
    got = op([x, x * 2], scale=torch.tensor(3.0).to("spmd"), offset=x[:1].clone())
    assert torch.equal(got.cpu(), want + x[:1].cpu())


def test_a_written_input(x, fake):
    def add(t: Tensor, much: float) -> None:
        t += much

    op = custom_op(add, mutates={"t"}, fake=(lambda t, much: None) if fake else None)
    want = x.cpu() + 2
    row = x[1]
    op(x, 2.0)
    assert torch.equal(x.cpu(), want) and torch.equal(row.cpu(), want[1])
    assert x._version == 1
    assert spmd.sharding_of(x).spec == spmd.P("x", "y")


def test_a_written_view(x, fake):
    def add(t: Tensor, much: float) -> None:
        t += much

    op = custom_op(add, mutates={"t"}, fake=(lambda t, much: None) if fake else None)
    want = x.cpu()
    want[1] += 2
    op(x[1], 2.0)
    assert torch.equal(x.cpu(), want)


def test_a_written_input_and_a_result(x, fake):
    def accumulate(total: Tensor, t: Tensor) -> Tensor:
        total += t
        return total.sum(0)

    op = custom_op(
        accumulate, mutates={"total"}, fake=(lambda total, t: t.new_empty(3)) if fake else None
    )
    total = torch.ones(4, 3).to("spmd")
    result = op(total, x)
    assert torch.equal(total.cpu(), x.cpu() + 1)
    assert torch.equal(result.cpu(), (x.cpu() + 1).sum(0))


def test_no_result(x, fake):
    seen = []

    def look(t: Tensor) -> None:
        seen.append(t.sum().item())

    op = custom_op(look, fake=(lambda t: None) if fake else None)
    op(x)
    spmd.sync(wait=True)
    assert seen == [66.0]


def test_a_gradient(x, fake):
    def cube(t: Tensor) -> Tensor:
        return t**3

    op = custom_op(cube, fake=torch.empty_like if fake else None)
    op.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x.requires_grad_()
    (op(x) * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), 6 * x.detach().cpu() ** 2)
    other = torch.ones(4, 3).to("spmd").requires_grad_()
    op(op(other)).sum().backward()
    assert other.grad.unique().tolist() == [9.0]


def test_a_shape_that_depends_on_values(x):
    def positive(t: Tensor) -> Tensor:
        return t[t > 4].clone()

    same(custom_op(positive), x - 1)


def test_an_error_of_the_implementation(x):
    def fail(t: Tensor) -> Tensor:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        custom_op(fail)(x).cpu()
    assert x.sum().item() == 66


def test_a_function_of_autograd(x):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, factor):
            ctx.save_for_backward(t)
            ctx.factor = factor
            return t**3 * factor, t.sum()

        @staticmethod
        def backward(ctx, g, h):
            (t,) = ctx.saved_tensors
            return g * 3 * t**2 * ctx.factor + h, None

    x.requires_grad_()
    a, b = Cube.apply(x, 2.0)
    (a.sum() + b).backward()
    assert torch.equal(x.grad.cpu(), 6 * x.detach().cpu() ** 2 + 1)


def test_a_function_of_autograd_that_writes(x):
    class AddOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.mark_dirty(t)
            return t.add_(1)

        @staticmethod
        def backward(ctx, g):
            return g * 5

    x.requires_grad_()
    y = x * 2
    assert AddOne.apply(y) is y
    y.sum().backward()
    assert x.grad.unique().tolist() == [10.0]


@pytest.fixture
def library():
    with torch.library._scoped_library(f"torch_spmd_library{next(NUMBERS)}", "FRAGMENT") as lib:
        yield lib


def defined(library, schema, function, key="CPU"):
    library.define(schema)
    name = schema.split("(")[0]
    library.impl(name, function, key)
    return getattr(getattr(torch.ops, library.ns), name)


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_ops_of_a_library(x, library, key):
    op = defined(library, "shifted(Tensor t, int[] by) -> Tensor", lambda t, by: t + sum(by), key)
    same(op, x, [1, 2])


def test_tensors_by_keyword_only(x, library):
    def scaled(parts, *, scale, offset=None):
        result = torch.cat(parts) * scale
        return result if offset is None else result + offset

    op = defined(
        library,
        "scaled(Tensor[] parts, *, Tensor scale, Tensor? offset=None) -> Tensor",
        scaled,
    )
    two = torch.tensor(2.0).to("spmd")
    want = torch.cat([x.cpu(), x.cpu()]) * 2
    assert torch.equal(op([x, x], scale=two).cpu(), want)
    assert torch.equal(op([x, x], scale=two, offset=x[0]).cpu(), want + x[0].cpu())


def test_an_op_of_a_library_that_writes(x, library):
    def scale(t, factor):
        return t.mul_(factor)

    op = defined(library, "scale_(Tensor(a!) t, float factor) -> Tensor(a!)", scale)
    want = x.cpu() * 2
    op(x, 2.0)
    assert torch.equal(x.cpu(), want)


def test_an_op_of_a_library_for_our_device(x, library):
    op = defined(library, "twice(Tensor t) -> Tensor", lambda t: t * 2, "PrivateUse1")
    assert torch.equal(op(x).cpu(), x.cpu() * 2)


def test_an_op_without_an_implementation(x, library):
    library.define("nothing(Tensor t) -> Tensor")
    with pytest.raises(NotImplementedError, match="nothing"):
        getattr(torch.ops, library.ns).nothing(x).cpu()
    assert x.sum().item() == 66


def test_a_users_op_in_a_training_step(mesh):
    def norm(t: Tensor) -> Tensor:
        return t / t.norm(dim=1, keepdim=True)

    op = custom_op(norm, fake=torch.empty_like)

    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        length = t.norm(dim=1, keepdim=True)
        return g / length - t * (g * t).sum(1, keepdim=True) / length**3

    op.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )

    def losses(device):
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 5).double().to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        if device == "spmd":
            spmd.mark_sharding(layer.weight, mesh, ("x", "y"))
        result = []
        for step in range(3):
            batch = torch.linspace(step, 3, 24, dtype=torch.float64).view(4, 6).sin().to(device)
            loss = op(layer(batch)).square().mul(torch.arange(5).to(device)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.item())
        return result

    assert losses("spmd") == pytest.approx(losses("cpu"), rel=1e-12)


def test_an_op_of_pytorch_without_a_rule_warns_if_it_is_not_small():
    code = """
    import torch, torch_spmd as spmd
    mesh = spmd.make_mesh((2,), ("x",))
    for size in (8, 128, 128):
        x = spmd.mark_sharding(torch.ones(size, 16).to("spmd"), mesh, ("x", None))
        torch.ops.aten._add_relu(x, x).cpu()
        print(size)
    """
    warnings = run_script(code, fresh=True).stderr
    said = r"aten::_add_relu.Tensor( at <string>:5)? has no sharding rule, so it runs unsharded on "
    assert len(re.findall(said, warnings)) == 1, warnings


def test_an_op_without_a_rule_gives_one_warning():
    code = """
    import torch, torch_spmd as spmd
    def twice(t: torch.Tensor) -> torch.Tensor:
        return t * 2
    name = "torch_spmd_tests::twice"
    op = torch.library.custom_op(name, twice, mutates_args=(), device_types="cpu")
    op.register_fake(torch.empty_like)
    mesh = spmd.make_mesh((2,), ("x",))
    for size in (4, 6):
        x = spmd.mark_sharding(torch.ones(size, 2).to("spmd"), mesh, ("x", None))
        for _ in range(2):
            (op(x) + 1).cpu()
    """
    warnings = run_script(code, fresh=True).stderr
    said = "torch_spmd_tests::twice has no sharding rule, so it runs unsharded"
    assert warnings.count(said) == 1, warnings
