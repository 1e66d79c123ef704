# SPDX-License-Identifier: Apache-2.0
"""Gradients to which micro-steps add are partial sums until a step reads them."""

import collections
import copy

import pytest
import torch
from micro_steps import end_micro_steps
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C

MESHES = {"dp": (4,), "fsdp": (4,), "tp": (2, 2)}


@pytest.fixture(autouse=True)
def leave_micro_steps():
    yield
    end_micro_steps()


def make_model(kind="dp", device="cpu"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24), nn.LayerNorm(24), nn.Linear(24, 12)
    ).double()
    model.to(device)
    if device == "cpu" or kind == "dp":
        return model
    mesh = mesh_of(kind)
    if kind == "fsdp":
        for p in model.parameters():
            spmd.mark_sharding(p, mesh, ("x",) + (None,) * (p.dim() - 1))
    else:
        spmd.mark_sharding(model[0].weight, mesh, ("y", None))
        spmd.mark_sharding(model[0].bias, mesh, ("y",))
        spmd.mark_sharding(model[2].weight, mesh, (None, "y"))
    return model


def mesh_of(kind):
    return spmd.make_mesh(MESHES[kind], ("x", "y")[: len(MESHES[kind])])


def batch(seed, device, kind):
    x = torch.randn(10, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if device == "cpu":
        return x
    return spmd.mark_sharding(x.to(device), mesh_of(kind), ("x", None))


def micro_step(model, seed, device, kind, parts=1):
    loss = model(batch(seed, device, kind)).square().mean() / parts
    loss.backward()
    return loss


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, weight_decay=0.1),
}


