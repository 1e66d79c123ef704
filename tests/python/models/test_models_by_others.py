# SPDX-License-Identifier: Apache-2.0
"""Models written by others for plain PyTorch: only the device differs, and rules shard them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd

VOCAB, BATCH, LENGTH = 40, 8, 12


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20), nn.Sigmoid())

    def loss(self, x, noise):
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        decoded = self.decode(mean + noise * torch.exp(0.5 * log_variance))
        reconstruction = F.binary_cross_entropy(decoded, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return (reconstruction + divergence) / len(x)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.tag = nn.Linear(24, 5)

    def forward(self, tokens):
        return self.tag(self.lstm(self.embed(tokens))[0])


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.transformer = nn.Transformer(
            32,
            4,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dim_feedforward=64,
            dropout=0.0,
            batch_first=True,
        )
        self.head = nn.Linear(32, VOCAB)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        out = self.transformer(self.embed(source), self.embed(target), tgt_mask=mask)
        return self.head(out)


def tokens(generator):
    return torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)


def make_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def make_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config)


def language_model(model, generator):
    def loss(upload):
        ids = upload(tokens(generator))
        return model(input_ids=ids, labels=ids).loss

    return loss


def tagger(model, generator):
    def loss(upload):
        ids = tokens(generator)
        return F.cross_entropy(model(upload(ids)).flatten(0, 1), upload(ids % 5).flatten())

    return loss


def translator(model, generator):
    def loss(upload):
        source, target = upload(tokens(generator)), upload(tokens(generator))
        return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    return loss


def vae(model, generator):
    def loss(upload):
        x = upload(torch.rand(BATCH, 20, generator=generator))
        return model.loss(x, upload(torch.randn(BATCH, 4, generator=generator)))

    return loss


CASES = {
    "gpt2": (
        make_gpt2,
        language_model,
        {"*.c_fc.weight": (None, "y"), "*.mlp.c_proj.weight": ("y", None)},
    ),
    "llama": (make_llama, language_model, {"*_proj.weight": ("y", None)}),
    "transformer": (
        Translator,
        translator,
        {"*linear1.weight": ("y", None), "*linear2.weight": (None, "y")},
    ),
    "lstm": (Tagger, tagger, {"*.weight_ih_*": ("y", None), "embed.weight": (None, "y")}),
    "vae": (VAE, vae, {"encode.0.weight": ("y", None), "decode.0.weight": (None, "y")}),
}


def losses(case, device, mesh=None, steps=4):
    make, make_loss, rules = CASES[case]
    torch.manual_seed(0)
    model = make().train().to(device)
    if mesh is not None:
        spmd.shard_module(model, mesh, rules)

    def upload(t):
        t = t.to(device)
        return t if mesh is None else spmd.mark_sharding(t, mesh, ("x", *[None] * (t.dim() - 1)))

    loss_of = make_loss(model, torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    result = []
    for _ in range(steps):
        loss = loss_of(upload)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        result.append(loss.item())
    return result


@pytest.mark.parametrize("case", CASES)
def test_unsharded_equals_cpu(case):
    assert losses(case, "spmd") == pytest.approx(losses(case, "cpu"), rel=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_sharded_equals_cpu(case):
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    assert losses(case, "spmd", mesh) == pytest.approx(losses(case, "cpu"), rel=1e-4)
