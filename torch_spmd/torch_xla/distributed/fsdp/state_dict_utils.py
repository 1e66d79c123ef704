# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of `XlaFullyShardedDataParallel`: one process writes whole tensors, so that nothing
is put together but names."""

from __future__ import annotations

import glob
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.")


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, Any]], shard_metadata: Mapping[str, Any]
) -> OrderedDict[str, Any]:
    """The state dict of the module without its wrappers.

    Args:
        state_dict_list: of each process, of which there is one.
        shard_metadata: what `get_shard_metadata` returned.

    Errors: AssertionError for the state dicts of several processes, which torch_xla has written.
    """
    assert len(state_dict_list) == shard_metadata["world_size"] == 1, (
        f"{len(state_dict_list)} state dicts of {shard_metadata['world_size']} processes were "
        "given; only those of one process are known"
    )
    whole: OrderedDict[str, Any] = OrderedDict()
    for name, value in state_dict_list[0].items():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        whole[name] = value
    return whole


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[OrderedDict[str, Any], str | None]:
    """The state dict in the file whose path matches prefix and suffix, `{"model": …,
    "shard_metadata": …}`, without the names of wrappers. With `save_model` it is written to
    `save_path`, by default the prefix and "_consolidated.pth". Returns it and that path.

    Errors: AssertionError if no file matches; as `consolidate_sharded_state_dicts`.
    """
    paths = glob.glob(ckpt_prefix + ckpt_suffix)
    assert paths, f"Cannot find any files matching {ckpt_prefix + ckpt_suffix}."
    read = [torch.load(path, map_location="cpu") for path in sorted(paths)]
    whole = consolidate_sharded_state_dicts([r["model"] for r in read], read[0]["shard_metadata"])
    if not save_model:
        return whole, None
    path = save_path or ckpt_prefix + "_consolidated.pth"
    torch.save({"model": whole}, path)
    return whole, path
