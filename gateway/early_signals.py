"""A stop in the first second: `walgate run` exits with 0 also while most of the program is still
being imported.

Imported before everything else, for its effect. Nothing is open that early, so nothing is left
behind. As soon as the gateway runs, its event loop takes the signals
(gateway/runtime/supervisor.py).
"""

from __future__ import annotations

import os
import signal
import sys

if sys.argv[1:2] == ["run"]:
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(0))
