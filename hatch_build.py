"""Build hooks of Hatchling. A wheel contains the compiled hot modules (tools/compile_hot.py) in
addition to their sources, if they can be compiled.

With `WALGATE_COMPILE=1` they must be compiled; with `WALGATE_COMPILE=0` they are not, and the wheel
is plain Python and runs everywhere. `WALGATE_PROJECT_URL` is the repository's address, set by the
publisher of the wheel, from which its links are made.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_WISHES = {"": True, "0": False, "1": True}


class LinksHook(MetadataHookInterface):
    """Adds the links that a package index shows, if the repository's address is set."""

    def update(self, metadata: dict[str, Any]) -> None:
        if url := os.environ.get("WALGATE_PROJECT_URL", "").rstrip("/"):
            metadata["urls"] = {
                "Repository": url,
                "Issues": f"{url}/issues",
                "Changelog": f"{url}/blob/main/CHANGELOG.md",
            }


class CompileHook(BuildHookInterface):
    """Adds the compiled modules to a wheel; never to an editable install, which runs the source."""

    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        return list(runpy.run_path(self._script())["REQUIREMENTS"]) if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._is_wanted():
            return
        self._folder = folder = Path(tempfile.mkdtemp(prefix="walgate-compile-"))
        options = [] if os.environ.get("WALGATE_COMPILE") else ["--if-possible"]
        command = [sys.executable, self._script(), *options, str(folder)]
        modules = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for path in modules:
            build_data["force_include"][path] = str(Path(path).relative_to(folder))
        if modules:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def _script(self) -> str:
        return str(Path(self.root) / "tools" / "compile_hot.py")

    def _is_wanted(self) -> bool:
        wish = os.environ.get("WALGATE_COMPILE", "")
        if wish not in _WISHES:
            raise ValueError(
                f"WALGATE_COMPILE is {wish!r}: 1 compiles, 0 does not, and without it a C compiler decides"
            )
        return _WISHES[wish]
