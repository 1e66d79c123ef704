# SPDX-License-Identifier: Apache-2.0
"""Small models, sharded at random: parameters and inputs get random specs, then they are trained.

A case follows from its seed; `str(case)` says what is sharded and how.
"""

import copy
import random
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from model_zoo import MODELS
from torch.overrides import TorchFunctionMode

import torch_spmd as spmd

MESHES = ((2,), (4,), (3,), (2, 2), (2, 3))
STEPS = 3
# With a small eps, Adam divides rounding noise by rounding noise.
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, fused=True),
}

# Models that compute the root of a mean square, or their loss, in single precision whatever their
# type.
PARTLY_IN_SINGLE = {"gpt2", "llama", "mamba2", "mistral", "mixtral", "olmoe", "qwen", "t5"}


@dataclass(frozen=True)
class Case:
    """A model, a mesh, specs by parameter name, specs of the inputs, an optimizer, and how many
    backward passes each of its steps adds up."""

    model: str
    mesh: tuple[int, ...]
    parameters: dict
    inputs: dict
    optimizer: str
    passes: int = 1

    def __str__(self):
        marks = {**self.inputs, **self.parameters}
        lines = "".join(f"    {name}: {spec}\n" for name, spec in marks.items())
        return f"{self.model}, {self.optimizer} after {self.passes}, mesh {self.mesh}\n{lines}"


def random_case(seed, model=None):
    """The case of a seed, of one model if it is given."""
    choose = random.Random(seed)
    name = model or choose.choice(sorted(MODELS))
    mesh = choose.choice(MESHES)
    axes = ("x", "y")[: len(mesh)]
    make, make_inputs = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make(), make_inputs(torch.Generator().manual_seed(0))
    share = choose.choice((0.1, 0.4, 0.8))
    return Case(
        name,
        mesh,
        {
            n: _spec(choose, p.dim(), axes)
            for n, p in model.named_parameters()
            if choose.random() < share
        },
        {n: _spec(choose, t.dim(), axes) for n, t in inputs.items() if choose.random() < 0.6},
        choose.choice(sorted(OPTIMIZERS)),
        choose.choice((1, 1, 2, 3)),
    )


def _spec(choose, rank, axes):
    axes = list(axes)
    choose.shuffle(axes)
    if choose.random() < 0.15:
        axes = [tuple(axes)]
    entries = (axes + [None] * rank)[:rank] if rank == 1 else axes + [None] * rank
    entries = entries[:1] + choose.sample(entries[1:], rank - 1) if rank else []
    choose.shuffle(entries)
    return tuple(entries)


class Interruptions(TorchFunctionMode):
    """Ends the program after some of the calls, by waiting for it or by reading a number."""

    def __init__(self, seed, share):
        super().__init__()
        self._choose, self._share = random.Random(seed), share

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self._choose.random() < self._share:
            number = isinstance(result, torch.Tensor) and result.is_floating_point()
            if number and self._choose.random() < 0.5:
                result.detach().sum().item()
            else:
                spmd.sync()
        return result


def train(case, device):
    """Losses of every step, then gradients of the first step and the state at the end."""
    make, make_inputs = MODELS[case.model]
    torch.manual_seed(0)
    model = copy.deepcopy(make()).double().train().to(device)
    mesh = spmd.make_mesh(case.mesh, ("x", "y")[: len(case.mesh)])
    if device == "spmd":
        for name, parameter in model.named_parameters():
            if name in case.parameters:
                spmd.mark_sharding(parameter, mesh, case.parameters[name])
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    generator = torch.Generator().manual_seed(1)
    losses, gradients = [], {}
    for step in range(STEPS):
        for _ in range(case.passes):
            inputs = {}
            for name, t in make_inputs(generator).items():
                inputs[name] = (t.double() if t.is_floating_point() else t).to(device)
                if device == "spmd" and name in case.inputs:
                    spmd.mark_sharding(inputs[name], mesh, case.inputs[name])
            loss = loss_of(model, inputs)
            loss.backward()
        if step == 0:
            gradients = {
                n: p.grad.detach().clone()
                for n, p in model.named_parameters()
                if p.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    named = {f"loss {i}": t for i, t in enumerate(losses)}
    named |= {f"gradient of {n}": t for n, t in gradients.items()}
    named |= model.state_dict()
    return {n: t.cpu() for n, t in named.items()}


def loss_of(model, inputs):
    output = model(**inputs)
    if getattr(output, "loss", None) is not None:
        return output.loss
    if not isinstance(output, torch.Tensor):
        output = output[0]
    return F.mse_loss(output, (output.detach() * 3).sin())


def difference(case, around=nullcontext):
    """The first value that differs on `spmd`, in words, or None. The run is in `around()`."""
    want = train(case, "cpu")
    try:
        with around():
            got = train(case, "spmd")
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
    if got.keys() != want.keys():
        return f"there are {sorted(got.keys() ^ want.keys())}"
    tolerance = 1e-6 if case.model in PARTLY_IN_SINGLE else 1e-8
    for name, expected in want.items():
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        if not torch.allclose(
            got[name], expected, rtol=100 * tolerance, atol=tolerance * (1 + largest)
        ):
            error = (got[name].double() - expected.double()).abs().max()
            return f"{name} differs by up to {error:.2e} of {largest:.2e}"
    return None


def smaller(case):
    """A case with as few marks as possible that still differs."""
    for field in ("parameters", "inputs"):
        for name in list(getattr(case, field)):
            rest = {n: s for n, s in getattr(case, field).items() if n != name}
            candidate = Case(**{**case.__dict__, field: rest})
            if difference(candidate):
                case = candidate
    return case
