# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own optimizer samples (`optim_db`) on `spmd`, with and without sharding, against the
CPU."""

import copy
import functools
import io
import warnings

import pytest
import torch
from op_checks import hold, settle
from op_exceptions import EXCEPTIONS
from op_outcomes import leaf_difference
from op_samples import random_cut
from torch.testing._internal.common_optimizers import optim_db

# Not SparseAdam: there are no sparse gradients on `spmd`.
OPTIMIZERS = {info.name: info for info in optim_db if not info.only_supports_sparse_grads}

# Rounding grows tenfold with each of the iterations of LBFGS, of which a step has twenty.
STEPS, STEPS_OF = 5, {"LBFGS": 2}

# The products of Muon's iteration are in bfloat16.
ATOL_OF = {"Muon": 5e-3}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def configurations(info):
    """The keyword arguments for the CPU and for `spmd`, what they are about, and a dtype."""
    ways = [{way: True} for way in ("foreach", "fused") if way in info.supported_impls]
    if "foreach" in info.supported_impls:
        ways.append({"foreach": False})
    for sample in info.optim_inputs_func("cpu"):
        for way in ways or [{}]:
            if not ("fused" in way and "cpu" not in info.supports_fused_on):
                kwargs = sample.kwargs | way
                yield kwargs, kwargs, f"{sample.desc} {way}", torch.float64
    for sample in info.optim_inputs_func("cuda"):
        if sample.kwargs.get("capturable"):  # not on the CPU; counts steps in float32
            kwargs = sample.kwargs | {"foreach": False}
            yield kwargs | {"capturable": False}, kwargs, sample.desc, torch.float32


class Model(torch.nn.Module):
    """Parameters of several ranks, or matrices alone for Muon."""

    def __init__(self, matrices_alone, dtype):
        super().__init__()
        torch.manual_seed(0)
        bias = not matrices_alone
        self.first = torch.nn.Linear(5, 6, bias=bias, dtype=dtype)
        self.last = torch.nn.Linear(6, 4, bias=bias, dtype=dtype)
        if not matrices_alone:
            self.scale = torch.nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x):
        y = self.last(torch.tanh(self.first(x)))
        return y * self.scale if hasattr(self, "scale") else y


def groups(info, model):
    """Two groups of parameters, the second with its own learning rate."""
    parameters = list(model.parameters())
    if not info.supports_param_groups:
        return parameters
    return [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}]


def train(info, kwargs, device, cut=None, save=False, dtype=torch.float64):
    """The parameters after some steps, on the host; `save`: half-way through a file."""
    model = Model(info.name == "Muon", dtype).to(device)
    if cut is not None:
        cut.mark(list(model.parameters()))
    optimizer = info.optim_cls(groups(info, model), **copy.deepcopy(kwargs))
    generator = torch.Generator().manual_seed(1)
    steps = STEPS_OF.get(info.name, STEPS)
    for step in range(steps):
        if save and step == steps // 2:
            state = saved(optimizer.state_dict())
            optimizer = info.optim_cls(groups(info, model), **copy.deepcopy(kwargs))
            optimizer.load_state_dict(state)
        x, y = (torch.randn(8, n, dtype=dtype, generator=generator).to(device) for n in (5, 4))
        optimizer.step(functools.partial(loss_of, model, x, y))
    return [p.detach().cpu() for p in model.parameters()]


def loss_of(model, x, y):
    model.zero_grad()
    loss = (model(x) - y).abs().pow(2).mean()
    loss.backward()
    return loss


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def compare(info, on_cpu, on_spmd, about, dtype):
    """What is wrong with a configuration: a line for the unsharded run and one for the sharded
    run."""
    want = train(info, on_cpu, "cpu", dtype=dtype)
    ranks, atol = [p.dim() for p in want], ATOL_OF.get(info.name, 0)
    for cut, save in ((None, False), (random_cut(ranks, 0), False), (random_cut(ranks, 1), True)):
        try:
            got = train(info, on_spmd, "spmd", cut, save, dtype)
            found = [leaf_difference(a, b, atol=atol) for a, b in zip(got, want)]
            what = next((f"differs in a parameter: {each}" for each in found if each), None)
        except Exception as error:
            what = f"raises {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
        if what:
            settle()
            yield f"{about}, {cut or 'whole'}{', saved' if save else ''}: {what}"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_give_the_cpus_results(name):
    info = OPTIMIZERS[name]
    cases = list(configurations(info))
    wrong = [line for case in cases for line in compare(info, *case)]
    hold(name, wrong, 3 * len(cases), EXCEPTIONS["optimizer"])


TAKE_TENSORS = [n for n, info in OPTIMIZERS.items() if "fused" in info.supported_impls]


@pytest.mark.parametrize("way", ["fused", "neither"])
@pytest.mark.parametrize("name", TAKE_TENSORS)
def test_a_learning_rate_in_a_tensor(name, way):
    info = OPTIMIZERS[name]
    kwargs = {"foreach": False, "fused": way == "fused", "lr": 0.01}
    wrong = []
    for device in ("cpu", "spmd"):
        ours = kwargs | {"lr": torch.tensor(0.01, dtype=torch.float64, device=device)}
        wrong += compare(info, kwargs, ours, f"{way}, on {device}", torch.float64)
    hold(name, wrong, 6, EXCEPTIONS["optimizer"])


@pytest.mark.parametrize("name", [n for n, info in OPTIMIZERS.items() if info.supports_complex])
def test_complex_parameters(name):
    kwargs = {"lr": 0.01}
    wrong = list(compare(OPTIMIZERS[name], kwargs, kwargs, "complex", torch.complex128))
    hold(name, wrong, 3, EXCEPTIONS["optimizer"])
