"""Compiles the kernels while a wheel is built, where there is a compiler. Without one the wheel is pure Python."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/neverseen/hardware"


class KernelsHook(BuildHookInterface):
    """Puts the library into wheels and, for editable installs, beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; `build_data` then names the library and the platform, or stays as it is."""
        folder = Path(self.root) / FOLDER
        compiling = runpy.run_path(str(folder / "compiling.py"))
        reason = compiling["compile_library"](folder)
        if reason is None:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["artifacts"].append(f"{FOLDER}/{compiling['LIBRARY']}")  # Git ignores it
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"  # it knows nothing of Python
        else:
            self.app.display_warning(f"neverseen is built without its compiled kernels ({reason})")
