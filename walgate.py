"""The program `walgate`, and `python -m walgate`: check that the packages found are Walgate's own,
then run `gateway.cli.main`.

`gateway` and `schemas` are common names. With another distribution's package, or a folder of that
name earlier on the path, some import deep inside would fail with an ImportError. `gateway`,
`spark_consumer` and its program check this too, and name the other package by `refuse` or `end`.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from types import ModuleType
from typing import NoReturn

PACKAGES = ("schemas", "gateway", "spark_consumer")

_EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h
_HINT = "install Walgate into an environment of its own, and check PYTHONPATH and the working directory"


def main() -> None:
    try:
        for name in PACKAGES:
            module = import_module(name)
            if not hasattr(module, "IS_WALGATE"):
                end(module)
        from gateway.cli.main import main as run
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    run()


def refuse(module: ModuleType) -> NoReturn:
    """Raise ImportError that names the other package. While Python still locates the module of
    `python -m gateway.cli.main`, end the process instead, because a program was started."""
    if sys.argv[:1] == ["-m"]:
        end(module)
    raise ImportError(f"{_in_the_way(module)}; {_HINT}", name=module.__name__)


def end(module: ModuleType) -> NoReturn:
    """End the program with a message that names the other package."""
    print(f"walgate: {_in_the_way(module)}\nhint: {_HINT}", file=sys.stderr)
    raise SystemExit(_EXIT_CONFIGURATION)


def _in_the_way(module: ModuleType) -> str:
    from importlib.metadata import packages_distributions

    name = module.__name__
    place = module.__file__ or str(next(iter(module.__path__)))
    others = sorted(set(packages_distributions().get(name, [])) - {"walgate"})
    owner = f" (of {', '.join(others)})" if others else ""
    return f"another package named {name!r} is found before Walgate's own: {place}{owner}"


if __name__ == "__main__":
    main()
