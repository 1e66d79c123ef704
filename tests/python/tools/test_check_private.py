# SPDX-License-Identifier: Apache-2.0
"""tools/check_private.py: private symbols of PyTorch are named in torch_spmd/_compat.py and in
csrc/trace/compat."""

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

BAD_CPP = {
    "#include <c10/core/impl/LocalDispatchKeySet.h>": "c10/core/impl/LocalDispatchKeySet.h",
    '#include "torch/csrc/autograd/generated/Functions.h"': (
        "torch/csrc/autograd/generated/Functions.h"
    ),
    "torch::autograd::impl::bump_version(t);": "impl::bump_version",
    "auto t = at::detail::empty_cpu({0}, at::kByte);": "detail::empty_cpu",
    "namespace g = torch::autograd::generated;\nstruct A : torch::autograd::generated::B {};": (
        "autograd::generated::B"
    ),
    "at::functorch::makeBatched(t, 0, 1);": "functorch::makeBatched",
    "namespace f = at::functorch;": "namespace f = at::functorch",
    "c10::DispatchKey::FuncTorchBatched;": "FuncTorchBatched",
    "THPVariable_Check(object);": "THPVariable_Check",
    "_PyObject_GC_New(type);": "_PyObject_GC_New",
    "const int a = 1;  // one\nt._base();": "_base",
    "tensor->_version();": "_version",
    "at::_unused();": "_unused",
    "struct A : c10::TensorImpl {\n  void F() { numel_ = 0; }": "numel_",
    "task.captures_ != nullptr;": "captures_",
}
GOOD_CPP = [
    "// at::detail::empty_cpu\n/* c10::impl::A\n */",
    'auto text = "c10::impl::A";\nauto raw = R"(t._base())";',
    "at::_ops::_softmax::call(t);\nnamespace ops = at::_ops;\nops::_softmax::call(t);",
    "#include <ATen/ops/_softmax.h>\nat::_softmax(t, 0, false);",
    "#include <ATen/ops/_softmax_ops.h>\nat::_softmax(t, 0, false);",
    "sparse._indices();",
    "class A {\n  void F() { numel_ = 0; }\n  int64_t numel_ = 0;\n};",
    "spmd::compat::HasView(t, {1});\n#include <c10/core/Device.h>",
]


def checked(root, tmp_path, text, name="torch_spmd/module.py"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text + "\n")
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
    assert checked(root, tmp_path, "").returncode == 0
    assert checked(root, tmp_path, text, "torch_spmd/_compat.py").returncode == 0


@pytest.mark.parametrize("text", GOOD)
def test_others_are_not(root, tmp_path, text):
    done = checked(root, tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("text", BAD_CPP)
def test_private_symbols_are_found_in_cpp(root, tmp_path, text):
    done = checked(root, tmp_path, text, "csrc/trace/a.cc")
    line = text.count("\n") + 1
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        f"csrc/trace/a.cc:{line}: {BAD_CPP[text]} is private to PyTorch; csrc/trace/compat may "
        "name it"
    )


@pytest.mark.parametrize("text", GOOD_CPP)
def test_others_are_not_in_cpp(root, tmp_path, text):
    done = checked(root, tmp_path, text, "csrc/trace/a.cc")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_member_that_the_header_declares(root, tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/a.h").write_text("class A {\n  absl::Mutex mutex_;\n};\n")
    assert checked(root, tmp_path, "void A::F() { mutex_.Lock(); }", "csrc/a.cc").returncode == 0
    assert checked(root, tmp_path, "void A::F() { mutex_.Lock(); }", "csrc/b.cc").returncode == 1


def test_the_door_says_why(root, tmp_path):
    """Each paragraph that names a private symbol says what would replace it."""
    door = "csrc/trace/compat/a.h"
    includes = "#include <c10/core/impl/LocalDispatchKeySet.h>\n\n"
    use = "inline void F() { c10::impl::F(); }\n"
    why = "// For that. Instead: none.\n// Without: this.\n"
    assert checked(root, tmp_path, includes + why + use, door).returncode == 0
    assert checked(root, tmp_path, why + use + "\n// As above.\n" + use, door).returncode == 0
    done = checked(root, tmp_path, includes + why + use + "\n" + use, door)
    assert done.stdout == (
        f"{door}:7: impl::F has no line that says what for, what instead and what is lost without "
        "it\n"
    )
