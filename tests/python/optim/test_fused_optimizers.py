# SPDX-License-Identifier: Apache-2.0
"""Fused Adam is recorded once and runs PyTorch's own kernel on each tile."""

import itertools
from functools import partial

import pytest
import torch
from optimizer_steps import buffer_of_two, calls_of_last_program, parameters
from reported import reported

import torch_spmd as spmd

SHAPES = [(300, 256), (7, 5), (), (0, 3)]  # the first: several parts where it is copied


def steps(device, make, dtype=torch.float32, mesh=None, rates=(1e-2, 1e-2, 3e-3), kept=False):
    """Parameters and state after one step per rate, with gradients that do not depend on them.

    `kept`: their old values are held, too, so that nothing can be written in place.
    """
    snapshots = []
    generator = torch.Generator().manual_seed(0)
    params = parameters(SHAPES, device, generator, dtype, mesh)
    optimizer = make(params)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype).to(device)
            if kept:
                snapshots += [t.detach().clone() for t in (p, *optimizer.state[p].values())]
        optimizer.step()
    states = [optimizer.state[p] for p in params]
    return [[p.detach().cpu(), *(s[k].cpu() for k in sorted(s))] for p, s in zip(params, states)]


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1, fused=True)


def adam(params):
    return torch.optim.Adam(params, lr=1e-2, weight_decay=0.1, maximize=True, fused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [adamw, adam])
@pytest.mark.parametrize("kept", [False, True], ids=["in place", "kept"])
def test_the_bits_are_those_of_the_fused_kernel(make, dtype, kept):
    got, want = (steps(device, make, dtype, kept=kept) for device in ("spmd", "cpu"))
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("make", [adamw, adam])
def test_sharded_parameters_get_the_same_step(make):
    """The kernel rounds the last few elements of a tensor (here, of a tile) differently."""
    mesh = spmd.make_mesh((8,), ("model",))
    got, want = steps("spmd", make, mesh=mesh), steps("cpu", make)
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_another_learning_rate_compiles_nothing():
    steps("spmd", adamw)
    before = reported()["compiles"]
    steps("spmd", adamw, rates=(1e-2, 5e-3, 0.0, 1.0))
    assert reported()["compiles"] == before


def test_each_parameter_is_one_call():
    params = [torch.nn.Parameter(torch.ones(4, 3).to("spmd")) for _ in range(5)]
    optimizer = adamw(params)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        spmd.sync()
        optimizer.step()
    calls = calls_of_last_program()
    assert calls.count("spmd::adam") == 5
    assert "aten::sqrt" not in calls


def test_cases_that_the_fused_kernel_lacks_are_decomposed():
    """The largest average so far is kept: other ops, the same numbers."""

    def amsgrad(params):
        return torch.optim.AdamW(params, lr=1e-2, amsgrad=True, fused=True)

    got, want = steps("spmd", amsgrad), steps("cpu", amsgrad)
    assert "spmd::adam" not in calls_of_last_program()
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


# --- what gradients and parameters may be ---


def gradient_of(make, device, shape=(6, 4), kept=False):
    """A parameter after two steps with the gradient that `make(p)` gives."""
    values = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    p = torch.nn.Parameter(values.to(device))
    optimizer = torch.optim.AdamW([p], lr=0.1, fused=True)
    snapshots = []
    for _ in range(2):
        p.grad = None
        make(p).backward()
        if kept:  # a value that something else holds cannot be written in place
            snapshots.append([p.detach().clone(), *(t.clone() for t in state_of(optimizer, p))])
        # Eager's kernel passes over strides.
        p.grad = p.grad if device == "spmd" else p.grad.contiguous()
        optimizer.step()
    return p.detach().cpu()


def state_of(optimizer, p):
    return [t for t in optimizer.state[p].values() if t.dim() == 2]


GRADIENTS = {
    "expanded": lambda p: p.sum(),
    "a column": lambda p: (torch.stack([p, 2 * p], 2)[:, :, 1] * p.detach()).sum(),
    "transposed": lambda p: (p.t() * p.detach().t().contiguous().cos()).sum(),
    "stacked": lambda p: (torch.stack([p, p.exp()], 1) * 3).sum(),
    "complex": lambda p: torch.view_as_real(torch.complex(p, 2 * p) * (1 + 1j)).sum(),
}


@pytest.mark.parametrize("kept", [False, True], ids=["in place", "kept"])
@pytest.mark.parametrize("make", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_with_strides(make, kept):
    torch.testing.assert_close(gradient_of(make, "spmd", kept=kept), gradient_of(make, "cpu"))


SGD = partial(torch.optim.SGD, lr=0.1, fused=True)
ADAMW = partial(torch.optim.AdamW, lr=0.1, fused=True)


@pytest.mark.parametrize("make", [SGD, ADAMW])
def test_a_gradient_that_is_the_parameter(make):
    def stepped(device):
        p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]).to(device))
        optimizer = make([p])
        for _ in range(3):
            p.grad = p.detach()
            optimizer.step()
        return p.detach().cpu()

    torch.testing.assert_close(stepped("spmd"), stepped("cpu"))


def test_a_gradient_may_be_expanded_and_is_not_written():
    p = torch.nn.Parameter(torch.full((4, 3), 11.0).to("spmd"))
    p.grad = torch.ones(()).to("spmd").expand(4, 3)
    SGD([p]).step()
    assert p.grad.cpu().unique().tolist() == [1.0]
    assert p.detach().cpu().unique().tolist() == pytest.approx([10.9])


