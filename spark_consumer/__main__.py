"""The program `python -m spark_consumer`, which runs the jobs. `walgate mirror`, `walgate consume`
and `walgate dump` start it."""

from __future__ import annotations

import sys
from pathlib import Path

# `python -m` puts the working directory first: a package `schemas` there is not Walgate's.
if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parent.parent:
    del sys.path[0]

import schemas

if not hasattr(schemas, "IS_WALGATE"):
    from walgate import end

    end(schemas)

from spark_consumer.jobs.cli import app

if __name__ == "__main__":
    app(prog_name="walgate")
