# SPDX-License-Identifier: Apache-2.0
"""A GPT in plain PyTorch. Nothing in this file knows about sharding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    vocab_size: int = 256
    block: int = 128  # longest sequence
    layers: int = 6
    width: int = 384
    heads: int = 8
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal self-attention with separate q, k and v projections."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def by_head(y: Tensor) -> Tensor:  # [batch, length, width] -> [batch, heads, length, …]
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            by_head(self.q(x)),
            by_head(self.k(x)),
            by_head(self.v(x)),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Token and position embeddings, `layers` blocks, a head tied to the token embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.block, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._init)
        for name, parameter in self.named_parameters():  # residual branches: less the deeper
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, length, vocab] of int64 [batch, length]; with targets the mean loss []."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, *, temperature: float, seed: int) -> Tensor:
        """Appends `count` sampled tokens to int64 [1, n]; returns int64 [n + count] on the host.

        The window always has `block` tokens, so one compiled program serves every step; choosing
        the next token is the host's work.
        """
        generator = torch.Generator().manual_seed(seed)
        device = self.tokens.weight.device
        text = tokens[0].tolist()
        window = torch.zeros(1, self.config.block, dtype=torch.long)
        for _ in range(count):
            seen = text[-self.config.block :]
            window[0, : len(seen)] = torch.tensor(seen)
            logits = self(window.to(device)).cpu()[0, len(seen) - 1] / temperature
            text.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        return torch.tensor(text)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
