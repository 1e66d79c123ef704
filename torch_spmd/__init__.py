# SPDX-License-Identifier: Apache-2.0
"""GSPMD sharding for stock PyTorch.

    import torch, torch_spmd as spmd

    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    x = torch.randn(8, 16).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    print((x @ x.T).sum().item())

Importing it registers the device `spmd`; nothing else is needed.
"""

import os
from typing import Any

from torch_spmd import _loading, _versions

_loading.check_interpreter()
_loading.find_extension(__path__)

from torch_spmd.device import registration

registration.register()

from torch_spmd import (
    _renamed,
    checkpoint,
    config,
    data,
    debug,
    dtensor,
    hf,
    integrations,
    lax,
    nn,
    planning,
    processes,
    testing,
)
from torch_spmd.data import Loader
from torch_spmd.device.backend import sync
from torch_spmd.device.hooks import OutOfMemoryError
from torch_spmd.nn import scripting
from torch_spmd.nn.fully_sharded import fsdp
from torch_spmd.nn.tensor_parallelism import tensor_parallel
from torch_spmd.planning import plan
from torch_spmd.regions.manual import shard_map
from torch_spmd.sharding import kept_marks
from torch_spmd.sharding.global_mesh import get_global_mesh, set_global_mesh, use_mesh
from torch_spmd.sharding.marks import clear_sharding, mark_sharding, reshard, sharding_of
from torch_spmd.sharding.mesh import Mesh, make_mesh
from torch_spmd.sharding.modules import ShardReport, shard_module
from torch_spmd.sharding.rules import register_rule
from torch_spmd.sharding.shards import (
    Shard,
    from_local_shards,
    full_tensor,
    load_local_shards_,
    local_shards,
)
from torch_spmd.sharding.spec import UNCONSTRAINED, NamedSharding, P, PartitionSpec, blocks
from torch_spmd.state.checkpoints import load, save

kept_marks.install()
scripting.install()
registration.keep_loaded()

__version__ = _versions.VERSION

__all__ = [
    "UNCONSTRAINED",
    "Loader",
    "Mesh",
    "NamedSharding",
    "OutOfMemoryError",
    "P",
    "PartitionSpec",
    "Shard",
    "ShardReport",
    "blocks",
    "checkpoint",
    "clear_sharding",
    "config",
    "data",
    "debug",
    "dtensor",
    "from_local_shards",
    "fsdp",
    "full_tensor",
    "get_global_mesh",
    "hf",
    "integrations",
    "lax",
    "load",
    "load_local_shards_",
    "local_shards",
    "make_mesh",
    "mark_sharding",
    "nn",
    "plan",
    "planning",
    "processes",
    "register_rule",
    "reshard",
    "save",
    "set_global_mesh",
    "shard_map",
    "shard_module",
    "sharding_of",
    "sync",
    "tensor_parallel",
    "testing",
    "use_mesh",
]


def __getattr__(name: str) -> Any:
    """Names of torch_spmd 0.1 that have moved."""
    return _renamed.find(name)


if os.environ.get("SPMD_TORCH_XLA") == "1":
    from torch_spmd.torch_xla import install as _install  # noqa: F401
