# SPDX-License-Identifier: Apache-2.0
"""A script that trains with equal steps and prints the programs that are compiled late.

python equal_steps.py conv dp init=device evaluate=before micro=3
"""

from __future__ import annotations

import copy
import io
import random
import sys
from dataclasses import dataclass, fields, replace
from typing import Any

KNOWN, STEPS = 3, 8  # after the third step all programs are known


@dataclass(frozen=True)
class Loop:
    model: str = "linear"
    sharded: str = "dp"
    init: str = "cpu"  # where weights are made
    micro: int = 1  # backward passes in a step
    optimizer: str = "SGD"  # two: AdamW for matrices, SGD for the others
    average: str = "no"  # of the weights
    evaluate: str = "no"
    read: str = "end"  # where the loss is read; backward: before the optimizer's step
    zero: str = "end"  # where gradients are dropped
    clip: str = "no"  # the norm of the gradients

    def __str__(self) -> str:
        plain = Loop()
        rest = {f.name: getattr(self, f.name) for f in fields(self)[2:]}
        others = [f"{k}={v}" for k, v in rest.items() if v != getattr(plain, k)]
        return " ".join([self.model, self.sharded, *others])


CHOICES: dict[str, tuple[Any, ...]] = {
    "model": ("linear", "conv", "tokens", "gan"),
    "sharded": ("no", "dp", "tp", "fsdp", "both"),
    "init": ("cpu", "device", "loaded", "scaled"),
    "micro": (1, 2, 3, 4, 5),
    "optimizer": ("SGD", "momentum", "AdamW", "Adafactor", "two"),
    "average": ("no", "yes"),
    "evaluate": ("no", "before", "each"),
    "read": ("end", "backward", "no"),
    "zero": ("end", "begin"),
    "clip": ("no", "yes"),
}


def parse(words: list[str]) -> Loop:
    model, sharded, *others = words
    given: dict[str, Any] = dict(word.split("=") for word in others)
    return replace(Loop(model, sharded, **given), micro=int(given.get("micro", 1)))


def some_loops(count: int) -> list[Loop]:
    """Random ones, always the same. The choices of each kind take turns."""
    chance = random.Random(0)
    columns = []
    for values in CHOICES.values():
        turns = [v for _ in range(count) for v in chance.sample(values, len(values))]
        columns.append(turns[:count])
    return [Loop(*row) for row in zip(*columns, strict=True)]


def train(loop: Loop) -> list[Any]:
    """The rows of explain_compile after the steps that may compile."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import torch_spmd as spmd

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
            self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
            self.head = nn.Linear(16, 32, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            q, k, v = self.qkv(self.norm(x)).split(16, 2)
            return self.head(x + self.out(q * k + v))

    def make_model() -> nn.Module:
        if loop.model == "tokens":
            return Tokens()
        if loop.model == "conv":
            body = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()
            return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
        return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))

    both = loop.sharded == "both"
    mesh = spmd.make_mesh((2, 4) if both else (8,), ("data", "model") if both else ("axis",))
    data, weights = ("data", "model") if both else ("axis", "axis")

    def sharded(module: nn.Module) -> nn.Module:
        if loop.sharded in ("tp", "both"):
            for name, weight in module.named_parameters():
                if weight.dim() > 1 and ("qkv" in name or name.startswith("0.")):
                    spmd.mark_sharding(weight, mesh, (weights, *(None,) * (weight.dim() - 1)))
        if loop.sharded in ("fsdp", "both"):
            spmd.fsdp(module, mesh, data)
        return module

    def initialised(module: nn.Module) -> nn.Module:
        if loop.init == "device":
            for layer in module.modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layer.reset_parameters()
        elif loop.init == "scaled":
            for weight in module.parameters():
                weight.data *= 0.5
        elif loop.init == "loaded":
            file = io.BytesIO()
            torch.save({name: t.cpu() for name, t in module.state_dict().items()}, file)
            file.seek(0)
            module.load_state_dict(torch.load(file, map_location="spmd"))
        return module

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        if loop.model == "tokens":
            x, y = torch.randint(32, (8, 8)), torch.randint(32, (8, 8))
        else:
            x = torch.randn(16, 3, 8, 8) if loop.model == "conv" else torch.randn(16, 16)
            y = torch.randint(8, (16,))
        x, y = x.to("spmd"), y.to("spmd")
        if loop.sharded in ("dp", "fsdp", "both"):
            for t in (x, y):
                spmd.mark_sharding(t, mesh, (data, *(None,) * (t.dim() - 1)))
        return x, y

    def optimizers(module: nn.Module) -> list[torch.optim.Optimizer]:
        params = list(module.parameters())
        if loop.optimizer == "two":
            matrices = [p for p in params if p.dim() > 1]
            return [
                torch.optim.AdamW(matrices),
                torch.optim.SGD([p for p in params if p.dim() < 2]),
            ]
        if loop.optimizer == "momentum":
            return [torch.optim.SGD(params, 0.01, momentum=0.9)]
        return [getattr(torch.optim, loop.optimizer)(params, lr=0.01)]

    def loss_of(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(x).flatten(0, -2), y.flatten())

    def evaluate(module: nn.Module) -> None:
        module.eval()
        with torch.no_grad():
            x, y = batch()
            (module(x).argmax(-1) == y).float().mean().item()
        module.train()

    torch.manual_seed(0)
    model = sharded(initialised(make_model().to("spmd")))
    mine = optimizers(model)
    average = copy.deepcopy(model) if loop.average == "yes" else None
    critic, theirs = None, []
    if loop.model == "gan":
        critic = initialised(
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to("spmd")
        )
        theirs = optimizers(critic)

    def update(module: nn.Module, all_of_it: list[torch.optim.Optimizer]) -> None:
        if loop.clip == "yes":
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in all_of_it:
            optimizer.step()

    def zero(all_of_it: list[torch.optim.Optimizer], where: str) -> None:
        if loop.zero == where:
            for optimizer in all_of_it:
                optimizer.zero_grad()

    def step() -> None:
        if critic is not None:
            zero(theirs, "begin")
            for _ in range(loop.micro):
                x, y = batch()
                real, fake = critic(F.one_hot(y, 8).float()), critic(model(x).detach())
                (F.softplus(-real).mean() + F.softplus(fake).mean()).backward()
            update(critic, theirs)
            zero(theirs, "end")
        zero(mine, "begin")
        for _ in range(loop.micro):
            x, y = batch()
            made = F.softplus(-critic(model(x))).mean() if critic else loss_of(model, x, y)
            loss = made / loop.micro
            loss.backward()
        if loop.read == "backward":
            loss.item()
        update(model, mine)
        zero(mine, "end")
        if average is not None:
            with torch.no_grad():
                for p, q in zip(average.parameters(), model.parameters(), strict=True):
                    p.lerp_(q, 0.1)
        if loop.read == "end":
            loss.item()
        if loop.evaluate == "each":
            evaluate(model if average is None else average)

    if loop.evaluate == "before":
        evaluate(model)
    for k in range(STEPS):
        if k == KNOWN:
            known = len(spmd.debug.explain_compile().rows)
        step()
    return list(spmd.debug.explain_compile().rows[known:])


if __name__ == "__main__":
    for row in train(parse(sys.argv[1:])):
        print(row.reason, "· ended by", row.ended_by)
