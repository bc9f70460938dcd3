"""`python -m spark_consumer`: the jobs, as `walgate mirror`, `walgate consume` and `walgate dump` start them."""

from __future__ import annotations

from spark_consumer.jobs import app

if __name__ == "__main__":
    app(prog_name="walgate")
