"""Registries: the kinds of a thing by name, both our own and kinds from other packages."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from neverseen.errors import ConfigurationError, UnknownKindError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class _Place(str):
    """The place of one of our kinds, as ``module:attribute``."""


class Registry(Generic[T]):
    """The kinds of one thing, by name.

    A package can add a kind with `add`, when it is imported. Or it can declare an entry point in the group
    ``neverseen.<plural>``. Then the command line and the service find the kind too, although they do not import it.

    Parameters
    ----------
    singular, plural : str
        Its name in messages, and in the group of its entry points.
    own : dict of str to str
        Our kinds, as ``module:attribute`` inside this package. They are imported on first use.
    type_ : type
        What an entry point must name.

    Examples
    --------
    >>> shapes = Registry[int]("shape", "shapes", {})
    >>> shapes.add("square", 4)
    >>> shapes["square"]
    4
    """

    def __init__(self, singular: str, plural: str, own: dict[str, str], type_: type = object) -> None:
        self.singular, self.plural, self._type = singular, plural, type_
        self._kinds: dict[str, T | _Place] = {name: _Place(f"neverseen.{place}") for name, place in own.items()}

    def add(self, name: str, kind: T) -> None:
        """Add a kind. A name stands for one kind: two kinds with one name would read each other's files."""
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
        if name not in self._kinds:
            found = self._entry_points()[name].load()
            if not isinstance(found, self._type):
                raise ConfigurationError(
                    f"the entry point {name!r} in neverseen.{self.plural} names {found!r}: it must name a "
                    f"{self._type.__name__}"
                )
            self._kinds[name] = cast(T, found)
        kind = self._kinds[name]
        if isinstance(kind, _Place):
            module, _, attribute = kind.partition(":")
            kind = self._kinds[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return kind

    def _entry_points(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # takes long, so only for unknown names

        return {each.name: each for each in entry_points(group=f"neverseen.{self.plural}")}
