# SPDX-License-Identifier: Apache-2.0
"""The ops whose shapes only PyTorch's Python infers (csrc/trace/shape/meta_kernels.h), found by a
sweep.

python tests/python/support/meta_in_python.py          # two samples of every op and its gradient
python tests/python/support/meta_in_python.py 1000     # all of them
"""

import re
import sys
import warnings

import rotation
import torch
from op_samples import OPS, evenly, ops_of, samples
from torch.utils._pytree import tree_leaves, tree_map

from torch_spmd import _C


def is_in_python(op):
    """Whether the kernel that the dispatcher has for Meta is a Python function."""
    kernels = torch._C._dispatch_dump(op)
    return re.search(r"^Meta: .*_meta_registrations\.py", kernels, re.MULTILINE) is not None


def asked_so_far():
    """The ops whose shapes Python has inferred in this process."""
    return {op for op in _C.meta_kernels_of_dispatcher() if is_in_python(op)}


def _on_device(leaf):
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to("spmd").requires_grad_(leaf.requires_grad)
    return leaf


def run(op, sample):
    """An op on the device, and its gradient."""
    args, kwargs = tree_map(_on_device, ((sample.input, *sample.args), dict(sample.kwargs)))
    kwargs = {name: "spmd" if name == "device" else value for name, value in kwargs.items()}
    differentiable = [
        [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]
        for tree in (op.op(*args, **kwargs), (args, kwargs))
    ]
    outs, ins = differentiable
    if outs and ins:
        ones = [torch.ones_like(t) for t in outs]
        torch.autograd.grad(outs, ins, ones, allow_unused=True)


def sweep(number):
    """Op → the variant of `op_db` whose samples asked Python about it first."""
    found = {}
    for name in filter(rotation.is_chosen, ops_of("float32")):
        for sample in evenly(samples(OPS[name]), number):
            try:
                run(OPS[name], sample)
            except Exception:
                continue  # calls that the device refuses are the subject of other tests
        for op in asked_so_far():
            found.setdefault(op, name)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for op, name in sorted(sweep(int(sys.argv[1]) if sys.argv[1:] else 2).items()):
        print(f"{op:45} {name}")
