# SPDX-License-Identifier: Apache-2.0
"""Names of environment variables that scripts look up. docs/torch_xla.md says which have an
effect."""

PJRT_DEVICE = "PJRT_DEVICE"
PJRT_LOCAL_PROCESS_COUNT = "PJRT_LOCAL_PROCESS_COUNT"
PJRT_SELECT_DEFAULT_DEVICE = "PJRT_SELECT_DEFAULT_DEVICE"
