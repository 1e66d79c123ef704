# SPDX-License-Identifier: Apache-2.0
"""Op variants that gather when cut, and rules that no sample of `op_db` reaches: each with why."""

GATHERED: dict[str, str] = {}

UNREACHED: dict[str, str] = {}
