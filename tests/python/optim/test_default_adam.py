# SPDX-License-Identifier: Apache-2.0
"""Adam's and AdamW's default step, which PyTorch takes by ops on lists: bits, states and versions
are the CPU's."""

import copy
import itertools
import warnings

import optimizer_steps
import pytest
import torch
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C

SHAPES = [(300, 256), (7, 5), (), (0, 3), (33,)]
OPTIONS = {
    "plain": {"weight_decay": 0},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
}


def parameters(device, dtype=torch.float32, mesh=None):
    generator = torch.Generator().manual_seed(0)
    return optimizer_steps.parameters(SHAPES, device, generator, dtype, mesh)


def take_steps(optimizer, params, rates, seed=1):
    """Steps by gradients that do not depend on anything, and what is left on the host."""
    generator = torch.Generator().manual_seed(seed)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        for p in params:
            grad = torch.randn(p.shape, generator=generator)
            p.grad = grad.to(p.dtype).to(p.device)
        optimizer.step()
    return outcome(optimizer, params)


def outcome(optimizer, params):
    """Of each parameter and all of its state: the values, and how often they were written."""
    tensors = [
        t for p in params for t in (p.detach(), *(v for _, v in sorted(optimizer.state[p].items())))
    ]
    return [t.cpu() for t in tensors], [t._version for t in tensors]


def assert_same(got, want):
    for ours, theirs in zip(got[0], want[0], strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    assert got[1] == want[1]


def ops_of(step):
    """The ops of the program of `step`, which is compiled."""
    spmd.sync()
    before = reported()["compiles"]
    step()
    spmd.sync()
    assert reported()["compiles"] == before + 1
    return spmd.debug.explain_compile().rows[-1].ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_the_bits_are_those_of_the_cpu(make, options, dtype):
    results = []
    for device in ("spmd", "cpu"):
        params = parameters(device, dtype)
        results.append(take_steps(make(params, **options), params, (1e-2, 1e-2, 3e-3, 1)))
    assert_same(*results)


def test_a_step_is_a_few_ops_on_lists_and_comes_again():
    """Another rate compiles nothing."""
    params = parameters("spmd")
    optimizer = torch.optim.AdamW(params)
    take_steps(optimizer, params, (1e-2,))  # which makes the state
    _C.forget_programs()  # of steps of other tests
    for p in params:
        p.grad = torch.ones_like(p)
    assert ops_of(optimizer.step) < 3 * len(SHAPES)
    take_steps(optimizer, params, (1e-2,))
    before = reported()["compiles"]
    take_steps(optimizer, params, (1e-2, 5e-3, 2e-3))
    spmd.sync(wait=True)
    assert reported()["compiles"] == before


def test_a_state_is_loaded_on_the_cpu_and_back():
    """The state of a run on the CPU is loaded, and the other way round."""
    on_cpu = parameters("cpu")
    first = torch.optim.AdamW(on_cpu)
    take_steps(first, on_cpu, (1e-2, 1e-2))
    params = [torch.nn.Parameter(p.detach().to("spmd")) for p in on_cpu]
    optimizer = torch.optim.AdamW(params)
    optimizer.load_state_dict(copy.deepcopy(first.state_dict()))
    ours = take_steps(optimizer, params, (1e-2, 1e-3), seed=2)[0]
    back = [torch.nn.Parameter(p.detach().cpu()) for p in params]
    third = torch.optim.AdamW(back)
    third.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    theirs = take_steps(first, on_cpu, (1e-2, 1e-3), seed=2)[0]
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    a = take_steps(third, back, (1e-2,), seed=3)[0]
    b = take_steps(first, on_cpu, (1e-2,), seed=3)[0]
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_gradient_that_is_expanded_or_transposed():
    def stepped(device):
        p = torch.nn.Parameter(torch.arange(12.0).view(4, 3).to(device))
        optimizer = torch.optim.AdamW([p], lr=0.1)
        p.grad = torch.full((), 2.0).to(device).expand(4, 3)
        optimizer.step()
        p.grad = torch.arange(12.0).view(3, 4).to(device).t()
        optimizer.step()
        return p.detach().cpu()

    assert torch.equal(stepped("spmd"), stepped("cpu"))


def stepped_by(device, prepare=None, **options):
    """Parameters after two steps; `prepare(optimizer, params)` before the second."""
    params = parameters(device)
    optimizer = torch.optim.AdamW(params, **options)
    take_steps(optimizer, params, (1e-2,))
    if prepare is not None:
        prepare(optimizer, params)
    return take_steps(optimizer, params, (1e-2,), seed=2)[0]


def test_a_parameter_that_is_given_twice():
    """It is stepped twice, and so is its counter."""

    def stepped(device):
        a, b = (torch.nn.Parameter(torch.tensor(v).to(device)) for v in ([1.0, -2], [3.0, 4]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = torch.optim.AdamW([a, b, a], lr=0.1)
        for _ in range(3):
            for p in (a, b):
                p.grad = p.detach() + 1
            optimizer.step()
        return outcome(optimizer, [a, b])[0]

    got, want = stepped("spmd"), stepped("cpu")
    assert [float(t) for t in got[3::4]] == [float(t) for t in want[3::4]] == [6.0, 3.0]


def test_counters_of_the_device():
    """As a fused optimizer's state has them."""

    def move(optimizer, params):
        for p in params:
            optimizer.state[p]["step"] = optimizer.state[p]["step"].to(p.device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = stepped_by("spmd", move), stepped_by("cpu")
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_parameters_of_two_devices():
    params = parameters("spmd")[:2] + parameters("cpu")[2:]
    got = take_steps(torch.optim.AdamW(params), params, (1e-2, 1e-2))[0]
    params = parameters("cpu")
    want = take_steps(torch.optim.AdamW(params), params, (1e-2, 1e-2))[0]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_inference_tensors_are_refused_as_on_the_cpu():
    words = []
    for device in ("spmd", "cpu"):
        with torch.inference_mode():
            p = torch.nn.Parameter(torch.ones(3).to(device), requires_grad=False)
        p.grad = torch.ones(3).to(device)
        with pytest.raises(RuntimeError) as error:
            torch.optim.AdamW([p]).step()
        words.append(str(error.value).splitlines()[0])
    assert words[0] == words[1] and "inference" in words[0].lower()


def test_saved_tensors_know_that_a_step_wrote_them():
    p = torch.nn.Parameter(torch.ones(3).to("spmd"))
    optimizer = torch.optim.AdamW([p])
    loss = (p * p).sum()
    p.grad = torch.ones_like(p)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_groups_have_their_own_numbers():
    def stepped(device):
        params = parameters(device)
        optimizer = torch.optim.AdamW(
            [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "weight_decay": 0.0}]
        )
        return take_steps(optimizer, params, itertools.repeat(0.02, 3))

    assert_same(stepped("spmd"), stepped("cpu"))
