# SPDX-License-Identifier: Apache-2.0
"""torch.compile, make_fx and torch.export on the device."""

import copy

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_spmd as spmd
from torch_spmd.device import compilers

MESH = (2, 2)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class CausalSelfAttention(nn.Module):
    """nanoGPT's: heads are views of one projection, transposed."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, places, width = x.shape
        q, k, v = (
            t.view(batch, places, self.heads, width // self.heads).transpose(1, 2)
            for t in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, places, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGpt(nn.Module):
    def __init__(self, words=64, places=16, width=32, heads=4, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(places, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        logits = self.lm_head(self.ln_f(self.h(x)))[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


class VisionTransformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            )
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.layers(x)[:, 0]).logsumexp(1).mean()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        )

    def forward(self, images):
        return self.layers(images).logsumexp(1).mean()


def images(batch):
    return torch.randn(batch, 3, 16, 16)


def channels_last(batch):
    return images(batch).contiguous(memory_format=torch.channels_last)


MODELS = {
    "nanoGPT": (NanoGpt, lambda batch: torch.randint(64, (batch, 16)), "lm_head.weight"),
    "ViT": (VisionTransformer, images, "head.weight"),
    "convolutions": (ConvNet, images, "layers.9.weight"),
    "convolutions, channels last": (ConvNet, channels_last, "layers.9.weight"),
}


def losses(model, batches, **compiled):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(model, **compiled) if compiled else model
    found = []
    for batch in batches:
        loss = step(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_models_train_sharded_as_in_eager(name):
    make, draw, head = MODELS[name]
    mesh = spmd.make_mesh(MESH, ("data", "model"))
    model = make().to("spmd")
    batches = [draw(4).to("spmd") for _ in range(3)]
    for batch in batches:
        spmd.mark_sharding(batch, mesh, ("data", *(None,) * (batch.dim() - 1)))
    twin = copy.deepcopy(model)
    for m in (model, twin):
        spmd.mark_sharding(m.get_parameter(head), mesh, ("model", None))
    want = losses(twin, batches)
    got = losses(model, batches, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want))
    assert want[0] != want[-1]


def test_sizes_may_change():
    """One graph serves all of them, or as many graphs as on the CPU."""
    counts = []
    for device in ("cpu", "spmd"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = NanoGpt(layers=1).to(device)
        shapes = ((4, 16), (3, 12), (2, 7), (5, 9))
        batches = [torch.randint(64, shape).to(device) for shape in shapes]
        want = losses(copy.deepcopy(model), batches)
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        got = losses(model, batches, backend=counter, dynamic=True)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want))
        counts.append(counter.frame_count)
    assert counts[0] == counts[1] < len(shapes)


def test_graphs_may_break():
    model = NanoGpt().to("spmd")

    class Breaking(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            loss = self.model(ids)
            torch._dynamo.graph_break()
            return loss * 2 if loss.item() > 0 else loss

    batches = [torch.randint(64, (4, 16)).to("spmd") for _ in range(2)]
    want = losses(copy.deepcopy(Breaking()), batches)
    got = losses(Breaking(), batches, backend="aot_eager")
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want))


@pytest.mark.parametrize("training", [True, False])
def test_transposed_heads_may_be_viewed(training):
    def attend(q, k, v):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).view(2, 8, 32)

    heads = [torch.randn(2, 8, 4, 8).transpose(1, 2) for _ in range(3)]
    ours = [t.to("spmd").requires_grad_(training) for t in heads]
    y = torch.compile(attend, backend="aot_eager", fullgraph=True)(*ours)
    torch.testing.assert_close(y.detach().cpu(), attend(*heads))
    if training:
        y.sum().backward()
        assert ours[0].grad.stride() == ours[0].stride()


def test_make_fx_and_export_give_graphs_that_run():
    block, x = Block(32, 4).to("spmd"), torch.randn(2, 8, 32).to("spmd")
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(block, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
        torch.testing.assert_close(graph(x).cpu(), block(x).cpu())
    dynamic = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    exported = torch.export.export(block, (x,), dynamic_shapes=dynamic)
    other = torch.randn(5, 8, 32).to("spmd")
    torch.testing.assert_close(exported.module()(other).cpu(), block(other).cpu())


INDUCTOR = [
    {"disable": False},  # all defaults
    {"backend": "inductor", "dynamic": True},
    {"mode": "max-autotune"},
    {"mode": "reduce-overhead", "fullgraph": True},
    {"options": {"triton.cudagraphs": True, "epilogue_fusion": False}},
]


@pytest.mark.filterwarnings("ignore:torch.compile. what is captured")
@pytest.mark.parametrize("options", INDUCTOR, ids=str)
def test_what_is_captured_for_inductor_is_recorded(options):
    model = NanoGpt(layers=1).to("spmd")
    batches = [torch.randint(64, (4, 16)).to("spmd") for _ in range(3)]
    found = losses(copy.deepcopy(model), batches, **options)
    torch.testing.assert_close(found, losses(model, batches))


@pytest.mark.filterwarnings("ignore:torch.compile. what is captured")
def test_what_is_captured_for_inductor_communicates_as_it_is_marked():
    mesh = spmd.make_mesh(MESH, ("data", "model"))
    sent = []
    for compiled in ({}, {"mode": "default"}):
        model, batches = NanoGpt(layers=1).to("spmd"), [torch.randint(64, (4, 16)).to("spmd")]
        spmd.mark_sharding(model.lm_head.weight, mesh, ("model", None))
        losses(model, batches, **compiled)
        sent.append([(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives().rows])
    assert sent[0] == sent[1] and len(sent[0]) > 0


def test_it_is_noted_once(monkeypatch):
    monkeypatch.setattr(compilers, "_has_noted", False)
    x = torch.ones(3, device="spmd")
    with pytest.warns(UserWarning) as notes:
        assert torch.compile(lambda t: t + 1)(x).tolist() == [2, 2, 2]
        assert torch.compile(lambda t: t + 2)(x).tolist() == [3, 3, 3]
    assert [str(note.message) for note in notes] == [
        "torch.compile: what is captured on 'spmd' is recorded as any other call is, since the "
        "device compiles whole steps by itself; Inductor's mode and options have no effect"
    ]


@pytest.mark.filterwarnings("ignore:torch.compile. what is captured")
def test_tensors_that_are_made_in_what_is_captured():
    @torch.compile
    def numbers(n):
        return torch.ones(n, device="spmd").cumsum(0)

    assert numbers(4).tolist() == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:torch.compile. what is captured")
@pytest.mark.parametrize("selective", [False, True])
def test_checkpoints_in_what_is_captured_keep_the_random_state(selective):
    def policy(ctx, op, *args, **kwargs):
        saves = op == torch.ops.aten.relu.default
        kinds = torch.utils.checkpoint.CheckpointPolicy
        return kinds.MUST_SAVE if saves else kinds.PREFER_RECOMPUTE

    def contexts():
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)

    options = {"context_fn": contexts} if selective else {}

    class Model(nn.Sequential):
        def forward(self, x):
            def part(t):
                return self[1](self[0](t).relu())

            y = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False, **options)
            return y.sum()

    model = Model(nn.Linear(8, 8), nn.Dropout(0.5)).to("spmd")
    results = []
    for call in (model, torch.compile(model)):
        torch.manual_seed(1)
        x = torch.ones(3, 8, device="spmd", requires_grad=True)
        call(x).backward()
        results.append(x.grad.tolist())
    assert results[0] == results[1]


def test_ahead_of_time_compilation_is_refused_in_a_sentence():
    x = torch.ones(2, 4, device="spmd")
    exported = torch.export.export(nn.Linear(4, 4).to("spmd"), (x,))
    with pytest.raises(Exception, match="Inductor has no code generator for 'spmd'"):
        torch._inductor.aot_compile(exported.module(), (x,))
    # It still compiles for others.
    assert torch._inductor.codegen.common.get_scheduling_for_device("cpu") is not None
