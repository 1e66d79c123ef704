# SPDX-License-Identifier: Apache-2.0
"""Trains the decoder examples of a checkout of pytorch/xla on `torch_spmd.torch_xla`.

    git clone --depth 1 -b v2.9.0 https://github.com/pytorch/xla
    python -m benchmarks.peers.torch_xla_examples xla --devices 4

Prints for each script the loss of steps 0 and 10, which has to fall. The scripts run unchanged, but
for their sizes, which are made small in a copy: they train a model of 200 million parameters.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def make_small(folder: Path) -> None:
    """Errors: ValueError for a script in which a size is not where it is in release 2.9."""
    for name, there, small in SIZES:
        text, found = re.subn(there, small, (folder / name).read_text())
        if found != 1:
            raise ValueError(f"{name} has {found} places like {there!r}; it is not that of 2.9")
        (folder / name).write_text(text)


def train(folder: Path, words: tuple[str, ...], devices: int) -> str:
    """What the script's row says."""
    path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"SPMD_NUM_DEVICES": str(devices), "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-m", "torch_spmd.torch_xla", folder / words[0]]
    done = subprocess.run([*command, *words[1:]], env=env, capture_output=True, text=True)
    losses = [float(loss) for loss in re.findall(r"loss: ([\d.e+-]+|nan)", done.stdout)]
    if done.returncode != 0 or len(losses) != 2:
        return f"failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}"
    return f"{losses[0]:8.3f} {losses[1]:8.3f}" + ("" if losses[1] < losses[0] else "  not less")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the root of a checkout of pytorch/xla")
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(options.checkout / "examples", folder, ignore_dangling_symlinks=True)
        make_small(folder)
        print(f"{'script':65} {'step 0':>8} {'step 10':>8}", flush=True)
        for words in SCRIPTS:
            name = " ".join(word for word in words if "=" not in word)
            print(f"{name:65.65} {train(folder, words, options.devices)}", flush=True)


if __name__ == "__main__":
    main()
