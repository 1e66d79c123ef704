# SPDX-License-Identifier: Apache-2.0
"""Other packages that list devices: docs/other-packages.md."""

import importlib.metadata
import re

import pytest
import torch
import torch.utils.benchmark
from processes import run_python
from torch import nn

import torch_spmd as spmd


@pytest.mark.parametrize("device", ["cpu", "spmd"])
@pytest.mark.parametrize("device_ids", [None, [0]])
def test_data_parallel_is_the_module_itself(device, device_ids):
    module = nn.Linear(8, 4)
    x = torch.randn(6, 8)
    want = module(x)
    parallel = nn.DataParallel(module, device_ids).to(device)
    y = parallel(x.to(device))
    torch.testing.assert_close(y.cpu(), want)
    y.sum().backward()
    assert module.weight.grad.device.type == device
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]


def test_data_parallel_works_on_marked_batches():
    mesh = spmd.make_mesh((4,), ("data",))
    x = torch.randn(8, 8).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    y = nn.DataParallel(nn.Linear(8, 4).to("spmd"))(x)
    spmd.sync()
    assert spmd.sharding_of(y).spec == spmd.P("data", None)


FLEX = """
import torch
import torch.utils.benchmark
IMPORTS
torch_spmd.integrations.flex_attention()
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def causal(b, h, i, j):
    return i >= j

def nearer(score, b, h, i, j):
    return score - (i - j).abs() * 0.1

q, k, v = (torch.randn(2, HEADS, 128, 16) for HEADS in (4, 2, 2))
def attend(device, **options):
    mask = create_block_mask(causal, None, None, 128, 128, device=device)
    moved = [t.to(device) for t in (q, k, v)]
    return flex_attention(
        *moved, score_mod=nearer, block_mask=mask, enable_gqa=True, **options
    )

torch.testing.assert_close(attend("spmd").cpu(), attend("cpu"))
x = torch.randn(1, 2, 128, 16).to("spmd").requires_grad_()
flex_attention(x, x, x, score_mod=nearer).sum().backward()
print(x.grad.shape)
try:
    m = torch.ones(1, 1, 4, 4, device="meta")
    flex_attention(m, m, m)
except ValueError as e:
    print(e)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_spmd",
        "import torch.nn.attention.flex_attention\nimport torch_spmd",
    ],
)
def test_flex_attention_imported_before_or_after(imports):
    done = run_python("-W", "ignore", "-c", FLEX.replace("IMPORTS", imports))
    assert done.returncode == 0, done.stderr
    shape, refusal = done.stdout.splitlines()
    assert shape == "torch.Size([1, 2, 128, 16])"
    assert "Found input tensors on meta device" in refusal


def test_importing_the_device_imports_neither():
    code = """import sys, torch_spmd
print({"torch.nn.attention.flex_attention", "safetensors"} & {*sys.modules})"""
    assert run_python("-c", code, fresh=True).stdout.strip() == "set()"


def has(package):
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(not has("safetensors"), reason="safetensors is not installed")
@pytest.mark.parametrize("device", ["spmd", "spmd:0", torch.device("spmd")])
def test_safetensors_are_loaded(device, tmp_path):
    import safetensors.torch

    spmd.integrations.safetensors()
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5, dtype=torch.bfloat16)}
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file({k: t.to("spmd") for k, t in tensors.items()}, path)
    for where in ("cpu", device):
        loaded = safetensors.torch.load_file(path, device=where)
        assert {t.device.type for t in loaded.values()} == {torch.device(where).type}
        assert all(torch.equal(loaded[k].cpu(), t) for k, t in tensors.items())
    with pytest.raises(Exception, match="device nowhere is invalid"):
        safetensors.torch.load_file(path, device="nowhere")

    module = nn.Linear(4, 3).to("spmd")
    safetensors.torch.save_model(module, path)
    other = nn.Linear(4, 3).to("spmd")
    spmd.mark_sharding(other.weight, spmd.make_mesh((3,), ("x",)), ("x", None))
    safetensors.torch.load_model(other, path, device=device)
    assert torch.equal(other.weight.cpu(), module.weight.cpu())
    assert spmd.sharding_of(other.weight).spec == spmd.P("x", None)


def page(root):
    return (root / "docs" / "other-packages.md").read_text()


def test_the_code_on_the_page_runs(root):
    for block in re.findall(r"```python\n(.*?)```", page(root), re.DOTALL):
        needed = re.findall(r"(?:from|import) (safetensors|accelerate|lightning)\b", block)
        if all(has(package) for package in needed):
            done = run_python("-c", "import warnings; warnings.simplefilter('ignore')\n" + block)
            assert done.returncode == 0, block + done.stderr


def test_pytorchs_own_lists_know_the_device():
    x = torch.ones(4, device="spmd")
    assert torch.accelerator.current_accelerator().type == "spmd"
    assert torch.utils.checkpoint.DefaultDeviceType.get_device_type() == "spmd"
    assert torch.amp.is_autocast_available("spmd")
    assert torch.Generator("spmd").device == x.device
    with torch.random.fork_rng(device_type="spmd"):
        torch.randn(3, device="spmd")
    assert torch.utils.benchmark.Timer("x + 1", globals={"x": x}).timeit(1).mean > 0
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
    assert [b.tolist() for b in loader] == [[0.0, 1.0], [2.0, 3.0]]
    from torch.utils._foreach_utils import (
        _get_foreach_kernels_supported_devices,
        _get_fused_kernels_supported_devices,
    )

    assert "spmd" in _get_foreach_kernels_supported_devices()
    assert "spmd" in _get_fused_kernels_supported_devices()
