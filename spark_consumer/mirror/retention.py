"""Default of the time for which versions of a mirror can be read. maintenance.py removes what is
older. The command line needs this default before it loads Spark."""

from __future__ import annotations

RETENTION_S = 24 * 3600.0
