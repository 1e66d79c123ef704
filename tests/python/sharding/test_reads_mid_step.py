# SPDX-License-Identifier: Apache-2.0
"""A value that is read in the middle of a step cuts it in two programs. Together they send what the
whole step does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd

WORDS, PLACES = 64, 16


class Block(nn.Module):
    """Two biases and two norms have the type of each other, and differ in their marks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.middle = nn.Linear(width, 4 * width), nn.Linear(4 * width, 4 * width)
        self.down, self.head = nn.Linear(4 * width, width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        y = F.gelu(self.middle(F.gelu(self.up(self.before(x)))))
        return self.head(self.after(x + self.down(y)))


TENSOR_PARALLEL = {
    "words.weight": ("model", None),
    "up.weight": ("model", None),
    "up.bias": ("model",),
    "middle.weight": (None, "model"),
    "down.weight": (None, "model"),
    "head.weight": ("model", None),
}
AXES = {"dp": ("data",), "tp": ("model",), "fsdp": ("data",), "both": ("data", "model")}


def shard(model: nn.Module, how: str) -> spmd.Mesh:
    mesh = spmd.make_mesh((2, 4) if how == "both" else (8,), AXES[how])
    if how in ("tp", "both"):
        spmd.shard_module(model, mesh, TENSOR_PARALLEL)
    if how in ("fsdp", "both"):
        spmd.fsdp(model, mesh, "data")
    return mesh


def train(width: int, how: str, read: str, cut: bool, batch: int = 8):
    """Three steps: what the last one sends, and the parameters. If not `cut`, what is read is
    computed at the same place and read behind the step."""
    torch.manual_seed(0)
    model = Block(width)
    device = "cpu" if how == "cpu" else "spmd"
    model = model.to(device)
    mesh = shard(model, how) if how != "cpu" else None
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, 0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randint(WORDS, (batch, PLACES)).to(device)
        if how not in ("cpu", "tp"):
            spmd.mark_sharding(x, mesh, ("data", None))
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
        value = loss
        if read == "accuracy":
            value = (logits.argmax(-1) == x).float().mean()
        if read == "before backward" and cut:
            value.item()
        if read != "held":
            del logits
        loss.backward()
        if read == "norm":
            value = nn.utils.clip_grad_norm_(params, 0.5)
        if read == "gradient":
            value = model.middle.weight.grad.norm()
        if read != "before backward" and cut:
            value.item()
        optimizer.step()
        optimizer.zero_grad()
        value.item()
    rows = spmd.debug.collectives(step=True).rows if how != "cpu" else []
    if read == "before backward":  # the second half gathers weights again
        rows = [row for row in rows if (row.kind, row.op) != ("all_gather", "input")]
    return sum(row.wire_bytes for row in rows), [p.detach().cpu() for p in params]


@pytest.mark.parametrize("how", AXES)
@pytest.mark.parametrize(
    "read", ["loss", "held", "accuracy", "norm", "gradient", "before backward"]
)
def test_the_halves_send_what_the_whole_does(how, read):
    for width in (16, 64):
        whole, _ = train(width, how, read, cut=False)
        halves, got = train(width, how, read, cut=True)
        assert halves <= 1.1 * whole
        for a, b in zip(got, train(width, "cpu", read, cut=True)[1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def sent() -> int:
    return sum(row.wire_bytes for row in spmd.debug.collectives(step=True).rows)


@pytest.mark.parametrize("width", [16, 32, 48])
@pytest.mark.parametrize("read", ["nothing", "loss", "norm"])
def test_fully_sharded_weights_are_gathered_once_and_gradients_scattered_once(width, read):
    torch.manual_seed(0)
    layers = [nn.Linear(width, 4 * width, bias=False), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(4 * width, width, bias=False)).to("spmd")
    mesh = spmd.make_mesh((8,), ("data",))
    spmd.fsdp(model, mesh, "data")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = spmd.mark_sharding(torch.randn(256, width).to("spmd"), mesh, ("data", None))
        loss = model(x).square().mean()
        loss.backward()
        if read == "loss":
            loss.item()
        if read == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
            for p in model.parameters():
                assert spmd.sharding_of(p.grad).spec == spmd.sharding_of(p).spec
        optimizer.step()
        optimizer.zero_grad()
    weights = 2 * 4 * width * width * 4
    numbers = (3 if read == "norm" else 1) * 4  # the loss, and the norms of two gradients
    assert sent() == 2 * weights * 7 // 8 + 2 * numbers * 7 // 8


def logits_of(axis_of_words: str | None, held: bool, item: bool, words: int) -> int:
    """Logits [8, 64, words] of a table and a head of one type, which differ in their marks."""
    torch.manual_seed(0)
    mesh = spmd.make_mesh((4, 2), ("data", "model"))
    layers = [nn.Embedding(words, 32), nn.LayerNorm(32), nn.Linear(32, words, bias=False)]
    model = nn.Sequential(*layers).to("spmd")
    spmd.shard_module(model, mesh, {"2.weight": (axis_of_words, None)})
    spmd.fsdp(model, mesh, "data")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randint(words, (8, 64)).to("spmd")
        logits = model(spmd.mark_sharding(x, mesh, ("data", None)))
        loss = logits.square().mean()
        if not held:
            del logits
        loss.backward()
        if item:
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return sent()


@pytest.mark.parametrize("words", [256, 1024])
@pytest.mark.parametrize("axis_of_words", ["model", None])
def test_logits_are_not_summed_because_somebody_holds_them(axis_of_words, words):
    whole = logits_of(axis_of_words, held=False, item=False, words=words)
    for held in (False, True):
        assert logits_of(axis_of_words, held, True, words) <= 1.1 * whole


def partial_product(size: int):
    mesh = spmd.make_mesh((4,), ("model",))
    host = torch.randn(size, 64), torch.randn(32, 64)
    x, w = (spmd.mark_sharding(t.to("spmd"), mesh, (None, "model")) for t in host)
    return F.linear(x, w), F.linear(*host)


def reduced() -> list[int]:
    rows = spmd.debug.collectives(step=False).rows
    assert {row.kind for row in rows} <= {"all_reduce"}
    return [row.bytes for row in rows]


@pytest.mark.parametrize("size", [32, 96])
def test_what_nobody_has_asked_for_is_reduced_when_it_is_used(size):
    y, want = partial_product(size)
    torch.testing.assert_close(y.sum().item(), want.sum().item(), rtol=1e-4, atol=1e-2)
    assert reduced() == [4]
    assert tuple(spmd.sharding_of(y).unreduced) == ("model",)
    torch.testing.assert_close(y.relu().sum().item(), want.relu().sum().item(), rtol=1e-4, atol=0)
    assert reduced() == [size * 32 * 4]
    torch.testing.assert_close(y.cpu(), want, rtol=1e-4, atol=1e-4)


def test_what_is_read_is_reduced_by_its_program():
    y, want = partial_product(32)
    total = y.sum()
    torch.testing.assert_close(y.cpu(), want, rtol=1e-4, atol=1e-4)
    assert reduced() == [32 * 32 * 4 + 4]
    assert not spmd.sharding_of(total).unreduced
    torch.testing.assert_close(total.item(), want.sum().item(), rtol=1e-4, atol=1e-2)


def test_a_sum_that_a_program_has_is_what_it_leaves():
    y, want = partial_product(32)
    y.relu().sum().item()
    assert reduced() == [32 * 32 * 4]
    assert not spmd.sharding_of(y).unreduced
    torch.testing.assert_close(y.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("kind", ["clipped", "clipped out of place", "replaced by data", "added"])
def test_whatever_is_written_to_a_gradient_leaves_as_its_parameter(kind, used):
    mesh = spmd.make_mesh((4,), ("data",))
    w, x, data = torch.randn(8, 4), torch.randn(16, 4), torch.randn(8, 4)

    def gradient(device):
        weight = nn.Parameter(w.to(device))
        batch, other = x.to(device), data.to(device)
        if device == "spmd":
            spmd.mark_sharding(weight, mesh, ("data", None))
            spmd.mark_sharding(batch, mesh, ("data", None))
        F.linear(batch, weight).square().sum().backward()
        if kind == "clipped":
            weight.grad.mul_(0.5)
        if kind == "clipped out of place":
            weight.grad.copy_(weight.grad * 0.5)
        if kind == "replaced by data":
            weight.grad.copy_(other)
        if kind == "added":
            weight.grad.add_(other)
        if used:
            weight.grad.norm().item()
        batch.sum().item()
        return weight.grad

    grad = gradient("spmd")
    if not used:
        spmd.sync()
    if kind != "replaced by data":  # which no program computes
        assert spmd.sharding_of(grad).spec == spmd.P("data", None)
    torch.testing.assert_close(grad.cpu(), gradient("cpu"), rtol=1e-4, atol=1e-4)
