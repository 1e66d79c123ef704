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

from torch_spmd import _loading, _versions

_loading.check_interpreter()
_loading.find_extension(__path__)

from torch_spmd.device import registration

registration.register()

from torch_spmd import debug, hf, integrations, nn, testing
from torch_spmd.data.loader import Loader
from torch_spmd.device.backend import (
    answers,
    describe_devices,
    device_count,
    manual_seed,
    set_coalescing,
    set_deduplication,
    set_default_backend,
    set_memory_limit,
    sync,
)
from torch_spmd.device.hooks import OutOfMemoryError
from torch_spmd.dtensor import (
    distribute_tensor,
    from_dtensor,
    to_device_mesh,
    to_dtensor,
)
from torch_spmd.nn import scripting
from torch_spmd.nn.fully_sharded import fsdp
from torch_spmd.nn.pipelines import pipeline
from torch_spmd.nn.tensor_parallelism import tensor_parallel
from torch_spmd.planning.planner import plan
from torch_spmd.planning.proposals import auto_shard
from torch_spmd.processes.local_data import (
    from_process_local,
    local_devices,
    process_count,
    process_index,
)
from torch_spmd.regions.collectives import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    pbroadcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    pshuffle,
    psum,
    psum_scatter,
    pvary,
    ragged_all_to_all,
    shard_size,
)
from torch_spmd.regions.local import local_map
from torch_spmd.regions.manual import shard_map
from torch_spmd.regions.recomputation import remat
from torch_spmd.sharding import kept_marks
from torch_spmd.sharding.device_meshes import from_device_mesh
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
from torch_spmd.state.checkpointer import Checkpointer
from torch_spmd.state.checkpoints import (
    CheckpointError,
    LoadReport,
    RandomState,
    Saving,
    last_load,
    load,
    save,
)

kept_marks.install()
scripting.install()
registration.keep_loaded()

__version__ = _versions.VERSION

__all__ = [
    "UNCONSTRAINED",
    "CheckpointError",
    "Checkpointer",
    "LoadReport",
    "Loader",
    "Mesh",
    "NamedSharding",
    "OutOfMemoryError",
    "P",
    "PartitionSpec",
    "RandomState",
    "Saving",
    "Shard",
    "ShardReport",
    "all_gather",
    "all_to_all",
    "answers",
    "auto_shard",
    "axis_index",
    "axis_size",
    "blocks",
    "clear_sharding",
    "debug",
    "describe_devices",
    "device_count",
    "distribute_tensor",
    "from_device_mesh",
    "from_dtensor",
    "from_local_shards",
    "from_process_local",
    "fsdp",
    "full_tensor",
    "get_global_mesh",
    "hf",
    "integrations",
    "last_load",
    "load",
    "load_local_shards_",
    "local_devices",
    "local_map",
    "local_shards",
    "make_mesh",
    "manual_seed",
    "mark_sharding",
    "nn",
    "pbroadcast",
    "pipeline",
    "plan",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "process_count",
    "process_index",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pvary",
    "ragged_all_to_all",
    "register_rule",
    "remat",
    "reshard",
    "save",
    "set_coalescing",
    "set_deduplication",
    "set_default_backend",
    "set_global_mesh",
    "set_memory_limit",
    "shard_map",
    "shard_module",
    "shard_size",
    "sharding_of",
    "sync",
    "tensor_parallel",
    "testing",
    "to_device_mesh",
    "to_dtensor",
    "use_mesh",
]

if os.environ.get("SPMD_TORCH_XLA") == "1":
    from torch_spmd.torch_xla import install as _install  # noqa: F401
