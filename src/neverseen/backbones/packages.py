"""Optional packages, imported when they are needed, with an error that says what to install."""

from __future__ import annotations

import importlib
from typing import Any

from neverseen.errors import MissingPackageError


def imported(module: str, purpose: str, install: str) -> Any:
    """Return a module of an optional package, or say what to install.

    Parameters
    ----------
    module : str
        Such as ``"PIL.Image"``.
    purpose : str
        The purpose; the message begins with it.
    install : str
        The command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise MissingPackageError(
            f"{purpose} needs the package {package}, which is not installed: {install}", name=package
        ) from error
    except Exception as error:  # e.g. torchvision built for another PyTorch fails with RuntimeError
        raise MissingPackageError(
            f"{purpose} needs {module}, which is installed but does not import here "
            f"({type(error).__name__}: {error}). Install versions that fit each other: {install}",
            name=module,
        ) from error
