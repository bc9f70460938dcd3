"""Handle signals during imports: `walgate run` exits with 0 if it is stopped in its first second,
while most of the program is still being imported.

This module is imported before everything else, for its side effect. So early, nothing is open that
would have to be closed. Once the gateway runs, its event loop handles the signals
(gateway/runtime/supervisor.py).
"""

from __future__ import annotations

import os
import signal
import sys

if sys.argv[1:2] == ["run"]:
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(0))
