# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_spmd.info`: what a bug report needs."""

import torch
from processes import run_python


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
    assert {"torch_spmd", "Python", "GPUs", "CPU", "missing"} <= parts.keys()
