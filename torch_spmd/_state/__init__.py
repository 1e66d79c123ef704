# SPDX-License-Identifier: Apache-2.0
"""How state is written and read (docs/design/0038-state.md). The public half is
torch_spmd/checkpoints.py."""
