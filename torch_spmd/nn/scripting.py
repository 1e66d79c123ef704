# SPDX-License-Identifier: Apache-2.0
"""What torch.jit.script takes of modules that are sharded."""

from __future__ import annotations

import functools
from typing import Any

from torch_spmd import _compat
from torch_spmd._replace import replace
from torch_spmd.nn import fully_sharded
from torch_spmd.sharding import activations


@functools.cache
def install() -> None:
    """Leaves out hooks that change nothing but how tensors are sharded: they are Python's."""
    create = _compat.SCRIPT.current()

    @functools.wraps(create)
    def create_script_module(nn_module: Any, *args: Any, **options: Any) -> Any:
        fully_sharded.refuse_casts("torch.jit.script", nn_module)
        with activations.without_hooks(nn_module):
            return create(nn_module, *args, **options)

    why = "torch.jit.script takes modules that are sharded"
    replace(*_compat.SCRIPT, create_script_module, why)
