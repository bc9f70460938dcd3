"""`WALGATE_COMPILE=1`: the wheel gets the hot modules compiled (compile_hot.py), beside their sources. Without it the wheel is
plain Python and runs everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface):
    """Adds the compiled modules to a wheel when asked for; never to an editable install, which runs the source."""

    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("WALGATE_COMPILE") != "1" or version == "editable":
            return
        self._folder = folder = Path(tempfile.mkdtemp(prefix="walgate-compile-"))
        command = [sys.executable, str(Path(self.root) / "compile_hot.py"), str(folder)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        for path in output.splitlines():
            build_data["force_include"][path] = str(Path(path).relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
