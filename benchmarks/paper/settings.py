"""Named settings: how large, how long, which seeds. One TOML file each, in the folder ``settings``."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "settings"


class SettingError(ValueError):
    """A setting that does not exist or says something unknown."""


@dataclass(frozen=True)
class Sizes:
    """How many images. 0 for `train` or `test` means all there are."""

    base: int
    learned: int
    forgotten: int
    train: int = 0
    test: int = 0
    trace: int = 5000  # retained samples looked at after each request; all of them at the end
    attack: int = 2000  # members and non-members that train the confidence attack
    head_references: int = 16  # models that the per-example attack on analytic heads compares with; even
    network_references: int = 4  # the same for networks: each is a whole training
    reference_seeds: tuple[int, ...] = (0,)  # seeds for which networks are attacked so


@dataclass(frozen=True)
class Training:
    """How a network is trained; see `benchmarks.paper.training.train`."""

    epochs: int
    lr: float
    batch_size: int = 512
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    cutout: int = 0
    mixup: float = 0.0


@dataclass(frozen=True)
class Analytic:
    """The frozen backbone and the analytic head: ``RandomProjection(codes)`` and ridge strength `gamma`."""

    codes: int
    gamma: int
    backbone: str = "resnet18"  # or "efficientnet-lite0", which is not trained
    mirrored: bool = True  # features are the mean over an image and its mirror image


@dataclass(frozen=True)
class Experiment:
    """One experiment: which runs there are."""

    requests: tuple[int, ...]
    seeds: tuple[int, ...]
    data: tuple[str, ...]
    methods: tuple[str, ...]
    left: int = 0  # stress_few alone: samples left at the end
    sample: int = 0  # time alone: so many requests, from first to last, stand for all of a gradient method; 0 for all
    repeats: int = 1  # time alone: an odd number; analytic methods are timed so often, and the median counts


@dataclass(frozen=True)
class Setting:
    """All of one TOML file."""

    name: str
    about: str
    width: int
    sizes: Sizes
    base: Training
    original: Training
    analytic: Analytic
    experiments: Mapping[str, Experiment]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a table a method
    head_methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra_methods: tuple[str, ...] = ()  # "module:Class" of methods that are not in METHODS

    def method_settings(self, method: str, head_only: bool) -> dict[str, Any]:
        """Return a method's own table, with what differs where only the head moves."""
        own = dict(self.methods.get(method, {}))
        return own | dict(self.head_methods.get(method, {})) if head_only else own


def names() -> list[str]:
    """Return the names of the settings there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Setting:
    """Read a setting by its name, or from a TOML file by its path.

    A file with ``based_on = "full"`` says only what is different.
    """
    path, table = _table(name)
    experiments = {}
    for title, own in table.pop("experiments", {}).items():
        defaults = {key: table[key] for key in ("seeds", "data") if key in table}
        experiments[title] = _build(Experiment, defaults | own, f"{path.name}: experiments.{title}")
    for key in ("seeds", "data"):
        table.pop(key, None)
    parts = {"sizes": Sizes, "base": Training, "original": Training, "analytic": Analytic}
    for key, kind in parts.items():
        table[key] = _build(kind, table.get(key, {}), f"{path.name}: {key}")
    return _build(Setting, table | {"name": path.stem, "experiments": experiments}, path.name)  # type: ignore[no-any-return]


def _table(name: str, above: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
    """Return a setting's path and its table, laid over the table of the setting that it is based on."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise SettingError(f"there is no setting {name!r}; there are {', '.join(names())}, or name a .toml file")
    with path.open("rb") as file:
        try:
            table = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"{path} is not TOML: {error}") from error
    below = table.pop("based_on", None)
    if path.resolve() in above:
        raise SettingError(f"{path.name} is based on itself")
    return path, table if below is None else _laid_over(_table(below, (*above, path.resolve()))[1], table)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {key: _laid_over(below[key], value) for key, value in above.items() if isinstance(below.get(key), dict)}
    return below | above | both


def _build(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """Return a dataclass from a table, or say which of its keys is unknown or missing."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise SettingError(f"{where} has unknown keys: {', '.join(unknown)}; known are {', '.join(fields)}")
    required = {
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(table)):
        raise SettingError(f"{where} lacks {', '.join(missing)}")
    kinds = {name: str(f.type) for name, f in fields.items()}
    for key, value in table.items():
        if not _fits(value, kinds[key]):
            raise SettingError(f"{where}: {key} is {value!r}, where {_WANTED[kinds[key]]} is wanted")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "tuple[int, ...]": "a list of whole numbers",
    "tuple[str, ...]": "a list of texts",
}
"""What a field of that type takes; others are tables, and checked one by one."""


def _fits(value: Any, kind: str) -> bool:
    if kind not in _WANTED:
        return True
    if kind.startswith("tuple"):
        return isinstance(value, list) and all(_fits(item, kind[6:9]) for item in value)
    plain: Any = {"int": int, "float": (int, float), "str": str, "bool": bool}[kind]
    return isinstance(value, plain) and isinstance(value, bool) == (kind == "bool")
