# SPDX-License-Identifier: Apache-2.0
"""How state is written and read (docs/design/0038-state.md). Public as `spmd.checkpoint`."""
