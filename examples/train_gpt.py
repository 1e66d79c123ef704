# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the Python standard library's own sources, sharded over a mesh.

    python examples/train_gpt.py                                  # 2 × 4 virtual CPU devices
    python examples/train_gpt.py --mesh data=8 --strategy fsdp
    python examples/train_gpt.py --backend mock_tpu:v4-16 --mesh data=2,model=4
    torchrun --nproc-per-node=2 examples/train_gpt.py             # 2 processes with 4 devices each
    python examples/train_gpt.py --checkpoint runs/gpt/saved      # goes on where it was stopped
    python examples/train_gpt.py --unsharded                      # the same script, one device
    python examples/train_gpt.py --unsharded --device cpu         # plain PyTorch, for comparison

The model (common/gpt.py) and the loop below are ordinary PyTorch. What makes them sharded is the
function `shard_model` and the mark on each batch.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from common.corpus import ByteTokenizer, Corpus, standard_library
from common.gpt import GPT, GPTConfig, parameter_count
from common.options import mesh_axes
from common.report import Progress, heading, save_curve, show_in_process_0
from common.resume import Resume
from common.strategies import Strategy, strategy
from torch import Tensor

if TYPE_CHECKING:
    import torch_spmd as spmd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where and how")
    where.add_argument("--mesh", type=mesh_axes, default={"data": 2, "model": 4})
    where.add_argument("--strategy", choices=["dp", "tp", "fsdp", "2d"], default="2d")
    where.add_argument("--backend", default="cpu", help="cpu, cuda, mock_tpu:v4-16, …")
    where.add_argument("--unsharded", action="store_true", help="no mesh, no marks")
    where.add_argument(
        "--device",
        choices=["spmd", "cpu"],
        default="spmd",
        help="cpu: plain PyTorch, no torch_spmd",
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--steps", type=int, default=100)
    job.add_argument("--batch", type=int, default=8)
    job.add_argument("--block", type=int, default=128, help="tokens per sequence")
    job.add_argument("--accumulate", type=int, default=1, help="micro-steps per step")
    job.add_argument("--layers", type=int, default=6)
    job.add_argument("--width", type=int, default=384)
    job.add_argument("--heads", type=int, default=8)
    job.add_argument("--dropout", type=float, default=0.1)
    job.add_argument("--lr", type=float, default=1e-3)
    job.add_argument("--warmup", type=int, default=10)
    job.add_argument("--clip", type=float, default=1.0)
    job.add_argument("--seed", type=int, default=0)
    job.add_argument("--eval-every", type=int, default=25)
    job.add_argument("--sample", type=int, default=200, help="tokens of generated text; 0: none")
    job.add_argument("--checkpoint", type=Path, help="folder to save to, and to go on from")
    job.add_argument("--checkpoint-every", type=int, default=25, help="steps")
    job.add_argument("--out", type=Path, default=Path("runs/gpt"))
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.unsharded:
        parser.error("--device cpu is plain PyTorch, which has no shardings: add --unsharded")
    return arguments


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return float(args.lr) * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return float(args.lr) * (0.55 + 0.45 * math.cos(math.pi * done))


def make_optimizer(model: GPT, lr: float) -> torch.optim.AdamW:
    """AdamW that decays matrices, not biases and norms."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


class Placement:
    """Where tensors go: the device, and the mesh and strategy unless the run is unsharded."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device = args.device
        self.mesh: spmd.Mesh | None = None
        self.plan: Strategy | None = None
        if args.device == "spmd":
            import torch_spmd as spmd

            spmd.config.set_backend(args.backend)
            show_in_process_0(spmd.processes.process_index())
            if not args.unsharded:
                self.mesh = spmd.make_mesh(tuple(args.mesh.values()), tuple(args.mesh))
                self.plan = strategy(args.strategy, self.mesh.axis_names)

    def shard_model(self, model: GPT) -> None:
        if self.mesh is not None and self.plan is not None:
            import torch_spmd as spmd

            spmd.shard_module(model, self.mesh, self.plan.rules)

    def upload(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] on the device, sharded as the strategy says."""
        tokens = tokens.to(self.device)
        if self.mesh is not None and self.plan is not None:
            import torch_spmd as spmd

            spmd.mark_sharding(tokens, self.mesh, self.plan.inputs)
        return tokens

    def __str__(self) -> str:
        if self.mesh is None:
            return f"{self.device}, unsharded"
        return f"{self.device}, mesh {self.mesh}"


@torch.no_grad()
def evaluate(model: GPT, corpus: Corpus, place: Placement, args: argparse.Namespace) -> float:
    """Mean held-out loss over a fixed set of sequences."""
    model.eval()
    losses = [
        model(place.upload(inputs), place.upload(targets)).item()
        for inputs, targets in corpus.held_out_batches(args.batch, args.block, count=4)
    ]
    model.train()
    return sum(losses) / len(losses)


@dataclass
class History:
    """What a run leaves: losses per step, held-out losses by step, tables of the last step."""

    losses: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)


def train(model: GPT, corpus: Corpus, place: Placement, args: argparse.Namespace) -> History:
    optimizer = make_optimizer(model, args.lr)
    batches = corpus.batches(args.batch, args.block, seed=args.seed)
    history = History()
    progress = Progress(
        args.steps,
        units_per_step=args.batch * args.block * args.accumulate,
        unit="tok",
        title="train_gpt",
    )
    with Resume(args.checkpoint, args.checkpoint_every, model, optimizer) as resume:
        history.losses = resume.losses
        for _ in range(resume.done * args.accumulate):
            next(batches)
        for step in progress:
            if step < resume.done:
                continue
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            history.losses.append(train_step(model, optimizer, batches, place, args))
            progress.show(loss=history.losses[-1])
            last = step + 1 == args.steps
            if last and args.device == "spmd":
                history.tables = tables_of_last_program()
            stop = resume.save(step + 1, history.losses)
            if stop or last or (step + 1) % args.eval_every == 0:
                history.held_out[step + 1] = evaluate(model, corpus, place, args)
                progress.show(held_out=history.held_out[step + 1])
            if stop:
                break
    if not history.held_out:  # all steps were made before
        history.held_out[args.steps] = evaluate(model, corpus, place, args)
    return history


def train_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
    place: Placement,
    args: argparse.Namespace,
) -> float:
    """One step of as many micro-steps as the arguments say. Returns the loss."""
    micro_losses = []
    for _ in range(args.accumulate):
        inputs, targets = next(batches)
        loss = model(place.upload(inputs), place.upload(targets)) / args.accumulate
        loss.backward()
        micro_losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()
    return sum(value.item() for value in micro_losses)


def tables_of_last_program() -> dict[str, str]:
    import torch_spmd as spmd

    return {
        "Collectives of one training step": str(spmd.debug.collectives()),
        "Memory per device in one training step": str(spmd.debug.memory()),
    }


def show_tables(model: GPT, history: History) -> None:
    """What the last training step did, and pictures of two weights."""
    import torch_spmd as spmd

    for title, table in history.tables.items():
        heading(title)
        print(table)
    for name in ("blocks.0.attention.q.weight", "blocks.0.mlp.down.weight"):
        heading(f"Sharding of {name}")
        spmd.debug.visualize_sharding(model.get_parameter(name))
    heading("Programs compiled")
    print(spmd.debug.explain_compile())


def show_sample(model: GPT, args: argparse.Namespace) -> None:
    tokenizer = ByteTokenizer()
    prompt = "def __init__(self, "
    model.eval()
    text = model.generate(
        tokenizer.encode(prompt)[None], args.sample, temperature=0.8, seed=args.seed
    )
    heading(f"{args.sample} generated tokens after {prompt!r}")
    print(tokenizer.decode(text))


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    corpus = standard_library()
    try:
        place = Placement(args)
    except ValueError as error:
        raise SystemExit(f"train_gpt: {error}") from None
    config = GPTConfig(
        block=args.block,
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        dropout=args.dropout,
    )
    model = GPT(config).to(place.device)
    place.shard_model(model)
    unigram = corpus.unigram_loss()
    print(
        f"GPT with {parameter_count(model) / 1e6:.1f} M parameters on {place}\n"
        f"corpus: {corpus.files} files of the Python standard library, "
        f"{len(corpus.train) / 1e6:.1f} M training and {len(corpus.held_out) / 1e6:.1f} M held-out "
        "bytes"
    )
    started = time.perf_counter()
    history = train(model, corpus, place, args)
    seconds = time.perf_counter() - started

    if args.sample:
        show_sample(model, args)
    if history.tables:
        show_tables(model, history)
    heading("Result")
    curve = args.out / "loss.png"
    save_curve(
        curve,
        history.losses,
        history.held_out,
        title=f"GPT, {place}",
        baseline=("unigram", unigram),
    )
    final = list(history.held_out.values())[-1]
    print(
        f"{args.steps} steps in {seconds:.0f} s; training loss {history.losses[0]:.3f} -> "
        f"{history.losses[-1]:.3f}\n"
        f"held-out loss {final:.3f} nats per byte, unigram model {unigram:.3f}\n"
        f"loss curve: {curve}"
    )


if __name__ == "__main__":
    main()