def train(kind, device, optimizer="adamw", to_none=True, between=None, counts=(3, 3, 1, 2, 4)):
    model = make_model(kind, device)
    steps = OPTIMIZERS[optimizer](model.parameters())
    seed = 0
    for parts in counts:
        steps.zero_grad(set_to_none=to_none)
        for _ in range(parts):
            micro_step(model, seed, device, kind, parts)
            seed += 1
            if between is not None:
                between(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        steps.step()
    return [t.detach().cpu() for p in model.parameters() for t in (p, p.grad)]


def check(*args, **kwargs):
    want, got = (
        train(args[0], "cpu", *args[1:], **kwargs),
        train(args[0], "spmd", *args[1:], **kwargs),
    )
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", MESHES)
def test_sharded_training_equals_unsharded_training(kind, optimizer, to_none):
    check(kind, optimizer, to_none)


# What a user may do with gradients between two micro-steps.
LOOKS = {
    "read": lambda p: p.grad.cpu(),
    "norm": lambda p: p.grad.norm().item(),
    "scaled": lambda p: p.grad.mul_(0.5),
    "clamped": lambda p: p.grad.copy_(p.grad.clamp(-1e-3, 1e-3)),
    "replaced": lambda p: setattr(p, "grad", p.grad * 2),
    "written": lambda p: p.grad.copy_(torch.ones(p.shape, dtype=p.dtype)),
    "a part written": lambda p: p.grad[0].fill_(1),
    "zeroed": lambda p: p.grad.zero_(),
    "a part zeroed": lambda p: p.grad.flatten()[::2].zero_(),
    "squared": lambda p: p.grad.square_(),
    "detached": lambda p: p.grad.detach_(),
    "data": lambda p: setattr(p.grad, "data", p.grad.data.clone()),
    "run so far": lambda p: spmd.sync(),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("kind", ["dp", "tp"])
def test_gradients_may_be_looked_at_and_changed_between_micro_steps(kind, look):
    def between(model):
        with torch.no_grad():
            for p in model.parameters():
                LOOKS[look](p)

    check(kind, between=between)


def reduced(programs):
    """Bytes on the wire of gradients, by program; those of the loss and norms are fewer."""
    return [sum(row[5] for row in program.collectives() if row[5] > 256) for program in programs]


@pytest.mark.parametrize("to_none", [True, False])
def test_data_parallel_gradients_are_reduced_once(to_none):
    model = make_model("dp", "spmd")
    steps = torch.optim.AdamW(model.parameters(), 1e-2)
    held = sum(p.numel() for p in model.parameters()) * 8
    for iteration in range(4):
        _C.forget_programs()
        steps.zero_grad(set_to_none=to_none)
        for k in range(4):
            micro_step(model, 4 * iteration + k, "spmd", "dp", 4)
        micro = reduced(_C.programs())
        steps.step()
        spmd.sync(wait=True)
        every = reduced(_C.programs())
        assert sum(micro) == 0
        assert sum(every) == 2 * held * 3 // 4  # one all-reduce over four devices


def rows_of(kind):
    """Collectives of weights and gradients, of a micro-step with many rows and of the step."""
    model = make_model("fsdp", "spmd")
    if kind == "marked":
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
            spmd.mark_sharding(p.grad, mesh_of("fsdp"), ("x",) + (None,) * (p.dim() - 1))
    steps = torch.optim.AdamW(model.parameters(), 1e-2)
    x = spmd.mark_sharding(torch.randn(4096, 24).double().to("spmd"), mesh_of("fsdp"), ("x", None))
    for _ in range(3):
        _C.forget_programs()
        steps.zero_grad(set_to_none=kind != "marked")
        for _ in range(3):
            model(x).square().mean().backward()
        spmd.sync(wait=True)
        micro = collections.Counter(r[0] for p in _C.programs() for r in p.collectives())
        _C.forget_programs()
        steps.step()
        spmd.sync(wait=True)
    step = collections.Counter(r[0] for p in _C.programs() for r in p.collectives())
    return micro, step


def test_fully_sharded_gradients_are_scattered_once():
    micro, step = rows_of("free")
    assert "reduce_scatter" not in micro
    assert step == {"reduce_scatter": 1}


def test_marked_gradients_are_scattered_in_each_micro_step():
    """For users without memory for whole partial sums."""
    micro, step = rows_of("marked")
    assert micro["reduce_scatter"] >= 1
    assert not step


def accumulated():
    model = make_model("dp", "spmd")
    for k in range(3):
        micro_step(model, k, "spmd", "dp")
    want = make_model("dp", "cpu")
    for k in range(3):
        micro_step(want, k, "cpu", "dp")
    grad, expected = model[0].weight.grad, want[0].weight.grad
    return model, grad, expected


def test_the_sharding_of_a_gradient_names_its_unreduced_axes():
    _, grad, expected = accumulated()
    sharding = spmd.sharding_of(grad)
    assert tuple(sharding.unreduced) == ("x",)
    assert tuple(sharding.spec) == (None, None)
    torch.testing.assert_close(spmd.full_tensor(grad).cpu(), expected)


def test_unreduced_gradients_are_copied_saved_marked_and_sharded_as_sums(tmp_path):
    model, grad, expected = accumulated()
    torch.testing.assert_close(copy.deepcopy(grad).cpu(), expected)
    torch.save(grad, tmp_path / "grad.pt")
    torch.testing.assert_close(torch.load(tmp_path / "grad.pt").cpu(), expected)
    torch.testing.assert_close(spmd.reshard(grad, mesh_of("dp"), ("x", None)).cpu(), expected)
    torch.testing.assert_close(torch.from_numpy(grad.cpu().numpy()), expected)
    for shard in spmd.local_shards(grad):
        torch.testing.assert_close(shard.data.cpu(), expected[shard.index])
    spmd.mark_sharding(grad, mesh_of("dp"), (None, "x"))
    torch.testing.assert_close(grad.cpu(), expected)
    micro_step(model, 3, "spmd", "dp")
    assert grad.cpu().isfinite().all()


def test_gradients_that_are_returned_end_no_program():
    """A penalty on a gradient is one program, among micro-steps, too."""
    accumulated()
    model, x = make_model("dp", "spmd"), batch(0, "spmd", "dp").requires_grad_()
    spmd.sync(wait=True)
    _C.forget_programs()
    loss = model(x).square().mean()
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + grad.square().sum()).backward()
    spmd.sync(wait=True)
    assert len(_C.programs()) == 1
