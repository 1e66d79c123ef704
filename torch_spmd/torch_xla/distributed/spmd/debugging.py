# SPDX-License-Identifier: Apache-2.0
"""Pictures of shardings as tables of rich."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torch_spmd.torch_xla import _XLAC, _tiles, runtime


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Any:
    """Prints and returns a table of which devices hold which tile, from XLA's text of a sharding;
    of the first two dimensions.

    Errors: ValueError for another text, or if rich is not installed.
    """
    try:
        import rich.align
        import rich.box
        import rich.console
        import rich.padding
        import rich.style
        import rich.table
    except ImportError:
        raise ValueError("`visualize_sharding` requires `rich` to be installed.") from None
    rows = _rows(sharding)
    print(f"Visualizing {sharding} (showing up to the first two dimensions)")
    console = rich.console.Console(width=max_width)
    colors = use_color and console.color_system is not None
    table = rich.table.Table(
        show_header=False,
        show_lines=not colors,
        padding=0,
        highlight=not colors,
        pad_edge=False,
        box=None if colors else rich.box.SQUARE,
    )
    kind = runtime.device_type()
    for row in rows:
        cells = (
            rich.align.Align(f"{kind} {devices}", "center", vertical="middle") for devices in row
        )
        table.add_row(
            *(rich.padding.Padding(cell, (1, 1, 1, 1), style=rich.style.Style()) for cell in cells)
        )
    console.print(table, end="\n\n")
    return table


def _rows(sharding: str) -> list[list[Any]]:
    """The devices of each tile of the first two dimensions: a number, or a list of copies."""
    parsed = _tiles.parse(sharding)
    if parsed.array is None:
        return [[list(range(runtime.global_runtime_device_count()))]]
    array = parsed.array
    copies = array.shape[-1] > 1
    if array.ndim == 2:
        array = array[None]
    first_two = array.reshape([*array.shape[:2], -1, array.shape[-1]])[:, :, 0]
    return [[tile.tolist() if copies else int(tile[0]) for tile in row] for row in first_two]


def visualize_tensor_sharding(t: Tensor, **kwargs: Any) -> Any:
    """As `visualize_sharding`, of a tensor."""
    return visualize_sharding(_XLAC._get_xla_sharding_spec(t), **kwargs)


def construct_v1_sharding_str(t: Tensor) -> str:
    """The text of a tensor's sharding with a list of devices."""
    return _XLAC._get_xla_sharding_spec(t)
