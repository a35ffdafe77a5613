"""A backbone in words, as an operator gives it: a known name, a file, or a function."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from neverseen.backbones.onnx_runtime import OnnxBackbone
from neverseen.backbones.protocol import Backbone
from neverseen.backbones.recipes import backbone_of, kind_of
from neverseen.errors import ConfigurationError

__all__ = ["backbone_from_words"]

_KINDS = (
    "features:NUMBER, features:NUMBER:NAME, efficientnet_lite0, efficientnet_lite0:RESOLUTION, minilm, onnx:FILE or "
    "MODULE:FUNCTION"
)
_NAMED = ("features", "efficientnet_lite0", "minilm", "onnx")
"""The words before a colon in these. A module must have another name."""


def backbone_from_words(words: str) -> Backbone:
    """Return the backbone that words describe, as ``--backbone`` takes them.

    Give it the words of an operator, never those of a file: a module that they name is imported and run.

    Examples
    --------
    >>> backbone_from_words("features:384").n_features
    384
    """
    kind, _, rest = words.partition(":")
    if kind == "onnx" and rest:
        return OnnxBackbone(rest)
    if kind not in _NAMED and rest:
        return _operators_backbone(words)
    try:
        return backbone_of(_recipe(words), Path())
    except ConfigurationError as error:
        raise ConfigurationError(f"--backbone {words}: {error}") from error


def _recipe(words: str) -> dict[str, Any]:
    """Return the recipe that ``--backbone`` asks for.

    Examples
    --------
    >>> _recipe("features:384")
    {'kind': 'features', 'n_features': 384, 'name': 'precomputed'}
    >>> _recipe("efficientnet_lite0")
    {'kind': 'efficientnet_lite0', 'runtime': 'auto', 'resolution': 128}
    """
    kind, *details = words.split(":", 2)
    try:
        if kind == "features" and details and details[1:] != [""]:
            return {"kind": kind, "n_features": int(details[0]), "name": (*details, "precomputed")[1]}
        if kind == "efficientnet_lite0" and len(details) <= 1:
            return {"kind": kind, "runtime": "auto", "resolution": int(details[0]) if details else 128}
    except ValueError:
        pass
    if words == "minilm":
        return {"kind": words, "runtime": "auto"}
    raise ConfigurationError(f"a backbone is one of {_KINDS}")


def _operators_backbone(words: str) -> Backbone:
    """Return what a function of the operator's makes, given as ``module:function``.

    Only call it with words from the command line, never from a store's folder. The current folder may be full of files
    from strangers, so it is searched only for a module that is not installed.
    """
    module, _, name = words.partition(":")
    here = str(Path.cwd())
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None and here not in sys.path:
            sys.path.append(here)
            importlib.invalidate_caches()
        loaded = importlib.import_module(module)
    except Exception as error:  # whatever the operator's module raises
        raise ConfigurationError(
            f"--backbone {words}: it cannot be imported ({_cause(error)}). Give MODULE:FUNCTION, from a module that is "
            f"installed or in this folder. A backbone is one of {_KINDS}"
        ) from error
    found: Any = getattr(loaded, name, None)
    if found is None:
        raise ConfigurationError(f"--backbone {words}: there is no {name!r} in {loaded.__file__ or module}")
    is_made = isinstance(found, Backbone) and not isinstance(found, type)
    try:
        made = found() if callable(found) and not is_made else found
    except Exception as error:  # whatever the operator's function raises
        raise ConfigurationError(f"--backbone {words}: the function failed ({_cause(error)})") from error
    if not isinstance(made, Backbone):
        raise ConfigurationError(
            f"--backbone {words} gave a {type(made).__name__}: a backbone has a name, n_features, extract and digest"
        )
    kind_of(made)  # or raise: it does not say
    return made


def _cause(error: Exception) -> str:
    """Return an error of the operator's code in one line, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    skipped = (__file__, importlib.__file__)
    own = [frame for frame in frames if frame.filename not in skipped and Path(frame.filename).is_file()]
    place = f", in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{place}"
