# SPDX-License-Identifier: Apache-2.0
"""Runs scripts of others on `spmd` and on the CPU, and compares the numbers that they print.

    git clone --depth 1 https://github.com/pytorch/examples
    git clone --depth 1 https://github.com/karpathy/nanoGPT
    git clone --depth 1 https://github.com/karpathy/minGPT
    python -m benchmarks.peers.scripts --examples examples --nanogpt nanoGPT --mingpt minGPT

Of pytorch/examples these are the scripts that use `torch.accelerator`, unchanged. nanoGPT and
minGPT have one changed line, which moves the model to the device and shards it over eight devices
with `spmd.fsdp`. Folders are copied before they are run; nothing of a checkout is changed. Data are
random and small, arguments make models small, and random numbers are drawn on the CPU
(`launch_script.py`). torchvision is needed by most of them.

Prints a row per script: lines changed, how many numbers were compared, the largest difference
relative to the CPU's, seconds on `spmd`, and what happened. The exit status is 1 if a script that
runs on the CPU does not run on `spmd`, or prints another number.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = Path(__file__).with_name("launch_script.py")
CLOSE = 2e-3  # relative; printed numbers have four digits
LOSS = r"(?i)loss[:= a-z]*?([-+]?\d+\.\d+(?:e[-+]?\d+)?)"

Line = tuple[str, str, str]


@dataclass
class Case:
    """A script of a checkout.

    `needs` are packages. `data` writes what the script reads into the folder in which it is run.
    `changed` has a file, the line in it, and what stands there on `spmd`. `numbers` finds what is
    compared in what the script prints.
    """

    checkout: str
    script: str
    arguments: Sequence[str] = ()
    data: Callable[[Path], None] = lambda folder: None
    changed: Line | None = None
    numbers: str = LOSS
    needs: Sequence[str] = ("torchvision",)
    before: Sequence[str] = ()
    on_spmd: Sequence[str] = ()
    folder: str | None = None

    def name(self) -> str:
        return " ".join([self.checkout, self.script, *self.before[:1]])


@dataclass
class Outcome:
    numbers: list[float] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0


# --- data ---


def mnist(*places: str) -> Callable[[Path], None]:
    """Files as torchvision's MNIST has them after a download: 64 images to train, 32 to test."""

    def write(folder: Path) -> None:
        draw = random.Random(0)
        for place in places:
            raw = folder / place / "MNIST" / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for kind, count in (("train", 64), ("t10k", 32)):
                images = struct.pack(">IIII", 0x803, count, 28, 28) + draw.randbytes(count * 784)
                labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
                (raw / f"{kind}-images-idx3-ubyte").write_bytes(images)
                (raw / f"{kind}-labels-idx1-ubyte").write_bytes(labels)

    return write


def images(count: int, size: int, *places: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from PIL import Image

        draw = random.Random(0)
        for place in places:
            (folder / place).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                # Larger patches than pixels, so that a smaller copy is still an image.
                small = Image.frombytes("RGB", (8, 8), draw.randbytes(192))
                small.resize((size, size)).save(folder / place / f"{i}.png")

    return write


def cora(folder: Path) -> None:
    """A graph of 1,600 papers with 8 words in 3 classes, as the archive of Cora has it."""
    draw = random.Random(0)
    (folder / "cora").mkdir(exist_ok=True)
    rows = [
        "\t".join([str(i), *(str(draw.randint(0, 1)) for _ in range(8)), f"class{i % 3}"])
        for i in range(1600)
    ]
    cites = {(draw.randrange(1600), draw.randrange(1600)) for _ in range(4000)}
    (folder / "cora" / "cora.content").write_text("\n".join(rows))
    (folder / "cora" / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in sorted(cites)))


def words(folder: Path) -> None:
    draw = random.Random(0)
    place = folder / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", 60), ("valid", 20), ("test", 20)):
        text = "\n".join(
            " ".join(f"word{draw.randrange(50)}" for _ in range(10)) for _ in range(lines)
        )
        (place / f"{name}.txt").write_text(text)


def characters(folder: Path) -> None:
    """What nanoGPT's prepare.py for Shakespeare's characters writes, of a random text."""
    draw = random.Random(0)
    place = folder / "data" / "shakespeare_char"
    place.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 4000), ("val", 1000)):
        ids = [draw.randrange(65) for _ in range(count)]
        (place / f"{name}.bin").write_bytes(struct.pack(f"<{count}H", *ids))


