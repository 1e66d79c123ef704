# SPDX-License-Identifier: Apache-2.0
"""Trains the models of a checkout of torchprime, small, by its own trainer and its own sharding
configurations, on `torch_spmd.torch_xla`.

    git clone --depth 1 https://github.com/AI-Hypercomputer/torchprime
    python -m benchmarks.peers.torchprime torchprime

Each row is a configuration of shardings on eight devices, in float32. Its losses and norms of
gradients are compared with those of the same model and weights on one device; the exit status is 1
if they differ by more than one in ten thousand, or if the loss does not fall. Nothing of the
checkout is copied or changed. It needs the packages that torchprime imports: hydra-core, omegaconf,
dataclasses-json, datasets, jax, tensorboard, transformers.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
SMALL = (
    "model.vocab_size=256", "model.hidden_size=64", "model.intermediate_size=128",
    "model.num_hidden_layers=3", "model.num_attention_heads=8", "model.num_key_value_heads=4",
    "model.max_position_embeddings=128", "task.global_batch_size=8", f"task.max_steps={STEPS}",
    "task.optimizer.learning_rate=3.e-3", "logging_steps=1", "profile_start_step=-1",
    "profile_end_step=-1", "dataset.block_size=32",
)  # fmt: skip
LLAMA = ("model=llama-3-8b",)
MIXTRAL = ("model=mixtral-8x7b",)
LLAMA4 = (
    "model=llama-4-text-only-dummy", "model.head_dim=8", "model.intermediate_size_mlp=96",
    "model.num_local_experts=4", "model.no_rope_layers=[1,1,1]", "model.moe_layers=[0,1,2]",
)  # fmt: skip
DEEPSEEK = (
    "model=deepseek-v3-shallow", "model.moe_intermediate_size=32", "model.n_routed_experts=8",
    "model.kv_lora_rank=16", "model.q_lora_rank=16", "model.qk_rope_head_dim=8",
    "model.v_head_dim=8", "model.qk_nope_head_dim=8", "model.qk_head_dim=16", "model.head_dim=8",
    "model.n_group=2", "model.topk_group=1", "model.num_experts_per_tok=2",
    "model.first_k_dense_replace=1", "model.num_key_value_heads=8",
)  # fmt: skip
FSDP = ("ici_mesh.fsdp=8",)
BOTH = ("ici_mesh.fsdp=4", "ici_mesh.tensor=2")
# The model and its sizes; its shardings, their mesh, and what else differs from one device.
ROWS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (LLAMA, ("model/sharding=llama-fsdp", *FSDP)),
    (LLAMA, ("model/sharding=llama-fsdp-tp", *BOTH)),
    (LLAMA, ("model/sharding=llama-fsdp-tp", *BOTH, "model/remat=llama-scan")),
    (LLAMA, ("model/sharding=llama-fsdp", *FSDP, "model/remat=llama-scan-offload")),
    (LLAMA, ("model/sharding=llama-fsdp-tp", *BOTH, "model.attention_kernel=splash_attention")),
    (MIXTRAL, ("model/sharding=mixtral-fsdp", *FSDP)),
    (LLAMA4, ("model/sharding=llama4-fsdp", *FSDP)),
    (LLAMA4, ("model/sharding=llama4-fsdp-tp", *BOTH)),
    (DEEPSEEK, ("model/sharding=deepseek-fsdp-tp-ep", "ici_mesh.fsdp=4", "ici_mesh.expert=2")),
)


class Losses(logging.Handler):
    """What the trainer logs of each step: the loss and the norm of the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "grad_norm" in str(record.msg) and isinstance(record.args, tuple):
            loss, norm = record.args[2:4]
            self.steps.append([float(str(loss)), float(str(norm))])


def train(checkout: Path, overrides: list[str], scratch: str) -> list[list[float]]:
    """The steps of a model, in this process."""
    sys.path.insert(0, str(checkout))
    import torch_spmd.torch_xla.install  # noqa: F401 isort: skip
    import importlib

    import torch
    import torch_xla

    torch_xla.runtime.use_spmd()
    hydra: Any = importlib.import_module("hydra")
    trainers = importlib.import_module("torchprime.torch_xla_models.trainer")
    model_utils = importlib.import_module("torchprime.torch_xla_models.model.model_utils")
    configs = checkout / "torchprime" / "torch_xla_models" / "configs"
    with hydra.initialize_config_dir(str(configs), version_base=None):
        config = hydra.compose("default", [*SMALL, *overrides, f"output_dir={scratch}"])
    with model_utils.set_default_dtype(torch.float32), torch_xla.device():
        model = model_utils.initialize_model_class(config.model)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=random) * 0.05)
    rows = torch.randint(256, (8, 32), generator=random)
    data = [{"input_ids": row, "labels": row} for row in rows]
    losses = Losses()
    logger = logging.getLogger(f"{trainers.__name__}.base_trainer")
    logger.setLevel(logging.INFO)
    logger.addHandler(losses)
    trainer = trainers.Trainer(model=model, config=config, train_dataset=data)
    trainer.train_loop()
    torch_xla.sync()  # the closure of the last step
    torch_xla.core.xla_model.wait_device_ops()
    return losses.steps


def run(checkout: Path, overrides: tuple[str, ...], devices: int) -> list[list[float]] | str:
    """The steps of a model in a process of its own, or its last words."""
    with tempfile.TemporaryDirectory() as scratch:
        env = os.environ | {"SPMD_NUM_DEVICES": str(devices)}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.torchprime", checkout]
        done = subprocess.run(
            [*command, "--one", scratch, *overrides],
            env=env, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("STEPS ")]
    if done.returncode != 0 or not lines:
        return (done.stderr.strip() or done.stdout.strip() or "no text").splitlines()[-1]
    steps: list[list[float]] = json.loads(lines[-1][6:])
    return steps


def compared(steps: list[list[float]] | str, expected: list[list[float]] | str) -> tuple[bool, str]:
    """Whether a row is right, and what it says."""
    for result in (expected, steps):
        if isinstance(result, str):
            return False, f"fails: {result[:100]}"
    assert not isinstance(steps, str) and not isinstance(expected, str)
    pairs = [(a, b) for ours, theirs in zip(steps, expected) for a, b in zip(ours, theirs)]
    far = max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)
    falls = len(steps) == len(expected) >= STEPS - 1 and steps[-1][0] < steps[0][0]
    text = f"{steps[0][0]:8.4f} {steps[-1][0]:8.4f} {far:10.1e}"
    return falls and far < 1e-4, text + ("" if falls else "  not less")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="the root of a checkout of torchprime")
    # Of the processes of rows: a folder for what is written, and parts of the configuration.
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if options.one:
        scratch, *overrides = options.one
        print("STEPS", json.dumps(train(checkout, overrides, scratch)))
        return 0
    print(f"{'model and shardings':68} {'first':>8} {'last':>8} {'difference':>10}", flush=True)
    expected: dict[tuple[str, ...], list[list[float]] | str] = {}
    all_right = True
    for model, shardings in ROWS:
        if model not in expected:
            expected[model] = run(checkout, (*model, "ici_mesh.fsdp=1"), 1)
        right, text = compared(run(checkout, (*model, *shardings), 8), expected[model])
        all_right &= right
        names = [part.split("=")[1] for part in (*model[:1], *shardings) if "ici" not in part]
        print(f"{' '.join(names):68} {text}", flush=True)
    return int(not all_right)


if __name__ == "__main__":
    sys.exit(main())
