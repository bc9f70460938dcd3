"""`python tools/compile_hot.py [--if-possible] FOLDER`: copy gateway and schemas to FOLDER and
compile the hot modules with mypyc.

Compiled modules write the same bytes as their source (tests/compiled), and Python prefers them to
the source next to them. Compiling needs the packages of REQUIREMENTS, a C compiler and half a
minute. If something is missing, --if-possible prints the reason and compiles nothing. The script
prints the names of the compiled modules. `hatch_build.py` puts them into a wheel; to run them from
the folder:

    PYTHONPATH=FOLDER python -P -m gateway.cli.main run
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ("mypy>=2.4,<2.5", "setuptools>=80")
"""The version of mypy determines the version of librt with which the compiled modules can be
loaded: that must match the one in pyproject.toml."""
HOT_MODULES = (
    "gateway/events/transaction_context.py",
    "gateway/debezium/row_encoder.py",
    "gateway/debezium/source_block.py",
    "gateway/events/change_key.py",
    "gateway/events/manifest.py",
    "gateway/events/marker_encoder.py",
    "gateway/events/row_encoder.py",
    "gateway/kafka/batches.py",
    "gateway/pgoutput/cursor.py",
    "gateway/pgoutput/letters.py",
    "gateway/pgoutput/row.py",
    "gateway/pgoutput/transaction.py",
    "gateway/pgoutput/tuple_data.py",
    "gateway/postgres/copy_frames.py",
    "gateway/postgres/receive_buffer.py",
    "gateway/runtime/kafka_transactions.py",
    "gateway/runtime/replication_loop.py",
    "gateway/snapshot/copy_decoder.py",
    "gateway/snapshot/rules/stale_rows.py",
    "gateway/snapshot/change_tracking.py",
    "gateway/snapshot/rules/visibility.py",
    "gateway/transactions/commit_policy.py",
    "gateway/debezium/record_writer.py",
    "gateway/debezium/relation_version.py",
    "gateway/transactions/native_record_writer.py",
    "gateway/transactions/logical_messages.py",
    "gateway/transactions/machine.py",
    "gateway/transactions/ordinary.py",
    "gateway/transactions/record_writer.py",
    "gateway/transactions/relations_in_force.py",
    "gateway/transactions/transaction.py",
    "gateway/debezium/connect_times.py",
    "gateway/values/dates.py",
    "gateway/values/integers.py",
    "gateway/values/numeric.py",
    "gateway/values/column_readers.py",
    "gateway/values/row_readers.py",
    "gateway/values/special_values.py",
    "gateway/values/text.py",
    "schemas/varint.py",
)
"""Modules that process every row (bench/encode.py)."""

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
    """Return the paths of the compiled modules in `folder`. Raises CalledProcessError after the
    compiler has written the reason to standard error."""
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


def missing() -> str:
    """Return what this machine lacks for compiling, as far as it can be checked; "" if nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's C headers are not installed"
    return next((f"{name} is not installed" for name in ("mypyc", "setuptools") if find_spec(name) is None), "")


def compile_if_possible(folder: Path) -> list[Path]:
    """Return the paths of the compiled modules; none if compiling is impossible or fails, which is
    reported on standard error."""
    reason = missing()
    if not reason:
        print("compiling the modules that every row passes through, which takes half a minute", file=sys.stderr)
        try:
            return compile_hot_modules(folder)
        except subprocess.CalledProcessError:
            reason = "the compiler failed"
    print(f"not compiled: {reason}. Plain Python does the same with twice the CPU time.", file=sys.stderr)
    return []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--if-possible", action="store_true")
    arguments = parser.parse_args()
    for module in (compile_if_possible if arguments.if_possible else compile_hot_modules)(arguments.folder):
        print(module)
