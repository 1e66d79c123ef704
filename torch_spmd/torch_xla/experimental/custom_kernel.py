# SPDX-License-Identifier: Apache-2.0
"""`flash_attention`. Pallas kernels are not called: what they compute is."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor

from torch_spmd.torch_xla._internal.jax_workarounds import jax_import_guard as jax_import_guard
from torch_spmd.torch_xla.experimental._attention import MASKED, attention, sharded


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    q_segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> Tensor:
    """`softmax(sm_scale * (q @ k.T + ab)) @ v`, of tensors (batch, heads, length, width).

    Tokens of other segments (ids of shape (batch, length)) are masked. With `partition_spec`, q, k,
    v and the result are sharded by it on `mesh`, else on the global mesh; without, as the compiler
    finds.

    Errors: AssertionError if ids are given for queries or for keys only; ValueError for a spec
    without a mesh.

    Example:
        >>> import torch_spmd.torch_xla.install
        >>> import torch
        >>> from torch_xla.experimental.custom_kernel import flash_attention
        >>> q, k, v = (torch.ones(1, 2, 4, 8, device="xla") for _ in range(3))
        >>> flash_attention(q, k, v, causal=True).shape
        torch.Size([1, 2, 4, 8])
    """
    segments = None
    if q_segment_ids is not None or kv_segment_ids is not None:
        assert q_segment_ids is not None and kv_segment_ids is not None, (
            "Both q_segment_ids and kv_segment_ids should be provided."
        )
        segments = q_segment_ids, kv_segment_ids
    q, k, v = sharded((q, k, v), partition_spec, mesh)
    result = attention(q, k, v, causal=causal, scale=sm_scale, segments=segments, bias=ab)
    return sharded((result,), partition_spec, mesh)[0]


class FlashAttention:
    """`FlashAttention.apply` is `flash_attention` with its arguments in order."""

    DEFAULT_MASK_VALUE = MASKED
    # Block sizes that scripts set: the compiler tiles by itself, so they have no effect.
    DEFAULT_BLOCK_SIZES: ClassVar[dict[str, int]] = {}

    @staticmethod
    def apply(*arguments: Any) -> Tensor:
        names = list(inspect.signature(flash_attention).parameters)
        if len(arguments) > len(names):
            raise TypeError(
                f"FlashAttention.apply: there are {len(names)} arguments ({', '.join(names)}); "
                f"got {len(arguments)}"
            )
        return flash_attention(**dict(zip(names, arguments)))
