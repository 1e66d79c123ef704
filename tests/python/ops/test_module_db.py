# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own module samples (`module_db`) on `spmd`: forward, backward, states and copies.

`--full-ops` takes every sample; without it a few of each module.
"""

import copy
import io
import warnings

import pytest
import torch
from op_checks import hold, settle
from op_exceptions import EXCEPTIONS
from op_outcomes import Draws, Outcome, difference, on_host, random_like
from op_samples import evenly, few_cuts, tensors_of
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_map

import torch_spmd as spmd

MODULES = {info.formatted_name: info for info in module_db}
SAMPLES = 4  # of each module
MODES = [
    (name, training)
    for name, info in MODULES.items()
    for training in ((True, False) if info.train_and_eval_differ else (True,))
]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def samples(name, training, full_ops):
    """Pairs of a number and a sample, the same at every call."""
    info = MODULES[name]
    torch.manual_seed(0)
    every = info.module_inputs_func(info, "cpu", torch.float32, True, training)
    every = [(i, s) for i, s in enumerate(every) if s.forward_input is not None]
    return every if full_ops else evenly(every, SAMPLES)


def inputs_of(sample, device):
    def fresh(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return tree_map(fresh, (list(sample.forward_input.args), dict(sample.forward_input.kwargs)))


def module_of(name, sample, training, device):
    """The module of a sample, with the same parameters on both devices."""
    given = sample.constructor_input
    torch.manual_seed(0)
    module = MODULES[name].module_cls(*given.args, **given.kwargs)
    if not MODULES[name].is_lazy:
        return module.train(training).to(device, torch.float32)
    lazy = copy.deepcopy(module).to(device)
    for each, place in ((module, "cpu"), (lazy, device)):
        args, kwargs = inputs_of(sample, place)
        each(*args, **kwargs)  # makes the parameters
    lazy.load_state_dict(module.state_dict())
    return lazy.train(training)


def outcome(module, inputs):
    """Runs a module forward and backward."""
    parameters = list(module.parameters())
    leaves = tensors_of(inputs) + parameters
    torch.manual_seed(0)
    args, kwargs = inputs
    outputs = [t for t in tensors_of(module(*args, **kwargs))]
    generator = torch.Generator().manual_seed(1)
    ends = [t for t in outputs if t.requires_grad]
    if ends:
        torch.autograd.backward(ends, [random_like(t, generator) for t in ends])
    gradients = on_host([t.grad for t in leaves])
    devices = {t.device.type for t in outputs}
    return Outcome(on_host(outputs), on_host(list(module.buffers())), gradients, devices)


def compare(name, sample, training, seed):
    """What is wrong with a sample: a line for the unsharded run and for each sharding that is
    wrong."""
    on_cpu = module_of(name, sample, training, "cpu")
    with Draws() as mode:
        outcome(copy.deepcopy(on_cpu), inputs_of(sample, "cpu"))
    want = outcome(on_cpu, inputs_of(sample, "cpu"))
    ranks = [t.dim() for t in tensors_of(inputs_of(sample, "cpu")) + list(on_cpu.parameters())]
    for cut in (None, *few_cuts(ranks, seed)):
        try:
            module, inputs = module_of(name, sample, training, "spmd"), inputs_of(sample, "spmd")
            if cut is not None:
                cut.mark(tensors_of(inputs) + list(module.parameters()))
            got = outcome(module, inputs)
            what = difference(got, want, values=cut is not None or not mode.seen)
            if not got.devices <= {"spmd"}:
                what = f"differs: results on {sorted(got.devices)}"
            if cut is None and mode.seen:
                want = got  # the same random numbers, whatever the mesh
        except Exception as error:
            what = f"raises {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
        if what:
            settle()
            yield f"sample {seed} {sample.desc}, {cut or 'whole'}: {what}"


@pytest.mark.parametrize(("name", "training"), MODES)
def test_modules_give_the_cpus_results(name, training, full_ops):
    chosen = samples(name, training, full_ops)
    wrong = [line for i, s in chosen for line in compare(name, s, training, i)]
    hold(name, wrong, 3 * len(chosen), EXCEPTIONS["module"])


@pytest.mark.parametrize("name", MODULES)
def test_states_and_copies(name):
    seed, sample = samples(name, False, False)[0]
    module = module_of(name, sample, False, "spmd")
    ranks = [p.dim() for p in module.parameters()]
    for cut in few_cuts(ranks, seed)[-1:]:
        cut.mark(list(module.parameters()))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = module_of(name, sample, False, "spmd")
    for parameter in loaded.parameters():
        torch.nn.init.zeros_(parameter)
    loaded.load_state_dict(torch.load(file))
    copied = copy.deepcopy(module)
    for ours, theirs in zip(module.parameters(), copied.parameters()):
        assert spmd.sharding_of(ours) == spmd.sharding_of(theirs)
    want = outcome(module, inputs_of(sample, "spmd"))
    for other in (loaded, copied):
        assert difference(outcome(other, inputs_of(sample, "spmd")), want) is None