def text(folder: Path) -> None:
    draw = random.Random(0)
    sentence = (
        "O God, O God! How weary, stale, flat and unprofitable seem to me all the uses of it. "
    )
    letters = [draw.choice(sentence) for _ in range(3000)]
    (folder / "input.txt").write_text(sentence + "".join(letters))


# --- scripts ---

FSDP = 'spmd.fsdp({model}, spmd.make_mesh((8,), ("data",)), "data")'

CASES = (
    Case(
        "examples", "mnist/main.py", ("--epochs", "1", "--log-interval", "1", "--batch-size", "16"),
        mnist("../data"),
    ),
    Case("examples", "vae/main.py", ("--epochs", "1", "--log-interval", "1", "--batch-size", "16"),
         mnist("../data")),
    Case(
        "examples", "mnist_rnn/main.py",
        ("--accel", "--epochs", "1", "--log-interval", "1", "--batch-size", "16"), mnist("../data"),
    ),
    Case(
        "examples", "mnist_forward_forward/main.py",
        ("--epochs", "2", "--train_size", "64", "--test_size", "32", "--log-interval", "1"),
        mnist("data"), numbers=r"Loss: +([\d.]+)",
    ),
    Case(
        "examples", "siamese_network/main.py",
        ("--epochs", "1", "--log-interval", "1", "--batch-size", "16", "--dry-run"),
        mnist("../data"),
    ),
    Case(
        "examples", "dcgan/main.py",
        ("--accel", "--dataset", "folder", "--dataroot", "images", "--niter", "1", "--batchSize",
         "8", "--ngf", "8", "--ndf", "8", "--manualSeed", "1", "--workers", "1"),
        images(16, 64, "images/one"), numbers=r"Loss_[DG]: ([\d.]+)",
    ),
    Case(
        "examples", "super_resolution/main.py",
        ("--accel", "--upscale_factor", "2", "--nEpochs", "1", "--batchSize", "2", "--threads",
         "1"),
        images(4, 256, "dataset/BSDS300/images/train", "dataset/BSDS300/images/test"),
        numbers=r"(?:Loss|PSNR): ([\d.]+)", needs=("torchvision", "six"),
    ),
    Case(
        "examples", "imagenet/main.py",
        ("data", "--epochs", "1", "-b", "4", "-j", "1", "-p", "1", "--seed", "1", "--lr", "0.001"),
        images(4, 256, "data/train/a", "data/train/b", "data/val/a", "data/val/b"),
        numbers=r"Loss ([\d.e+-]+)",
    ),
    Case(
        "examples", "fast_neural_style/neural_style/neural_style.py",
        ("train", "--accel", "--dataset", "images", "--style-image", "images/one/0.png",
         "--save-model-dir", "saved", "--epochs", "1", "--batch-size", "2", "--image-size", "32",
         "--style-size", "32", "--log-interval", "1"),
        images(4, 64, "images/one"), numbers=r"total: ([\d.]+)",
        folder="fast_neural_style/neural_style",
    ),
    *(
        Case(
            "examples", "word_language_model/main.py",
            ("--accel", "--epochs", "1", "--emsize", "16", "--nhid", "16", "--log-interval", "2",
             "--batch_size", "4", "--bptt", "8", "--lr", "1", "--dropout", "0", "--model", model),
            words, numbers=r"loss +([\d.]+)", needs=(), before=(model,),
        )
        for model in ("LSTM", "GRU", "RNN_TANH", "Transformer")
    ),
    Case(
        "examples", "gat/main.py",
        ("--epochs", "2", "--val-every", "1", "--hidden-dim", "4", "--num-heads", "2"), cora,
        numbers=r"loss\w* ?:? ?([\d.]+)", needs=("requests",),
    ),
    Case(
        "examples", "gcn/main.py", ("--epochs", "2", "--val-every", "1"),
        cora,
        numbers=r"loss\w* ?:? ?([\d.]+)", needs=("requests",),
    ),
    Case(
        "nanogpt", "train.py",
        ("config/train_shakespeare_char.py", "--compile=False", "--dtype=float32", "--max_iters=5",
         "--eval_iters=2", "--eval_interval=4", "--log_interval=1", "--batch_size=8",
         "--block_size=32", "--n_layer=2", "--n_head=4", "--n_embd=32", "--dropout=0.0",
         "--device=cpu"),
        characters,
        ("train.py", "model.to(device)",
         "import torch_spmd as spmd; device = 'spmd'; model.to(device); "
         + FSDP.format(model="model")),
        needs=(),
    ),
    Case(
        "mingpt", "projects/chargpt/chargpt.py",
        ("--model.model_type=None", "--model.n_layer=2", "--model.n_head=4", "--model.n_embd=32",
         "--model.embd_pdrop=0.0", "--model.resid_pdrop=0.0", "--model.attn_pdrop=0.0",
         "--data.block_size=32", "--trainer.max_iters=11", "--trainer.num_workers=0",
         "--trainer.batch_size=8", "--trainer.device='cpu'"),
        text,
        ("mingpt/trainer.py", "        self.model = self.model.to(self.device)",
         "        import torch_spmd as spmd; self.device = 'spmd'; "
         "self.model = self.model.to(self.device); " + FSDP.format(model="model")),
        needs=(), folder=".",
    ),
)  # fmt: skip


