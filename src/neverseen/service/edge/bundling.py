"""The console's modules as one script, so that a browser loads them with one request.

The sources stay separate modules; the service joins them when it starts. Each becomes a function that runs once and
returns its exports. Only the forms of ``import`` and ``export`` that the console uses are supported; any other is an
error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import (?:\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from "(?P<path>[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.M)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.M)


def bundle(modules: Mapping[str, str], start: str) -> str:
    r"""Return one script that does the same as a module with all its imports.

    Parameters
    ----------
    modules : dict
        Texts of modules by their paths.
    start : str
        Path of the module that imports the others.

    Examples
    --------
    >>> modules = {"a.js": 'import { two } from "./b.js";\nalert(two);', "b.js": "export const two = 2;"}
    >>> print(bundle(modules, "a.js"))
    const m0 = (() => { // b.js
    const two = 2;
    return { two };
    })();
    const m1 = (() => { // a.js
    const { two } = m0;
    alert(two);
    return {  };
    })();
    """
    places: dict[str, int | None] = {}
    parts: list[str] = []

    def add(path: str) -> int:
        if path in places:
            place = places[path]
            if place is None:
                raise ValueError(f"{path} imports itself, by way of others: modules of the console must not")
            return place
        places[path] = None
        text = modules[path]

        def imported(found: re.Match[str]) -> str:
            needed = add(posixpath.normpath(posixpath.join(posixpath.dirname(path), found["path"])))
            name = found["all"] or "{" + found["names"].replace(" as ", ": ") + "}"
            return f"const {name} = m{needed};"

        names = _EXPORT.findall(text)
        text = _EXPORT.sub("", _IMPORT.sub(imported, text))
        odd = _LEFT.search(text)
        if odd is not None:
            raise ValueError(f"{path} has a form of import or export that is not understood: {odd[0]}")
        place = len(parts)
        places[path] = place
        parts.append(f"const m{place} = (() => {{ // {path}\n{text.strip()}\nreturn {{ {', '.join(names)} }};\n}})();")
        return place

    add(start)
    return "\n".join(parts)
