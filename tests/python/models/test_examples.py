# SPDX-License-Identifier: Apache-2.0
"""The examples run as a user would run them, on a small setting."""

import re
import shutil

import pytest
from processes import run_python

SMALL_GPT = ["--steps=6", "--layers=1", "--width=64", "--block=32", "--eval-every=3", "--sample=5"]


def run(root, tmp_path, script, *arguments):
    result = run_python(root / "examples" / script, *arguments, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    return result.stdout


def held_out(output):
    return float(re.search(r"held-out loss ([\d.]+)", output).group(1))


def test_gpt_sharded_equals_plain_pytorch(root, tmp_path):
    no_dropout = [*SMALL_GPT, "--dropout", "0"]
    plain = run(root, tmp_path, "train_gpt.py", *no_dropout, "--unsharded", "--device", "cpu")
    output = run(root, tmp_path, "train_gpt.py", *no_dropout, "--mesh", "data=2,model=4")
    assert held_out(output) == pytest.approx(held_out(plain), abs=2e-2)
    for part in ("Collectives of one", "Memory per device", "Sharding of blocks.0", "Programs"):
        assert part in output


@pytest.mark.parametrize("plan", ["dp", "fsdp"])
def test_gpt_on_a_simulated_slice(root, tmp_path, plan):
    arguments = [*SMALL_GPT, "--backend", "mock_tpu:v4-16", "--mesh", "x=8", "--strategy", plan]
    assert "mesh [x=8]" in run(root, tmp_path, "train_gpt.py", *arguments)


def test_gpt_accumulates_gradients(root, tmp_path):
    output = run(root, tmp_path, "train_gpt.py", *SMALL_GPT, "--accumulate", "2")
    assert "held-out loss" in output


def test_gpt_goes_on_where_it_was_stopped(root, tmp_path):
    def result(*more):
        output = run(root, tmp_path, "train_gpt.py", *SMALL_GPT, *more)
        return re.search(r"training loss .*", output)[0], held_out(output)

    saves = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", "2")
    undisturbed = result()
    assert result(*saves) == undisturbed
    saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert saved == ["step-0000000004", "step-0000000006"]
    shutil.rmtree(tmp_path / "saved" / saved[1])  # as if it had been stopped after five steps
    assert result(*saves) == undisturbed


def test_gpt_2d_needs_two_axes(root, tmp_path):
    result = run_python(root / "examples/train_gpt.py", "--mesh", "data=8")
    assert result.stderr.splitlines()[-1] == (
        "train_gpt: strategy '2d' shards the batch over the first axis and the weights over "
        "the others, but the mesh has only 'data'; try --mesh data=2,model=4"
    )


def test_cnn_reads_digits(root, tmp_path):
    output = run(root, tmp_path, "train_cnn.py", "--epochs=2", "--size=16")
    accuracy = float(re.search(r"test accuracy ([\d.]+)%", output).group(1))
    assert accuracy > 95


def test_stylegan2_equals_plain_pytorch(root, tmp_path):
    small = ["--steps=2", "--size=32", "--batch=2"]
    plain = run(root, tmp_path, "train_stylegan2.py", *small, "--unsharded", "--device", "cpu")
    output = run(root, tmp_path, "train_stylegan2.py", *small, "--mesh", "rows=4")
    losses = [re.search(r"losses ([\d.]+) -> ([\d.]+)", text).groups() for text in (plain, output)]
    for one, other in zip(*losses, strict=True):
        assert float(other) == pytest.approx(float(one), rel=2e-2)
    assert (tmp_path / "images.png").exists() and "all_reduce" in output


@pytest.mark.parametrize(("rows", "fits"), [(1, False), (8, True)])
def test_stylegan2_at_1024_needs_several_cores(root, tmp_path, rows, fits):
    script = root / "examples/train_stylegan2.py"
    result = run_python(script, "--plan", "--mesh", f"rows={rows}", "--out", tmp_path)
    assert result.returncode == (0 if fits else 1), result.stderr
    assert ("refused: the program needs" in result.stdout) is not fits
    assert result.stdout.count("runs: peak") == (2 if fits else 0)


def test_plans_of_gpt2(root, tmp_path):
    runs = ("gpt2-2b-v4-8-fsdp", "gpt2-4b-v4-16")
    script = root / "examples/plan_gpt2.py"
    result = run_python(script, "--layers", "1", "--runs", *runs, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("gpt2")]
    assert len(rows) == len(runs) and all("GiB" in row and "%" in row for row in rows)
    assert (tmp_path / f"{runs[0]}.png").read_bytes().startswith(b"\x89PNG")


def test_plans_of_gspmd(root):
    runs = ("gspmd-64b-128", "gspmd-64b-2048")
    result = run_python(root / "examples/plan_gspmd.py", "--layers", "1", "--runs", *runs)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(" GiB") == len(runs)


def test_plans_of_images(root, tmp_path):
    small = ("--images", "8", "--voxels", "32", "--out", tmp_path)
    result = run_python(root / "examples/plan_images.py", *small)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if " GiB fits" in line]
    assert [row.split()[0] for row in rows] == ["ResNet-50"] * 4 + ["U-Net"] * 4
    assert (tmp_path / "U-Net-eight-chips-space.png").read_bytes().startswith(b"\x89PNG")
