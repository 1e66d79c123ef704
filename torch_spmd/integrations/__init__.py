# SPDX-License-Identifier: Apache-2.0
"""Other packages on the device `spmd`: one line each, which replaces functions of that package.

    import torch_spmd as spmd

    spmd.integrations.accelerate()
    accelerator = accelerate.Accelerator()  # of "spmd"

These packages, and some modules of PyTorch, list the devices that they support. `import torch_spmd`
leaves them as they are. docs/other-packages.md says what works without.

Each function imports its package, and does nothing when called again. A function that was imported
by name before (`from safetensors.torch import load_file`) stays as it is: write the line first.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

__all__ = ["accelerate", "dcp", "dtensor", "flex_attention", "safetensors", "transformers"]


@functools.cache
def accelerate() -> None:
    """`accelerate.Accelerator()` finds the device, with float16 and bfloat16, and `save_state`
    keeps the device's random numbers. In a job of several processes process 0 writes and prints.

    Errors: ImportError if accelerate is not installed.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.integrations.accelerate()  # doctest: +SKIP
        >>> from accelerate import Accelerator  # doctest: +SKIP
        >>> Accelerator().device  # doctest: +SKIP
        device(type='spmd')
    """
    from torch_spmd.integrations import trainers

    trainers.accelerate_state(importlib.import_module("accelerate.state"))
    trainers.accelerate_checkpointing(importlib.import_module("accelerate.checkpointing"))
    trainers.accelerate_accelerator(importlib.import_module("accelerate.accelerator"))


@functools.cache
def transformers() -> None:
    """`transformers.Trainer` trains on the device, and resumes to the bit. Calls `accelerate()`.

    Errors: ImportError if transformers or accelerate is not installed.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.integrations.transformers()  # doctest: +SKIP
        >>> from transformers import TrainingArguments  # doctest: +SKIP
        >>> TrainingArguments("folder").device  # doctest: +SKIP
        device(type='spmd')
    """
    from torch_spmd.integrations import trainers

    accelerate()
    arguments: Any = importlib.import_module("transformers.training_args")
    trainers.transformers_training_args(arguments)
    trainers.transformers_trainer(importlib.import_module("transformers.trainer"))


@functools.cache
def safetensors() -> None:
    """`safetensors.torch.load_file(path, device="spmd")` and `load_model` work: the file is read on
    the CPU, then moved.

    Errors: ImportError if safetensors is not installed.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.integrations.safetensors()  # doctest: +SKIP
        >>> from safetensors.torch import load_file  # doctest: +SKIP
        >>> weights = load_file("model.safetensors", device="spmd")  # doctest: +SKIP
    """
    from torch_spmd.integrations import patches

    patches.safetensors(importlib.import_module("safetensors.torch"))


@functools.cache
def flex_attention() -> None:
    """`torch.nn.attention.flex_attention` takes tensors of the device.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch.nn.attention.flex_attention import flex_attention
        >>> spmd.integrations.flex_attention()
        >>> x = torch.ones(1, 2, 16, 16, device="spmd")
        >>> flex_attention(x, x, x).shape
        torch.Size([1, 2, 16, 16])
    """
    from torch_spmd.integrations import patches

    patches.flex_attention()


@functools.cache
def dtensor() -> None:
    """`torch.distributed.tensor.distribute_tensor` on a DeviceMesh of "spmd", or on a `Mesh`, marks
    a tensor.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> spmd.integrations.dtensor()
        >>> from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> mesh = init_device_mesh("spmd", (2, 4), mesh_dim_names=("data", "model"))
        >>> x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Replicate()])
        >>> spmd.sharding_of(x).spec
        P('data', None)
    """
    from torch_spmd.integrations import patches

    patches.distribute_tensor(importlib.import_module("torch.distributed.tensor"))


@functools.cache
def dcp() -> None:
    """torch.distributed.checkpoint writes and reads tensors of the device in parts, each process
    those of its own devices, and `async_save` keeps snapshots on the device.

    Without it, one process writes and reads whole tensors by way of the host, and several processes
    cannot. `spmd.save(…, format="dcp")` and `spmd.load` need no such line.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> import torch.distributed.checkpoint as dcp
        >>> spmd.integrations.dcp()
        >>> state = {"w": torch.ones(4, device="spmd")}
        >>> folder = tempfile.mkdtemp()
        >>> saved = dcp.save(state, checkpoint_id=folder, no_dist=True)
        >>> dcp.load(state, checkpoint_id=folder, no_dist=True)
    """
    from torch_spmd.state import dcp_patches

    dcp_patches.install()