def numbers(pattern: str, printed: str) -> list[float]:
    return [float(number.rstrip(".")) for number in re.findall(pattern, printed)]


def run(case: Case, checkout: Path, device: str, limit: int) -> Outcome:
    """Runs the case in a copy. `error` is the last line that a failing script has printed."""
    with tempfile.TemporaryDirectory() as scratch:
        source = checkout / (case.folder or str(Path(case.script).parent))
        inside = Path(case.script).relative_to(case.folder or str(Path(case.script).parent))
        copy = Path(scratch) / "copy"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "*.txt", "*.ipynb"))
        (copy / "results").mkdir(exist_ok=True)
        case.data(copy)
        if case.changed is not None and device == "spmd":
            file, old, new = case.changed
            code = (copy / file).read_text()
            if code.count(f"{old}\n") != 1:
                return Outcome(error=f"{file} does not have one line {old.strip()!r}")
            (copy / file).write_text(code.replace(f"{old}\n", f"{new}\n"))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(copy)]),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, str(LAUNCHER), device, str(copy / inside), *case.arguments]
        start = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return Outcome(error=f"longer than {limit} seconds", seconds=limit)
        seconds = time.monotonic() - start
        if done.returncode != 0:
            last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return Outcome(error=last[-1], seconds=seconds)
        return Outcome(numbers(case.numbers, done.stdout), seconds=seconds)


def largest_difference(ours: Sequence[float], cpu: Sequence[float]) -> float:
    """Relative to the CPU's numbers; infinite if there are none, or another count of them."""
    if len(ours) != len(cpu) or not cpu:
        return float("inf")
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, cpu))


def row(case: Case, checkout: Path, limit: int) -> tuple[str, bool]:
    """A line of the table, and whether the case is in order."""
    changed = 0 if case.changed is None else 1

    def line(count: object, difference: object, seconds: object, what: str) -> str:
        return f"{case.name():58} {changed:7} {count:>7} {difference:>10} {seconds:>7} {what}"

    missing = [package for package in case.needs if importlib.util.find_spec(package) is None]
    if missing:
        return line("-", "-", "-", f"not run: {', '.join(missing)} is not installed"), True
    cpu = run(case, checkout, "cpu", limit)
    if cpu.error:
        return line("-", "-", "-", f"fails on the CPU: {cpu.error}"), True
    ours = run(case, checkout, "spmd", limit)
    if ours.error:
        return line("-", "-", f"{ours.seconds:.0f}", f"fails: {ours.error}"), False
    difference = largest_difference(ours.numbers, cpu.numbers)
    fine = difference <= CLOSE
    what = "as on the CPU" if fine else f"differs: {ours.numbers} and {cpu.numbers}"
    return line(len(cpu.numbers), f"{difference:.1e}", f"{ours.seconds:.0f}", what), fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, repository in (
        ("examples", "pytorch/examples"),
        ("nanogpt", "karpathy/nanoGPT"),
        ("mingpt", "karpathy/minGPT"),
    ):
        parser.add_argument(f"--{name}", type=Path, help=f"a checkout of {repository}")
    parser.add_argument("--only", default="", help="a part of the name of the scripts to run")
    parser.add_argument("--limit", type=int, default=600, help="seconds that a script may take")
    options = parser.parse_args(arguments)
    chosen = [
        case
        for case in CASES
        if getattr(options, case.checkout) is not None and options.only in case.name()
    ]
    if not chosen:
        parser.error("no script was chosen; give the path of a checkout: --examples PATH")
    print(f"{'script':58} {'changed':>7} {'numbers':>7} {'difference':>10} {'seconds':>7} outcome")
    fine = True
    for case in chosen:
        text, good = row(case, getattr(options, case.checkout).resolve(), options.limit)
        fine = fine and good
        print(text, flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
