"""`make bench ARGS="--only W1 --repeat 3"`: see `--help`."""

from __future__ import annotations

import signal
import sys

try:
    from bench.program import main

    main()
except KeyboardInterrupt:  # while Python imports; later, the program itself ends its servers first
    sys.exit(128 + signal.SIGINT)
