"""The program `walgate`, and `python -m walgate`: looks that its packages are its own, then runs `gateway.cli`.

`gateway` and `schemas` are common names. Another distribution's package, or a folder in front of the path, would end in an
ImportError of something deep inside; here it is named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

PACKAGES = ("schemas", "gateway", "spark_consumer")

_EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h


def main() -> None:
    for name in PACKAGES:
        module = import_module(name)
        if not hasattr(module, "IS_WALGATE"):
            _in_the_way(name, module.__file__ or str(next(iter(module.__path__))))
    from gateway.cli import main as run

    run()


def _in_the_way(name: str, place: str) -> NoReturn:
    from importlib.metadata import packages_distributions

    others = sorted(set(packages_distributions().get(name, [])) - {"walgate"})
    owner = f" (of {', '.join(others)})" if others else ""
    print(f"walgate: another package named {name!r} is found before Walgate's own: {place}{owner}", file=sys.stderr)
    print(
        "hint: install Walgate into an environment of its own, and check PYTHONPATH and the working directory",
        file=sys.stderr,
    )
    raise SystemExit(_EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
