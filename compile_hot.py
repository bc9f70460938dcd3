"""`python compile_hot.py FOLDER`: copies of gateway and schemas in FOLDER, with the hot modules compiled by mypyc.

The same source, so equal bytes (tests/compiled); Python takes a compiled module before the source beside it. Needs mypy,
setuptools, a C compiler and a minute or two. `hatch_build.py` puts the result into a wheel; to run it from the folder:

    PYTHONPATH=FOLDER python -P -m gateway.cli run
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
HOT_MODULES = (
    "gateway/events/context.py",
    "gateway/events/manifest.py",
    "gateway/events/marker.py",
    "gateway/events/row_encoder.py",
    "gateway/events/varint.py",
    "gateway/kafka/outlet.py",
    "gateway/pgoutput/transaction.py",
    "gateway/replication/frames.py",
    "gateway/replication/inbox.py",
    "gateway/service/pump.py",
    "gateway/transactions/machine.py",
    "gateway/transactions/transaction.py",
    "gateway/values/dates.py",
    "gateway/values/integers.py",
    "gateway/values/numeric.py",
    "gateway/values/reader.py",
    "gateway/values/special.py",
    "gateway/values/text.py",
)
"""What a row passes through (bench/encode.py)."""

_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
setup(
    name="walgate-compiled",
    packages=[],
    ext_modules=mypycify([*options, *{modules!r}], opt_level="3", debug_level="0"),
    script_args=["--quiet", "build_ext", "--inplace"],
)
"""


def compile_hot_modules(folder: Path) -> list[Path]:
    """The compiled modules in `folder`. Raises CalledProcessError; the compiler has said why on standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in ("gateway", "schemas"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / package, folder / package, dirs_exist_ok=True, ignore=ignored)
    command = [sys.executable, "-c", _SETUP.format(modules=list(HOT_MODULES))]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "build", ignore_errors=True)
    return compiled_modules(folder)


def compiled_modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".so", ".pyd"))


if __name__ == "__main__":
    for module in compile_hot_modules(Path(sys.argv[1])):
        print(module)
