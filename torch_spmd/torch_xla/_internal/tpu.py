# SPDX-License-Identifier: Apache-2.0
"""What scripts ask about TPU hosts: there is none."""


def version() -> int:
    return 0


def num_available_chips() -> int:
    return 0


def get_worker_ips() -> list[str]:
    return ["127.0.0.1"]
