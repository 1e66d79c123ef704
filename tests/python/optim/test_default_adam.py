# SPDX-License-Identifier: Apache-2.0
"""Adam's and AdamW's default step is one record; bits, states and versions are the CPU's."""

import copy
import functools
import importlib
import itertools
import warnings
from typing import ClassVar

import optimizer_steps
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_spmd as spmd
from torch_spmd import _C

SHAPES = [(300, 256), (7, 5), (), (0, 3), (33,)]
OPTIONS = {
    "plain": {"weight_decay": 0},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
}


@pytest.fixture
def by_lists(monkeypatch):
    """PyTorch's own way, which ours must be indistinguishable from."""
    module = importlib.import_module("torch.optim.adam")
    return lambda: monkeypatch.setattr(
        module, "_multi_tensor_adam", module._multi_tensor_adam.__wrapped__
    )


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


def records_of(step):
    spmd.sync()
    before = _C.statistics()["records"]
    step()
    return _C.statistics()["records"] - before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_the_bits_are_those_of_the_cpu(make, options, dtype):
    results = []
    for device in ("spmd", "cpu"):
        params = parameters(device, dtype)
        results.append(take_steps(make(params, **options), params, (1e-2, 1e-2, 3e-3, 1)))
    assert_same(*results)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_the_program_is_that_of_the_lists(make, options, by_lists):
    """Cut parameters, too: the same bits, the same calls of the same ops, the same memory."""
    mesh = spmd.make_mesh((8,), ("model",))
    seen = []
    for prepare in (lambda: None, by_lists):
        prepare()
        params = parameters("spmd", mesh=mesh)
        optimizer = make(params, **options)
        result = take_steps(optimizer, params, (1e-2, 3e-3))
        for p in params:
            p.grad = torch.ones_like(p)
        spmd.sync(wait=True)
        optimizer.step()
        spmd.sync(wait=True)
        calls = sorted(optimizer_steps.calls_of_last_program())
        text = str(spmd.debug.print_program()).splitlines()
        in_place = sum("updates(0)" in line for line in text)
        seen.append((result, calls, in_place, spmd.debug.memory().peak_bytes))
    (ours, calls, in_place, peak), (theirs, their_calls, their_in_place, their_peak) = seen
    assert_same(ours, theirs)
    assert calls == their_calls and len(calls) >= 6 * len(SHAPES)
    assert in_place == their_in_place > 0
    assert peak <= their_peak


def test_a_step_is_one_record_and_comes_again():
    params = parameters("spmd")
    optimizer = torch.optim.AdamW(params)
    take_steps(optimizer, params, (1e-2, 1e-2))
    for rate in (1e-2, 5e-3):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.param_groups[0]["lr"] = rate
        before = _C.statistics()
        assert records_of(optimizer.step) == 1
        spmd.sync(wait=True)
    optimizer.zero_grad()
    spmd.sync(wait=True)
    assert _C.statistics()["compiles"] <= before["compiles"] + 1


def test_nothing_shows_in_groups_and_states():
    states = []
    for device in ("spmd", "cpu"):
        params = parameters(device)
        optimizer = torch.optim.AdamW(params)
        take_steps(optimizer, params, (1e-2,))
        state = optimizer.state_dict()
        steps = [s.pop("step") for s in state["state"].values()]
        assert all(t.device.type == "cpu" and t.dtype == torch.float32 for t in steps)
        states.append((state["param_groups"], [float(t) for t in steps]))
    assert states[0] == states[1]


def test_a_state_goes_on_elsewhere_and_comes_back():
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


# --- memory that tensors share ---


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("apart", [0, 3, 4], ids=["tied", "overlapping", "disjoint"])
def test_parameters_that_share_memory_are_stepped_in_turn(make, apart):
    decaying = functools.partial(make, weight_decay=0.1)
    got, want = (
        optimizer_steps.buffer_of_two(device, decaying, apart, steps=3)
        for device in ("spmd", "cpu")
    )
    assert torch.equal(got, want)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("whose", [0, 1], ids=["its own", "another's"])
def test_a_gradient_that_is_a_parameter(options, whose):
    """Decay shrinks it before it is read."""

    def stepped(device):
        params = [torch.nn.Parameter(torch.tensor(v).to(device)) for v in ([1.0, -2], [3.0, 4])]
        optimizer = torch.optim.AdamW(params, lr=0.1, **options)
        for _ in range(3):
            for k, p in enumerate(params):
                p.grad = params[(k + whose) % 2].detach()
            optimizer.step()
        return [p.detach().cpu() for p in params]

    for ours, theirs in zip(stepped("spmd"), stepped("cpu"), strict=True):
        assert torch.equal(ours, theirs)


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


