# SPDX-License-Identifier: Apache-2.0
"""What a script does: its graphs and programs, what they send, and what memory they need.

Functions called `print_…` and `visualize_…` print and return the text; the others return something
that prints well. Without arguments they are about the program that ran last. Right after an
optimizer step, `collectives` and `memory` are about all programs of the step.
"""

from torch_spmd.debug.measures import (
    collectives,
    memory,
    timeline,
    trace_to_chrome,
)
from torch_spmd.debug.page import (
    report,
)
from torch_spmd.debug.programs import (
    explain,
    explain_compile,
    print_graph,
    print_program,
    save_repro,
)
from torch_spmd.debug.shardings import (
    visualize_sharding,
)
from torch_spmd.debug.tables import (
    Collective,
    CollectiveTable,
    CompileEvent,
    LiveValue,
    MadeAgain,
    MemoryTable,
    Picture,
    Printed,
    Table,
    Text,
    Timed,
    TimelineTable,
)

__all__ = [
    "Collective",
    "CollectiveTable",
    "CompileEvent",
    "LiveValue",
    "MadeAgain",
    "MemoryTable",
    "Picture",
    "Printed",
    "Table",
    "Text",
    "Timed",
    "TimelineTable",
    "collectives",
    "explain",
    "explain_compile",
    "memory",
    "print_graph",
    "print_program",
    "report",
    "save_repro",
    "timeline",
    "trace_to_chrome",
    "visualize_sharding",
]
