# SPDX-License-Identifier: Apache-2.0
"""`import torch` alone gives the device its name where torch_spmd is installed."""

import json

import pytest
from processes import run_python, run_script

AUTOLOAD = """
import sys
import torch
import torch_spmd_autoload
torch_spmd_autoload._others = lambda: False
torch_spmd_autoload.autoload()
assert "torch_spmd" not in sys.modules
"""

USES = {
    "factory": 'torch.ones(2, device="spmd")',
    "copy": 'torch.ones(2).to("spmd")',
    "module": 'torch.nn.Linear(2, 2).to("spmd").weight',
    "default": 'torch.set_default_device("spmd") or torch.ones(2)',
    "generator": 'torch.empty(2, device="spmd").normal_(generator=torch.Generator("spmd"))',
    "module of the device": 'torch.spmd.synchronize() or torch.ones(2, device="spmd")',
    "import": '__import__("torch_spmd").P and torch.ones(2, device="spmd")',
}


SCRIPTS = {
    use: AUTOLOAD
    + f"""
x = {expression}
assert torch.accelerator.is_available() and x.device.type == "spmd" and "torch_spmd" in sys.modules
import torch_spmd
assert torch.spmd.registered and (x + 1).shape == x.shape
"""
    for use, expression in USES.items()
}
SCRIPTS["none"] = (
    AUTOLOAD
    + """
torch.manual_seed(5)
layer = torch.nn.Linear(2, 2)
layer(torch.ones(1, 2)).sum().backward()
torch.optim.AdamW(layer.parameters()).step()
next(iter(torch.utils.data.DataLoader([1, 2])))
torch.utils.checkpoint.checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum().backward()
torch.nn.DataParallel(layer)(torch.ones(1, 2))
assert not torch.accelerator.is_available() and torch.accelerator.device_count() == 0
assert str(torch.device("spmd:0")) == "spmd:0"
assert "torch_spmd" not in sys.modules
drawn = torch.randn(4, device="spmd").tolist()  # with the seed from before
torch.manual_seed(5)
assert torch.randn(4, device="spmd").tolist() == drawn
"""
)
SCRIPTS["taken"] = """
import torch, torch_spmd_autoload
torch.utils.rename_privateuse1_backend("other")
torch_spmd_autoload.autoload()
assert torch._C._get_privateuse1_backend_name() == "other" and not hasattr(torch, "spmd")
"""
SCRIPTS["raising"] = """
import sys, torch
before = set(sys.modules)
import torch_spmd_autoload
torch._C._rename_privateuse1_backend = lambda name: 1 / 0
torch_spmd_autoload._others = lambda: False
torch_spmd_autoload.autoload()
assert not hasattr(torch, "spmd")
assert not [m for m in set(sys.modules) - before if m.startswith(("torch.", "torch_spmd."))]
"""

IN_FORKS = """
import json, os, sys, tempfile
import torch

ends = {}
for name, script in json.loads(sys.argv[1]).items():
    with tempfile.TemporaryFile() as errors:
        if (process := os.fork()) == 0:
            os.dup2(errors.fileno(), 2)
            exec(script, {})
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        errors.seek(0)
        ends[name] = code, errors.read().decode()
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def ends():
    """How each script ends, and what it writes to stderr, in a fork of a process that has imported
    PyTorch, as if torch_spmd were installed: PyTorch's own call is off, and the scripts call the
    entry point."""
    done = run_python(
        "-c", IN_FORKS, json.dumps(SCRIPTS), fresh=True, TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert done.returncode == 0, done.stderr
    return {name: tuple(end) for name, end in json.loads(done.stdout).items()}


@pytest.mark.parametrize("use", USES)
def test_the_first_use_imports_the_package(ends, use):
    assert ends[use][0] == 0, ends[use][1]


def test_what_does_not_use_the_device_does_not_import_it(ends):
    assert ends["none"][0] == 0, ends["none"][1]


def test_a_taken_slot_is_left_alone(ends):
    assert ends["taken"][0] == 0, ends["taken"][1]


def test_nothing_is_raised_and_little_is_imported(ends):
    assert ends["raising"][0] == 0, ends["raising"][1]


def test_others_come_first(tmp_path):
    """A backend that is installed, too, takes the slot when PyTorch calls it."""
    for name in ("torch_spmd", "other"):
        folder = tmp_path / f"{name}_x-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-x\nVersion: 1\n")
        target = "torch_spmd_autoload:autoload" if name == "torch_spmd" else "other:autoload"
        (folder / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {target}\n")
    (tmp_path / "other.py").write_text(
        "def autoload():\n    import torch\n    torch._C._rename_privateuse1_backend('other')\n"
    )
    run_script(
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch
assert torch._C._get_privateuse1_backend_name() == "other" and not hasattr(torch, "spmd")
""",
        fresh=True,
    )
