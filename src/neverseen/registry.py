"""Registries: the kinds of a thing by name, our own and those that other packages add."""

from __future__ import annotations

import importlib
from typing import Generic, TypeVar, cast

from neverseen.errors import ConfigurationError, UnknownKindError

T = TypeVar("T")


class Registry(Generic[T]):
    """The kinds of one thing, by name.

    A package adds a kind when it is imported, with `add`. Or it declares an entry point in the group
    ``neverseen.<plural>``; then the kind is found without an import, also by the command line and the service.

    Parameters
    ----------
    singular, plural : str
        What the thing is called in messages, and in the name of its entry points.
    own : dict of str to str
        Our kinds, as ``module:attribute`` inside this package. They are imported when they are asked for.

    Examples
    --------
    >>> shapes = Registry[int]("shape", "shapes", {})
    >>> shapes.add("square", 4)
    >>> shapes["square"]
    4
    """

    def __init__(self, singular: str, plural: str, own: dict[str, str]) -> None:
        self.singular, self.plural = singular, plural
        self._kinds: dict[str, T | str] = {name: f"neverseen.{place}" for name, place in own.items()}

    def add(self, name: str, kind: T) -> None:
        """Add a kind. A name can be taken once: two kinds of one name would read each other's files."""
        if self._kinds.get(name, kind) is not kind:
            raise ConfigurationError(f"there is a {self.singular} {name!r} already; choose another name")
        self._kinds[name] = kind

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self._kinds, *self._entry_points()})

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._kinds or name in self._entry_points())

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UnknownKindError(
                f"the {self.singular} {str(name)[:40]!r} is not known; known are {', '.join(self.names())}. Import the "
                f"package that registers it, or let it declare an entry point in neverseen.{self.plural}"
            )
        kind = self._kinds.get(name) or self._entry_points()[name]
        if isinstance(kind, str):
            module, _, attribute = kind.partition(":")
            kind = self._kinds[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return kind

    def _entry_points(self) -> dict[str, str]:
        from importlib.metadata import entry_points  # takes long: only for names that are not known

        return {each.name: each.value for each in entry_points(group=f"neverseen.{self.plural}")}
