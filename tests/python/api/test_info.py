# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_spmd.info`: what a bug report needs."""

import torch
from processes import run_python

from torch_spmd import _compat, _versions, info


def test_info():
    done = run_python("-m", "torch_spmd.info", SPMD_NUM_DEVICES="4")
    assert done.returncode == 0, done.stderr
    parts, name = {}, ""
    for line in done.stdout.splitlines():
        name = line[:12].strip() or name
        parts.setdefault(name, []).append(line[13:])
    assert parts["torch"][0].startswith(torch.__version__)
    assert parts["backend"] == ["cpu, 4 devices"]
    assert parts["processes"] == ["0 of 1"]
    assert "SPMD_NUM_DEVICES=4" in parts["variables"]
    assert any("verify=False" in line for line in parts["options"])
    assert any(line.startswith("torch._tensor_str._tensor_str: ") for line in parts["replaced"])
    assert parts["CPU"][0].startswith(torch.backends.cpu.get_cpu_capability())
    assert parts["build"][0].endswith(".so")
    assert {"torch_spmd", "Python", "GPUs", "failed"} <= parts.keys()


def test_failed_checks(monkeypatch):
    monkeypatch.setattr(_versions, "NEWEST", "2.10")
    monkeypatch.setitem(_compat.missing, "torch._C._that", "this raises")
    lines = info.text().splitlines()
    (first,) = (k for k, line in enumerate(lines) if line.startswith("failed "))
    assert lines[first].startswith("failed       torch_spmd is tested with PyTorch ")
    assert f"{'':<13}PyTorch has no torch._C._that: this raises" in lines[first:]
