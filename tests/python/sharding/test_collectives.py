# SPDX-License-Identifier: Apache-2.0
"""The collectives of one training step, counted exactly."""

import functools
import operator
from collections import Counter

import pytest
import torch
from common.gpt import GPT, GPTConfig
from common.strategies import strategy
from torch.utils.checkpoint import checkpoint

import torch_spmd as spmd

LAYERS, WIDTH = 3, 64
# A large vocabulary and few tokens: moving tokens is cheaper than moving the embedding.
FEW_TOKENS = {"vocab": 4096, "batch": 8, "length": 32}
# Many tokens per device: moving weights is cheaper than moving activations.
MANY_TOKENS = {"vocab": 256, "batch": 32, "length": 64}


def step(mesh, plan, vocab, batch, length, layers=LAYERS, width=WIDTH, full=False):
    """The second of two GPT steps: the table of its collectives, and the model.

    `full`: dropout, AdamW with two groups and gradient clipping, as in examples/train_gpt.py.
    """
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=vocab,
        block=length,
        layers=layers,
        width=width,
        heads=8,
        dropout=0.1 if full else 0.0,
    )
    model = GPT(config).to("spmd")
    chosen = strategy(plan, mesh.axis_names)
    spmd.shard_module(model, mesh, chosen.rules)
    if full:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        tokens = torch.randint(vocab, (batch, length)).to("spmd")
        spmd.mark_sharding(tokens, mesh, chosen.inputs)
        loss = model(tokens, tokens)
        loss.backward()
        if full:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return spmd.debug.collectives(), model


def kinds(rows):
    return Counter(row.kind for row in rows)


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def test_dp_reduces_every_gradient_once(mesh):
    table, model = step(mesh, "dp", **MANY_TOKENS)
    gradient_bytes = sum(4 * p.numel() for p in model.parameters())
    assert kinds(table.large) == {"all_reduce": 1}
    # The loss is merged into it.
    assert gradient_bytes <= table.large[0].bytes <= gradient_bytes + 16
    assert len(table.small) <= 3


def test_tp_needs_four_reductions_per_layer(mesh):
    table, _ = step(mesh, "tp", **FEW_TOKENS)
    tokens = FEW_TOKENS["batch"] * FEW_TOKENS["length"]
    activation = 4 * tokens * WIDTH
    large = [row for row in table.rows if row.bytes >= activation]
    assert kinds(large) == {"all_reduce": 4 * LAYERS + 2}
    # The loss is merged into one, the gradient of the positions into another.
    positions = 4 * FEW_TOKENS["length"] * WIDTH
    assert sum(row.bytes for row in large) <= len(large) * activation + positions + 16
    others = [row for row in table.rows if row.bytes < activation]
    assert kinds(others).keys() == {"all_reduce"}
    over_tokens = [row for row in others if row.bytes >= 4 * tokens]
    assert sum(row.bytes for row in over_tokens) <= 3 * 4 * tokens


def test_fsdp_gathers_weights_and_scatters_gradients(mesh):
    table, _ = step(mesh, "fsdp", **MANY_TOKENS)
    assert set(kinds(table.large)) == {"all_gather", "reduce_scatter"}
    assert len(table.small) <= 3


def test_2d_never_gathers_an_activation():
    table, _ = step(spmd.make_mesh((2, 4), ("data", "model")), "2d", **FEW_TOKENS)
    assert set(kinds(table.large)) == {"all_reduce"}


def full_size(mesh, plan):
    """The model of examples/train_gpt.py, all of it."""
    table, model = step(mesh, plan, 256, 8, 128, layers=6, width=384, full=True)
    tokens_per_device = 8 * 128 // mesh.shape["data"] if plan == "2d" else 8 * 128
    assert sum(row.bytes < 4 * tokens_per_device for row in table.small) <= 3
    return table.large, 4 * 8 * 128 * 384, model


def test_full_size_dp():
    large, _, model = full_size(spmd.make_mesh((8,), ("x",)), "dp")
    assert kinds(large) == {"all_reduce": 1}
    assert large[0].bytes <= sum(4 * p.numel() for p in model.parameters()) + 16


def test_full_size_tp():
    large, activation, _ = full_size(spmd.make_mesh((8,), ("x",)), "tp")
    whole = [row for row in large if row.bytes >= activation]
    # Four per layer, the embedding, the head's input; the last one of all is made smaller: past the
    # sums over positions and tokens, which are all that reads it.
    assert kinds(whole) == {"all_reduce": 4 * 6 + 1}
    assert max(row.bytes for row in whole) < activation + 8192
    smaller = [row for row in large if row.bytes < activation]
    assert kinds(smaller) == {"all_reduce": 3, "reduce_scatter": 1}
    tables = 4 * 128 * 384 + 4 * 256 * 384  # positions, and tokens
    vectors_over_tokens = 2 * 4 * 8 * 128
    assert sum(row.bytes for row in smaller) < tables + vectors_over_tokens


def test_full_size_fsdp():
    large, _, model = full_size(spmd.make_mesh((8,), ("x",)), "fsdp")
    parameters = sum(4 * p.numel() for p in model.parameters())
    assert set(kinds(large)) == {"all_gather", "reduce_scatter"}
    scattered = [row for row in large if row.kind == "reduce_scatter"]
    assert len(scattered) == 1 and scattered[0].bytes <= parameters // 8 + 16
    gathered = sum(row.bytes for row in large if row.kind == "all_gather")
    assert gathered <= parameters


