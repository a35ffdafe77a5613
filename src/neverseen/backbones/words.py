"""A backbone in the words of an operator: a registered name, or a function of a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from neverseen.backbones.protocol import Backbone, require_backbone
from neverseen.backbones.recipes import backbone_of, kind_of, kinds
from neverseen.errors import ConfigurationError, NeverseenError

__all__ = ["backbone_from_words"]


def backbone_from_words(words: str) -> Backbone:
    """Return the backbone that words describe: a registered ``NAME`` or ``NAME:DETAILS``, or ``MODULE:FUNCTION``.

    Pass the words of an operator, never words from a file: a module that they name is imported and run. A registered
    name hides a module of that name.

    Examples
    --------
    >>> backbone_from_words("features:384").n_features
    384
    """
    name, colon, rest = words.partition(":")
    try:
        made = _registered(name, rest if colon else None) if name in kinds else _operators(name, rest)
    except (NeverseenError, OSError):
        raise
    except Exception as error:  # whatever the code of the operator, or of another package, raises
        raise ConfigurationError(f"it cannot be made ({_cause(error)})") from error
    backbone = require_backbone(made)
    kind_of(backbone)  # or raise: it does not say
    return backbone


def _registered(name: str, rest: str | None) -> Any:
    wanted, make = _details(name), kinds[name].from_words
    details = [] if rest is None else rest.split(":", max(len(wanted) - 1, 0))
    least = sum(each.default is each.empty for each in wanted)
    if not least <= len(details) <= len(wanted) or "" in details:
        raise ConfigurationError(f"write it as {_form(name)}")
    return backbone_of({"kind": name}, Path()) if make is None else make(*details)


def _details(name: str) -> list[inspect.Parameter]:
    """Return the parameters that may follow a registered name."""
    make = kinds[name].from_words
    return [] if make is None else list(inspect.signature(make).parameters.values())


def _forms() -> str:
    return f"{', '.join(map(_form, kinds.names()))} or MODULE:FUNCTION"


def _form(name: str) -> str:
    """Return how a registered backbone is written, such as ``features:NUMBER[:NAME]``."""
    with suppress(Exception):  # of a package that cannot be imported
        for each in _details(name):
            name += f":{each.name.upper()}" if each.default is each.empty else f"[:{each.name.upper()}]"
    return name


def _operators(module: str, function: str) -> Any:
    """Return the result of the operator's function.

    Only call it with words from the command line, never from a store's folder. The current folder may be full of files
    from strangers, so it is searched only for a module that is not installed.
    """
    if not function:
        raise ConfigurationError(f"a backbone is one of {_forms()}")
    here = str(Path.cwd())
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None and here not in sys.path:
            sys.path.append(here)
            importlib.invalidate_caches()
        loaded = importlib.import_module(module)
    except Exception as error:  # whatever the operator's module raises
        raise ConfigurationError(
            f"it cannot be imported ({_cause(error)}). The module of MODULE:FUNCTION must be installed, or in this "
            f"folder. A backbone is one of {_forms()}"
        ) from error
    found: Any = getattr(loaded, function, None)
    if found is None:
        raise ConfigurationError(f"there is no {function!r} in {loaded.__file__ or module}")
    is_made = isinstance(found, Backbone) and not isinstance(found, type)
    return found() if callable(found) and not is_made else found


def _cause(error: Exception) -> str:
    """Return an error of somebody's code in one line, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    skipped = (__file__, importlib.__file__)
    own = [frame for frame in frames if frame.filename not in skipped and Path(frame.filename).is_file()]
    place = f", in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{place}"