# --- what goes PyTorch's way ---


def stepped_by(device, prepare=None, **options):
    """Parameters after two steps; `prepare(optimizer, params)` before the second."""
    params = parameters(device)
    optimizer = torch.optim.AdamW(params, **options)
    take_steps(optimizer, params, (1e-2,))
    if prepare is not None:
        prepare(optimizer, params)
    return take_steps(optimizer, params, (1e-2,), seed=2)[0]


def let_counters_differ(optimizer, params):
    optimizer.state[params[1]]["step"] += 3


def count_in_doubles(optimizer, params):
    for p in params:
        optimizer.state[p]["step"] = optimizer.state[p]["step"].double()


def count_in_one_tensor(optimizer, params):
    for p in params:
        optimizer.state[p]["step"] = optimizer.state[params[0]]["step"]


def decay_nothing_of_averages(optimizer, params):
    optimizer.param_groups[0]["betas"] = (0.0, 0.0)


PREPARED = [let_counters_differ, count_in_doubles, count_in_one_tensor, decay_nothing_of_averages]


@pytest.mark.parametrize("prepare", PREPARED)
def test_unusual_states(prepare, by_lists):
    results = [stepped_by("spmd", prepare)]
    by_lists()
    results.append(stepped_by("spmd", prepare))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


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


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Seen(torch.Tensor):
    """Notes the functions that it comes by."""

    names: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.names.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "step"])
def test_a_subclass_sees_what_is_done_to_it(name):
    params = parameters("spmd")
    optimizer = torch.optim.AdamW(params)
    take_steps(optimizer, params, (1e-2,))
    state = optimizer.state[params[1]]
    state[name] = state[name].as_subclass(Seen)
    Seen.names.clear()
    optimizer.step()
    assert any(seen.startswith("_foreach_") for seen in Seen.names)


@pytest.mark.parametrize("device", ["spmd", "cpu"])
def test_the_function_is_called_as_pytorchs(device):
    """All lists by position, and what scales gradients, too."""
    step = importlib.import_module("torch.optim.adam")._multi_tensor_adam
    tensors = [[torch.ones(3).to(device)] for _ in range(4)]
    options = {
        "amsgrad": False, "has_complex": False, "beta1": 0.9, "beta2": 0.99, "lr": 0.1,
        "weight_decay": 0.0, "eps": 0.0, "maximize": False, "capturable": False,
        "differentiable": False, "decoupled_weight_decay": False,
    }  # fmt: skip
    with torch.no_grad():
        step(*tensors, [], [torch.tensor(0.0)], None, None, **options)
    # Averages stay 1; by the first step's corrections they are 1 / 0.1 and 1 / 0.01.
    assert tensors[0][0].tolist() == pytest.approx([1 - 0.1 * 10 / 10] * 3)
    with torch.no_grad(), pytest.raises(AssertionError, match="grad_scale"):
        step(*tensors, [], [torch.tensor(1.0)], torch.ones(()), None, **options)


@pytest.mark.parametrize(
    "mode, name", [(Ops, "aten::_foreach_lerp_.Scalar"), (Functions, "_foreach_lerp_")]
)
def test_modes_see_pytorchs_ops(mode, name):
    params = parameters("spmd")
    optimizer = torch.optim.AdamW(params)
    take_steps(optimizer, params, (1e-2,))
    with mode() as seen:
        optimizer.step()
    assert name in seen.names


def test_a_default_device_is_no_mode_that_looks():
    params = parameters("spmd")
    optimizer = torch.optim.AdamW(params)
    take_steps(optimizer, params, (1e-2,))
    with torch.device("spmd"):
        assert records_of(optimizer.step) == 1


def test_parameters_of_two_devices():
    params = parameters("spmd")[:2] + parameters("cpu")[2:]
    got = take_steps(torch.optim.AdamW(params), params, (1e-2, 1e-2))[0]
    params = parameters("cpu")
    want = take_steps(torch.optim.AdamW(params), params, (1e-2, 1e-2))[0]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_step_that_fails_is_not_counted():
    row = torch.ones(3).to("spmd")
    params = [torch.nn.Parameter(row.expand(2, 3)), torch.nn.Parameter(torch.ones(2).to("spmd"))]
    optimizer = torch.optim.AdamW(params)
    for p in params:
        p.grad = torch.ones(p.shape).to("spmd")
        optimizer.state[p] = {
            "step": torch.tensor(2.0),
            "exp_avg": torch.zeros(p.shape).to("spmd"),
            "exp_avg_sq": torch.zeros(p.shape).to("spmd"),
        }
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in params] == [2.0, 2.0]
    assert params[1].tolist() == [1.0, 1.0]


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
