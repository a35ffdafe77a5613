"""The base class of encoders, and their registry."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from neverseen.encoding.quantising import fixed_scale, quantise
from neverseen.errors import ConfigurationError
from neverseen.hardware import Array, Hardware, choose
from neverseen.labels import canonical_json
from neverseen.registry import Registry


class Graph(Protocol):
    """An ONNX graph under construction. Values have names."""

    def constant(self, values: Any, dtype: type = np.float64) -> str:
        """Add a constant, and return its name."""

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        """Add an operation of ONNX, and return the name of its result."""

    def cast(self, value: str, dtype: str) -> str:
        """Add a change of type, such as to ``DOUBLE``, and return the name of its result."""


class Encoder:
    """Base of the encoders: `quantise`, then `expand`.

    Settings are read and changed as in scikit-learn (`get_params`, `set_params`), so encoders work in grid
    searches. To check your own encoder, use `neverseen.checks.check_encoder`.

    Attributes
    ----------
    kind : str
        The encoder's name in files, and in the `configuration`.
    scale : float, optional
        What `quantise` divides features by. If it is a setting of your encoder, `with_scale` adds it to the
        configuration, and `scale_in` reads it there.
    compensation_ratio : float, optional
        If it is not None, a code is two streams of one size, side by side: a model first fits the first half, and then
        the second half to what the first leaves over (`neverseen.engine.streams`). Part of the configuration.
    """

    kind: ClassVar[str] = ""
    scale: float | None = None
    compensation_ratio: float | None = None
    _settings: tuple[str, ...] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name."""
        return {name: getattr(self, name) for name in self._settings}

    def set_params(self, **settings: Any) -> Encoder:
        """Change settings by name."""
        for name, value in settings.items():
            if name not in self._settings:
                raise ConfigurationError(
                    f"{type(self).__name__} has no setting {name!r}; it has {', '.join(self._settings) or 'none'}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._settings)})"

    def configuration(self) -> dict[str, Any]:
        """Return the kind and all settings that affect a code, as JSON values.

        Raises `ConfigurationError` if they are invalid.
        """
        raise NotImplementedError

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> Encoder:
        """Return the encoder with this `configuration` and this `array`. Do not trust either of them."""
        raise NotImplementedError

    def with_scale(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration with the scale, if there is one. Raises `ConfigurationError` if it is invalid."""
        if self.scale is None:
            return settings
        return settings | {"scale": fixed_scale(self.scale).hex()}

    @staticmethod
    def scale_in(settings: dict[str, Any]) -> float | None:
        """Return the scale in a configuration, or None."""
        return float.fromhex(settings["scale"]) if "scale" in settings else None

    def array(self) -> np.ndarray | None:
        """Return a setting that is too large for the configuration, as an integer array; or None.

        The configuration must contain its digest. In files, its name is ``centres``.
        """
        return None

    def digest(self) -> str:
        """Return the SHA-256 of the configuration, in hex."""
        return hashlib.sha256(canonical_json(self.configuration()).encode()).hexdigest()

    def code_size(self, n_features: int) -> int:
        """Return the size of a code, given the number of features."""
        raise NotImplementedError

    def quantise(self, samples: Any, hardware: Hardware | None = None) -> np.ndarray:
        """Return float features of shape (n, d0) as int8; see `neverseen.encoding.quantise`."""
        return quantise(samples, self.scale, hardware)

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        """Return the int8 codes of quantised features of shape (n, d0), computed on this hardware."""
        raise NotImplementedError

    def add_to(self, graph: Graph, quantised: str, n_features: int) -> str:
        """Add `expand` to an ONNX graph, with integers in float64, and return the name of the codes."""
        raise ConfigurationError(
            f"a model with the encoder {type(self).__name__} cannot be exported to .onnx; use .safetensors"
        )

    def encode(self, samples: Any) -> np.ndarray:
        """Return the int8 codes, of shape (n, d), of float features of shape (n, d0)."""
        hardware = choose("numpy")
        return hardware.numpy(self.expand(self.quantise(samples), hardware))


kinds: Registry[type[Encoder]] = Registry("encoder", "encoders", {})
E = TypeVar("E", bound=Encoder)


def register(encoder: type[E]) -> type[E]:
    """Add an encoder class under its `Encoder.kind`. Use it as a decorator.

    Raises `ConfigurationError` if the kind is missing or taken.
    """
    if not encoder.kind:
        raise ConfigurationError(f"{encoder.__name__} needs a kind, a text that names it in files")
    kinds.add(encoder.kind, encoder)
    return encoder


def require_storable(encoder: Encoder) -> None:
    """Raise `ConfigurationError` unless `encoder_of` can make this encoder again."""
    if encoder.kind not in kinds or kinds[encoder.kind] is not type(encoder):
        raise ConfigurationError(
            f"models with the encoder {type(encoder).__name__} cannot be saved: it is not registered. Give it a kind "
            "of its own, and register it with neverseen.encoding.register"
        )


def encoder_of(settings: dict[str, Any], array: np.ndarray | None) -> Encoder:
    """Return the encoder that has this `configuration`, and this array if it needs one."""
    return kinds[settings["kind"]].from_configuration(settings, array)
