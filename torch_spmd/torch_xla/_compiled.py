# SPDX-License-Identifier: Apache-2.0
"""What functions compiled by `torch.compile(backend="openxla")` return.

torch_xla runs such a function where it is called. Here its ops are recorded like all others, so
that a training step stays one program. Who asks what tells the difference, a metric or the sharding
of a result, has what is pending run first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import torch_spmd as spmd
from torch_spmd import _C, _compat
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _auto_pending

# By the address of their storage, which a result shares with the tensors that autograd makes of it.
_results: dict[int, StorageWeakRef] = {}
_runs = 0  # programs that had run when the last of them was recorded


def recorded(results: Any) -> None:
    """Notes the results of a function that has been recorded."""
    global _runs
    _forget_if_run()
    for t in pytree.tree_leaves(results):
        if isinstance(t, Tensor) and t.device.type == "spmd":
            held = StorageWeakRef(t.untyped_storage())
            _results[held.cdata] = held
    _runs = _C.statistics()["runs"]


def run(asked: Tensor | None = None) -> None:
    """Runs what is pending if a result that somebody holds is; if it is this tensor, where one is
    given."""
    if not _results:
        return
    _forget_if_run()
    if asked is not None:
        held = _results.get(_compat.storage_number(asked))
        wanted = held is not None and not held.expired()
    else:
        wanted = any(not held.expired() for held in _results.values())
    if wanted:
        _auto_pending.shard_pending()
        spmd.sync()
        _results.clear()


def _forget_if_run() -> None:
    if _results and _C.statistics()["runs"] > _runs:
        _results.clear()
