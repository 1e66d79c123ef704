# SPDX-License-Identifier: Apache-2.0
"""A corpus that every machine with Python has: the standard library's own sources."""

from __future__ import annotations

import math
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib"}
HELD_OUT_EVERY = 20  # one file in twenty is never trained on


class ByteTokenizer:
    """Text as UTF-8 bytes: 256 tokens, nothing to learn, nothing to download."""

    vocab_size = 256

    def encode(self, text: str) -> Tensor:
        """Tokens int64 [n] of `text`."""
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()

    def decode(self, tokens: Tensor) -> str:
        """The text of int64 [n]; bytes that are no UTF-8 become the replacement character."""
        return bytes(tokens.tolist()).decode(errors="replace")


@dataclass(frozen=True)
class Corpus:
    """Tokens of the training files and of the held-out files, int64 [n] each."""

    train: Tensor
    held_out: Tensor
    files: int

    def unigram_loss(self) -> float:
        """Held-out cross entropy, in nats per token, of the best model that ignores context.

        Token frequencies are counted on the training files; every token gets one count more so
        that none is impossible.
        """
        counts = torch.bincount(self.train, minlength=ByteTokenizer.vocab_size).double() + 1
        log_p = (counts / counts.sum()).log()
        seen = Counter(self.held_out.tolist())
        total = sum(seen.values())
        return -math.fsum(n * log_p[token].item() for token, n in seen.items()) / total

    def batches(self, batch: int, block: int, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless (inputs, targets), int64 [batch, block] each, from random places of `train`."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.arange(block)
        while True:
            starts = torch.randint(len(self.train) - block - 1, (batch, 1), generator=generator)
            index = starts + offsets
            yield self.train[index], self.train[index + 1]

    def held_out_batches(
        self, batch: int, block: int, count: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`count` fixed (inputs, targets) spread evenly over the held-out files."""
        starts = torch.linspace(0, len(self.held_out) - block - 2, batch * count).long()
        for part in starts.view(count, batch, 1):
            index = part + torch.arange(block)
            yield self.held_out[index], self.held_out[index + 1]


def standard_library(max_bytes: int = 12_000_000) -> Corpus:
    """Reads *.py of the standard library in sorted order, whole files, up to `max_bytes`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(
        path
        for path in root.rglob("*.py")
        if not SKIPPED_FOLDERS & set(path.parts[len(root.parts) :])
    )
    tokenizer = ByteTokenizer()
    train: list[Tensor] = []
    held_out: list[Tensor] = []
    size = 0
    for number, path in enumerate(sources):
        text = path.read_text(encoding="utf-8", errors="replace")
        if not text or size > max_bytes:
            continue
        size += len(text)
        (held_out if number % HELD_OUT_EVERY == 0 else train).append(tokenizer.encode(text))
    if not train or not held_out:
        raise SystemExit(
            f"No Python sources under {root}: this example trains on the standard library's own "
            "sources; run it with a Python that has them."
        )
    return Corpus(torch.cat(train), torch.cat(held_out), files=len(train) + len(held_out))
