# SPDX-License-Identifier: Apache-2.0
from benchmarks.published.report import main

raise SystemExit(main())
