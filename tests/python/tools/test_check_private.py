# SPDX-License-Identifier: Apache-2.0
"""tools/check_private.py: private symbols of PyTorch are named in torch_spmd/_compat.py."""

import subprocess
import sys

import pytest

BAD = {
    "import torch._subclasses": "torch._subclasses",
    "from torch.utils import _pytree": "torch.utils._pytree",
    "from torch._C import _functorch as f": "torch._C._functorch",
    "import torch\ntorch._C._dispatch_keys(1)": "torch._C._dispatch_keys",
    "from torch.distributed import distributed_c10d as c\nc._world.pg_map": (
        "torch.distributed.distributed_c10d._world.pg_map"
    ),
    "def f(module):\n    return module._parameters": "…._parameters",
}
GOOD = [
    "import torch\ntorch.ops.aten._softmax.default",
    "import torch\ntorch.Tensor.__add__",
    "class A:\n    def f(self):\n        return self._parameters",
    "from torch_spmd._compat import pytree\npytree.tree_map",
]


def checked(root, tmp_path, text, name="module.py"):
    (tmp_path / "torch_spmd").mkdir(exist_ok=True)
    (tmp_path / "torch_spmd" / name).write_text(text + "\n")
    tool = [sys.executable, str(root / "tools" / "check_private.py"), str(tmp_path)]
    return subprocess.run(tool, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("text", BAD)
def test_private_symbols_are_found(root, tmp_path, text):
    done = checked(root, tmp_path, text)
    line = text.count("\n") + 1
    assert done.returncode == 1
    assert done.stdout == (
        f"torch_spmd/module.py:{line}: {BAD[text]} is private to PyTorch; torch_spmd/_compat.py "
        "may name it\n"
    )
    assert checked(root, tmp_path, "", "module.py").returncode == 0
    assert checked(root, tmp_path, text, "_compat.py").returncode == 0


@pytest.mark.parametrize("text", GOOD)
def test_others_are_not(root, tmp_path, text):
    done = checked(root, tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "")
