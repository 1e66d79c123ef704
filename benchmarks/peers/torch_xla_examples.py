# SPDX-License-Identifier: Apache-2.0
"""Trains the decoder examples and the sharded ResNet of a checkout of pytorch/xla on
`torch_spmd.torch_xla`.

    git clone --depth 1 -b v2.9.0 https://github.com/pytorch/xla
    python -m benchmarks.peers.torch_xla_examples xla --devices 4

Prints for each script the loss of steps 0 and 10, of a ResNet-18 the first and the last that it
prints, which has to fall. The scripts run unchanged, but for their sizes, which are made small in a
copy: they train a model of 200 million parameters, and 1.2 million images of 224 x 224. A ResNet
needs torchvision.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# (file, what is there, what stands there in the copy)
SIZES = (
    ("decoder_only_model.py", r"(hidden_size: int =) 1024", r"\1 64"),
    ("decoder_only_model.py", r"(intermediate_size: int =) 32 \* 1024", r"\1 128"),
    ("decoder_only_model.py", r"(vocab_size: int =) 3200", r"\1 256"),
    ("train_decoder_only_base.py", r"(self.batch_size =) 16", r"\1 2"),
    ("train_decoder_only_base.py", r"(self.seq_len =) 512", r"\1 32"),
    ("train_decoder_only_base.py", r"(num_steps: int =) 200", r"\1 12"),
)
BASE = (
    "train_decoder_only_base.py", "--hidden-size=64", "--intermediate-size=128", "--num-steps=12",
    "--num-attention-heads=4", "--num-key-value-heads=2",
)  # fmt: skip
SCRIPTS = (
    BASE,
    (*BASE, "scan.decoder_with_scan.DecoderWithScan", "--is-decoder-layer-pure"),
    ("eager/train_decoder_only_eager.py",),
    ("eager/train_decoder_only_eager_multi_process.py",),
    ("eager/train_decoder_only_eager_spmd_data_parallel.py",),
    ("eager/train_decoder_only_eager_with_compile.py",),
    ("flash_attention/train_decoder_only_flash_attention.py",),
    ("flash_attention/train_decoder_only_flash_attention_fsdp_v2.py",),
    ("fsdp/train_decoder_only_fsdp_v2.py",),
)

# How test/spmd/test_train_spmd_imagenet.py shards a ResNet.
RESNET = "test_train_spmd_imagenet.py"
SHARDINGS = ("", "batch", "spatial", "conv", "linear", "batch spatial", "conv batch")
RESNET_SIZES = (
    (RESNET, r"('img_dim':) 224", r"\1 32"),
    (RESNET, r"(train_dataset_len =) 1200000", r"\1 64"),
    (RESNET, r"(sample_count=)50000", r"\g<1>64"),
)


def make_small(folder: Path, sizes: Sequence[tuple[str, str, str]] = SIZES) -> None:
    """Errors: ValueError for a script in which a size is not where it is in release 2.9."""
    for name, there, small in sizes:
        text, found = re.subn(there, small, (folder / name).read_text())
        if found != 1:
            raise ValueError(f"{name} has {found} places like {there!r}; it is not that of 2.9")
        (folder / name).write_text(text)


def train(folder: Path, words: tuple[str, ...], devices: int) -> str:
    """What the script's row says."""
    return said(run(folder, words, devices, folder), r"loss: ([\d.e+-]+|nan)")


def train_resnet(folder: Path, tests: Path, sharding: str, devices: int) -> str:
    """What the row of a sharding says; `tests` has what the script imports."""
    if importlib.util.find_spec("torchvision") is None:
        return "not run: torchvision is not installed"
    words = [RESNET, "--fake_data", "--model=resnet18", "--batch_size=16", "--lr=0.01"]
    words += ["--test_set_batch_size=16", "--num_epochs=1", "--log_steps=1", "--num_workers=1"]
    words += ["--sharding", *sharding.split()] if sharding else []
    return said(run(folder, words, devices, tests), r"Loss=([\d.e+-]+|nan)")


def run(folder: Path, words: Sequence[str], devices: int, imports: Path) -> Any:
    path = os.pathsep.join([str(ROOT), str(imports), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"SPMD_NUM_DEVICES": str(devices), "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-m", "torch_spmd.torch_xla", folder / words[0]]
    return subprocess.run([*command, *words[1:]], env=env, capture_output=True, text=True)


def said(done: Any, loss: str) -> str:
    """The first and the last loss of a process's text."""
    losses = [float(found) for found in re.findall(loss, done.stdout)]
    if done.returncode != 0 or len(losses) < 2:
        return f"failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}"
    return f"{losses[0]:8.3f} {losses[-1]:8.3f}" + ("" if losses[-1] < losses[0] else "  not less")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the root of a checkout of pytorch/xla")
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(options.checkout / "examples", folder, ignore_dangling_symlinks=True)
        make_small(folder)
        print(f"{'script':65} {'first':>8} {'last':>8}", flush=True)
        for words in SCRIPTS:
            name = " ".join(word for word in words if "=" not in word)
            print(f"{name:65.65} {train(folder, words, options.devices)}", flush=True)
        folder = Path(scratch) / "spmd"
        shutil.copytree(options.checkout / "test" / "spmd", folder)
        make_small(folder, RESNET_SIZES)
        for sharding in SHARDINGS:
            row = train_resnet(folder, options.checkout / "test", sharding, options.devices)
            print(f"{f'{RESNET} {sharding}':65} {row}", flush=True)


if __name__ == "__main__":
    main()
