"""Where a figure comes from: code, versions and machine, for the JSON that every benchmark writes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "safetensors")


def provenance(benchmark: str, seed: int | None = None, **settings: Any) -> dict[str, Any]:
    """Return what is needed to run a benchmark again, as JSON values."""
    return {
        "benchmark": benchmark,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "seed": seed,
        "settings": settings,
        "versions": {"python": platform.python_version()}
        | {name: found for name in _LIBRARIES if (found := _version(name))},
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "gpu": _gpu(), "system": platform.system()},
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results for people and programs to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