def test_full_size_2d():
    large, activation, model = full_size(spmd.make_mesh((2, 4), ("data", "model")), "2d")
    assert set(kinds(large)) == {"all_reduce", "reduce_scatter"}
    over_model = [row for row in large if row.axes == "model" and row.bytes >= activation // 2]
    assert kinds(over_model) == {"all_reduce": 4 * 6 + 1}
    (gradients,) = [row for row in large if row.axes == "data"]
    local = sum(4 * p.numel() for p in model.parameters()) // 4
    vectors = sum(4 * p.numel() for p in model.parameters() if p.dim() == 1)
    assert gradients.bytes <= local + vectors + 4 * 128 * 384


def test_recomputation_is_not_merged_with_the_forward_pass():
    """Otherwise its activations would be kept after all."""
    mesh = spmd.make_mesh((4,), ("model",))
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).to("spmd")
    spmd.mark_sharding(net[0].weight, mesh, ("model", None))
    spmd.mark_sharding(net[1].weight, mesh, (None, "model"))

    def block(x):
        return net[2](net[1](net[0](x).relu()).relu())

    counts = {}
    for again in (False, True):
        x = torch.randn(8, 64, device="spmd").requires_grad_()
        net.zero_grad()
        spmd.sync(wait=True)
        y = checkpoint(block, x, use_reentrant=False) if again else block(x)
        y.square().sum().backward()
        x.grad.cpu()
        layers = str(spmd.debug.print_program()).count("aten::linear(")
        moved = sum(row.bytes for row in spmd.debug.collectives().rows)
        counts[again] = layers, moved
    activation = 8 * 64 * 4
    # The last layer is not needed again. Of the two reductions (forward after the second layer,
    # backward before the first) the first is made twice.
    assert counts == {False: (3, 2 * activation), True: (5, 3 * activation)}


class ImageNet(torch.nn.Module):
    """Convolutions that use the batch axis only, and layers that are sharded over `model`."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, x, mark):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc2(torch.relu(self.fc1(mark(torch.max_pool2d(x, 2).flatten(1)))))


def test_an_idle_axis_shares_the_batch():
    """The convolutions' batch is sharded over `model`, too, as if it were so marked behind them."""
    mesh = spmd.make_mesh((2, 2), ("data", "model"))
    sent = []
    for spec in (None, (("data", "model"), None)):
        torch.manual_seed(0)
        net = ImageNet().to("spmd")
        cuts = {"weight": ("model", None), "bias": ("model",)}
        spmd.shard_module(net.fc1, mesh, cuts)
        spmd.shard_module(net.fc2, mesh, {"weight": (None, "model")})
        x = spmd.mark_sharding(
            torch.randn(32, 1, 28, 28, device="spmd"), mesh, ("data", None, None, None)
        )
        y = spmd.mark_sharding(torch.randint(10, (32,)).to("spmd"), mesh, ("data",))
        mark = lambda t, s=spec: t if s is None else spmd.mark_sharding(t, mesh, s)  # noqa: E731
        torch.nn.functional.cross_entropy(net(x, mark), y).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        sent.append(sum(row.wire_bytes for row in spmd.debug.collectives().rows))
    assert sent[0] == sent[1] < 3.1e6


@pytest.mark.parametrize("layers", [1, 3])
def test_a_batch_norm_reduces_once_each_way(layers):
    """Both statistics forward; backward both sums, together with gradients that are available."""
    mesh = spmd.make_mesh((4,), ("data",))
    parts = [[torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)] for _ in range(layers)]
    net = torch.nn.Sequential(*functools.reduce(operator.iadd, parts, [])).to("spmd")
    for p in net.parameters():
        spmd.mark_sharding(p, mesh, (None,) * p.dim())
    x = torch.randn(8, 3, 4, 4, device="spmd")
    spmd.mark_sharding(x, mesh, ("data", None, None, None))
    net(x).square().mean().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    # What is left of the gradients when the first layer's sums are reduced goes last.
    assert kinds(spmd.debug.collectives().rows) == {"all_reduce": 2 * layers + 1}


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5])
def test_statistics_of_cut_images_are_as_exact_as_of_whole_ones(mean):
    torch.manual_seed(0)
    image = torch.randn(16, 4, 5, 5) + mean
    exact = torch.nn.functional.batch_norm(image.double(), None, None, training=True)
    whole = torch.nn.functional.batch_norm(image, None, None, training=True)
    mesh = spmd.make_mesh((4,), ("data",))
    x = spmd.mark_sharding(image.to("spmd"), mesh, ("data", None, None, None))
    cut = torch.nn.functional.batch_norm(x, None, None, training=True).cpu()
    assert (cut - exact).abs().max() <= 2 * (whole - exact).abs().max() + 1e-6


class Attention(torch.nn.Module):
    """Norm, queries, keys, values and projections behind it, as under tensor parallelism."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (
            torch.nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (8, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("half", [False, True], ids=["f32", "autocast"])
def test_input_gradients_of_q_k_and_v_are_one_sum(half):
    """Under autocast, too, where each of them is cast before they are added."""
    mesh = spmd.make_mesh((4,), ("model",))
    torch.manual_seed(0)
    net = Attention(64).to("spmd")
    rows = {f"{name}.weight": ("model", None) for name in "qkv"}
    spmd.shard_module(net, mesh, {**rows, "out.weight": (None, "model")})
    x = torch.randn(4, 32, 64).to("spmd").requires_grad_()
    with torch.autocast("spmd", dtype=torch.bfloat16, enabled=half):
        loss = net(x).float().square().mean()
    loss.backward()
    spmd.sync()
    activation = 4 * 32 * 64 * (2 if half else 4)
    large = [row for row in spmd.debug.collectives().rows if row.bytes >= activation]
    assert kinds(large) == {"all_reduce": 2}
    assert all(row.bytes < 2 * activation + 1024 for row in large)