@pytest.mark.parametrize("make", [SGD, ADAMW])
@pytest.mark.parametrize("apart", [0, 3, 4], ids=["tied", "overlapping", "disjoint"])
def test_parameters_that_share_memory_are_stepped_in_turn(make, apart):
    got, want = (buffer_of_two(device, make, apart, steps=2) for device in ("spmd", "cpu"))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (5,)], ids=str)
def test_scaled_gradients_in_half_precision(shape, dtype):
    """Parts are computed in f32, as in PyTorch's kernel; in f16 an eps of 1e-8 is 0."""

    def stepped(device):
        p = torch.nn.Parameter(torch.full(shape, 1.5, dtype=dtype).to(device))
        optimizer = ADAMW([p], amsgrad=True)
        optimizer.grad_scale = torch.tensor(2.0).to(device)
        optimizer.found_inf = torch.tensor(0.0).to(device)
        for scale in (0.5, 1e-6, 0.0):
            p.grad = torch.full(shape, scale, dtype=dtype).to(device)
            optimizer.step()
        return p.detach().cpu(), p.grad.cpu()

    for ours, theirs in zip(stepped("spmd"), stepped("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs)


# --- what is refused ---


def direct(**changed):
    def tensors(*shapes):
        return [torch.ones(s).to("spmd") for s in shapes]

    lists = {
        "self": tensors((2, 3), (4,)),
        "grads": tensors((2, 3), (4,)),
        "exp_avgs": tensors((2, 3), (4,)),
        "exp_avg_sqs": tensors((2, 3), (4,)),
        "max_exp_avg_sqs": [],
        "state_steps": tensors((), ()),
    }
    lists |= changed
    torch._fused_adamw_(
        *lists.values(),
        **dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8),
        **dict(amsgrad=False, maximize=False),
    )


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"grads": []}, RuntimeError, r"Expected grads.size\(\) == n_tensors"),
        ({"exp_avgs": [torch.ones(2, 3)]}, RuntimeError, r"Expected exp_avgs.size\(\)"),
        ({"state_steps": []}, RuntimeError, r"Expected state_steps.size\(\)"),
        ({"max_exp_avg_sqs": [torch.ones(4)] * 2}, RuntimeError, r"max_exp_avg_sqs.size\(\) == 0"),
        ({"grads": [torch.ones(2, 3), torch.ones(5)]}, RuntimeError, r"grads\[1\] has sizes \[5\]"),
        (
            {"exp_avgs": [torch.ones(2, 3).double()] * 2},
            RuntimeError,
            "scalar type Float but found",
        ),
        (
            {"state_steps": [torch.ones(2)] * 2},
            RuntimeError,
            r"state_steps\[0\] must be one number",
        ),
        ({"self": [torch.ones(2, 3).long()] * 2}, NotImplementedError, "fused_adam_kernel.*Long"),
    ],
)
def test_a_malformed_step_is_refused_at_its_line(changed, error, words):
    pending = torch.ones(3).to("spmd") + 1
    with pytest.raises(error, match=words):
        direct(**{name: [t.to("spmd") for t in ts] for name, ts in changed.items()})
    assert pending.tolist() == [2.0] * 3


def test_an_error_of_the_compiler_says_what_was_lost():
    """The functional op is not checked at its line; its lists do not match."""
    given = torch.ones(3).to("spmd")
    given.add_(1)
    spmd.sync(wait=True)
    given.add_(1)
    made = given * 2
    lists = [torch.ones(3).to("spmd") for _ in range(3)]
    options = dict(weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0)
    flags = dict(nesterov=False, maximize=False, is_first_step=False)
    bad = torch.ops.aten._fused_sgd(lists[:2], lists[2:], [], **options, **flags)
    with pytest.raises(ValueError, match="list 1 has 1 tensors for 2 parameters"):
        made.cpu()
    with pytest.raises(ValueError, match="lost"):
        made.cpu()
    with pytest.raises(ValueError, match="lost"):
        bad[0][0].cpu()
    assert given.tolist() == [2.0] * 3  # as it was


OF_ADAM = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False)
OF_ADAM["maximize"] = False
OF_ADAGRAD = dict(lr=0.1, lr_decay=0.0, weight_decay=0.0, eps=1e-8, maximize=False)
OF_SGD = dict(weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False)
OF_SGD |= dict(maximize=False, is_first_step=False)


@pytest.mark.parametrize(
    ("op", "lists", "options", "words"),
    [
        ("_fused_adam", (2, 1, 2, 2, 0, 2), OF_ADAM, "list 1 has 1 tensors for 2 parameters"),
        ("_fused_adam", (2, 2, 2, 2, 0, 1), OF_ADAM, "list 5 has 1 tensors for 2 parameters"),
        ("_fused_adagrad", (2, 2, 1, 2), OF_ADAGRAD, "list 2 has 1 tensors for 2 parameters"),
        ("_fused_sgd", (2, 2, 1), OF_SGD, "list 2 has 1 tensors for 2 parameters"),
        ("_fused_sgd", (2, 2, 0), OF_SGD, "list 2 has 0 tensors for 2 parameters"),
    ],
)
def test_a_function_of_lists_that_differ_in_length_is_refused(op, lists, options, words):
    """All tensors are of one shape, so that reading one of another list would go unnoticed."""
    given = [[torch.ones(()).to("spmd") for _ in range(count)] for count in lists]
    results = getattr(torch.ops.aten, op)(*given, **options)
    with pytest.raises(ValueError, match=words):
        results[0][0].cpu()
