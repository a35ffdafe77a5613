"""Contract checks for your own encoder, backbone, hardware or database.

Each check has a name. It stops at the first fault, with a `CheckFailedError` that says what to do::

    from neverseen.checks import check_encoder, yield_checks

    check_encoder(MyEncoder())                                   # all checks, one after the other

    @pytest.mark.parametrize("check", yield_checks(MyEncoder()), ids=str)
    def test_my_encoder(check):                                  # or each as a test of its own
        check()

Passing all checks does not prove that a class is right. The package runs them on its own classes too.
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neverseen.backbones.contents import fingerprint
from neverseen.backbones.protocol import CACHE_METHODS, Backbone, FeatureCache, optional
from neverseen.backbones.reading import extracted
from neverseen.backbones.recipes import TAKES, takes
from neverseen.encoding import Encoder, encoder_of, require_storable
from neverseen.engine.arithmetic import CodeMatrix, class_sums, gram
from neverseen.engine.solver import solve
from neverseen.errors import CheckFailedError, ConfigurationError, InputError, LedgerError, NeverseenError
from neverseen.hardware import Hardware, HardwareOf, choose
from neverseen.labels import canonical_json

if TYPE_CHECKING:
    from neverseen.ledger import Ledger, SampleRow

__all__ = ["Check", "check_backbone", "check_database", "check_encoder", "check_hardware", "yield_checks"]

Run = Callable[..., None]


@dataclass(frozen=True)
class Check:
    """One check of one thing. Call it to run it."""

    run: Run
    given: tuple[Any, ...]

    def __call__(self) -> None:
        """Run the check; raise `CheckFailedError` if it fails."""
        try:
            self.run(*self.given)
        except CheckFailedError as error:
            raise CheckFailedError(f"{self}: {error}") from None
        except Exception as error:
            raise CheckFailedError(f"{self}: it raised {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return self.run.__name__.strip("_")


def yield_checks(thing: Encoder | Backbone | HardwareOf[Any] | str, samples: Any = None) -> Iterator[Check]:
    """Yield the checks of a thing.

    Parameters
    ----------
    thing : Encoder, Backbone, hardware, or the URL of a database
        The database must be empty. Afterwards it has the tables of a ledger.
    samples : list, optional
        For a backbone: three or more different samples. Not needed for features or texts. A cache must be empty.
    """
    if isinstance(thing, Backbone):
        made = _samples_of(thing) if samples is None else list(samples)
        yield from (Check(run, (thing, made)) for run in _BACKBONE)
    else:
        runs = _DATABASE if isinstance(thing, str) else _ENCODER if isinstance(thing, Encoder) else _HARDWARE
        if runs is _HARDWARE and not hasattr(thing, "name"):
            raise InputError(f"there are no checks for {thing!r}: give an encoder, a backbone, a hardware or a URL")
        yield from (Check(run, (thing,)) for run in runs)


def _run_all(thing: Any, samples: Any = None) -> None:
    for check in yield_checks(thing, samples):
        check()


def check_encoder(encoder: Encoder) -> None:
    """Run all checks of an encoder; raise `CheckFailedError` at the first that fails.

    Examples
    --------
    >>> from neverseen import RandomProjection
    >>> check_encoder(RandomProjection(64, seed=1))
    """
    _demand(isinstance(encoder, Encoder), "derive it from neverseen.Encoder")
    _run_all(encoder)


def check_backbone(backbone: Backbone, samples: Any = None) -> None:
    """Run all checks of a backbone, on three or more different samples; see `yield_checks`."""
    _demand(isinstance(backbone, Backbone), "give it name, n_features, extract and digest")
    _run_all(backbone, samples)


def check_hardware(hardware: HardwareOf[Any]) -> None:
    """Run all checks of a kind of hardware; see `yield_checks`."""
    _run_all(hardware)


def check_database(url: str) -> None:
    """Run all checks of a kind of database, on an empty database; see `yield_checks`."""
    _run_all(url)


def _demand(fits: object, otherwise: str) -> None:
    if not fits:
        raise CheckFailedError(otherwise)


def _same(found: Any, wanted: Any, otherwise: str) -> None:
    _demand(np.array_equal(np.asarray(found), np.asarray(wanted)), otherwise)


def _numbers(*shape: int, most: int = 127, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most, shape, endpoint=True)


# -- encoders ----------------------------------------------------------------------------------------


def _width(encoder: Encoder) -> int:
    array = encoder.array()
    return 12 if array is None else int(array.shape[-1])


def _configuration_is_json(encoder: Encoder) -> None:
    settings = encoder.configuration()
    _demand(json.loads(canonical_json(settings)) == settings, "configuration() must return JSON values, with no tuples")
    _demand(settings.get("kind") == encoder.kind != "", "configuration() must have the encoder's kind under 'kind'")


def _parameters_change_the_configuration(encoder: Encoder) -> None:
    copied = pickle.loads(pickle.dumps(encoder)).set_params(**encoder.get_params())  # noqa: S301 (made here)
    _demand(copied.configuration() == encoder.configuration(), "set_params(**get_params()) must change nothing")
    _demand(copied.digest() == encoder.digest(), "a copy must have the same digest")


def _codes_are_small_integers(encoder: Encoder) -> None:
    quantised = _numbers(9, _width(encoder)).astype(np.int8)
    codes = choose("numpy").numpy(encoder.expand(quantised, choose("numpy")))
    size = encoder.code_size(quantised.shape[1])
    _demand(codes.dtype == np.int8, f"expand must return int8; it returned {codes.dtype}")
    _demand(codes.shape == (9, size), f"expand must return (9, {size}), as code_size says; it returned {codes.shape}")
    _demand(codes.min(initial=0) >= -127, "codes must lie in -127..127; there is a -128")
    nothing = choose("numpy").numpy(encoder.expand(quantised[:0], choose("numpy")))
    _demand(nothing.shape == (0, size), f"expand must return (0, {size}) for no samples; it returned {nothing.shape}")


def _codes_depend_on_their_sample_alone(encoder: Encoder) -> None:
    quantised, hardware = _numbers(7, _width(encoder)).astype(np.int8), choose("numpy")
    together = hardware.numpy(encoder.expand(quantised, hardware))
    alone = [hardware.numpy(encoder.expand(row[None], hardware))[0] for row in quantised[::-1]]
    _same(alone, together[::-1], "the code of a sample must not depend on the samples beside it, nor on earlier calls")


def _saved_and_made_again(encoder: Encoder) -> None:
    try:
        require_storable(encoder)
    except ConfigurationError as error:
        raise CheckFailedError(str(error)) from None
    again = encoder_of(json.loads(canonical_json(encoder.configuration())), encoder.array())
    quantised, hardware = _numbers(5, _width(encoder)).astype(np.int8), choose("numpy")
    _demand(again.digest() == encoder.digest(), "from_configuration must make an encoder of the same digest")
    _same(again.expand(quantised, hardware), encoder.expand(quantised, hardware), "from_configuration changes codes")


def _an_altered_array_is_noticed(encoder: Encoder) -> None:
    array = encoder.array()
    if array is not None:
        altered = array.copy()
        altered.flat[0] += -1 if altered.flat[0] > 0 else 1
        try:
            same = encoder_of(encoder.configuration(), altered).digest() == encoder.digest()
        except NeverseenError:
            return
        _demand(not same, "the configuration must hold a digest of the array, or an altered file goes unnoticed")


_ENCODER: tuple[Run, ...] = (
    _configuration_is_json,
    _parameters_change_the_configuration,
    _codes_are_small_integers,
    _codes_depend_on_their_sample_alone,
    _saved_and_made_again,
    _an_altered_array_is_noticed,
)

# -- backbones ---------------------------------------------------------------------------------------


def _samples_of(backbone: Backbone) -> list[Any]:
    match optional(backbone, "takes"):
        case "features":
            return list(_numbers(4, backbone.n_features).astype(np.float32))
        case "texts":
            return ["a text", "another, which is longer", "Ελληνικά", ""]
    raise CheckFailedError("give samples: the backbone does not say which kind it takes")


def _features_are_finite_rows(backbone: Backbone, samples: list[Any]) -> None:
    _demand(len({fingerprint(each) for each in samples}) == len(samples) > 2, "give three samples, all different")
    features = extracted(backbone, samples)
    shape = (len(samples), backbone.n_features)
    _demand(features.dtype == np.float32, f"extract must return float32; it returned {features.dtype}")
    _demand(features.shape == shape, f"extract must return {shape}, as n_features says; it returned {features.shape}")
    _demand(np.isfinite(features).all(), "extract must return finite numbers")
    _demand(extracted(backbone, []).shape == (0, shape[1]), f"extract must return (0, {shape[1]}) for no samples")


def _features_depend_on_their_sample_alone(backbone: Backbone, samples: list[Any]) -> None:
    together = extracted(backbone, samples)
    alone = np.concatenate([extracted(backbone, [sample]) for sample in samples[::-1]])
    _same(alone, together[::-1], "the features of a sample must not depend, to the last bit, on the samples beside it")


def _the_digest_is_stable(backbone: Backbone, samples: list[Any]) -> None:
    before = backbone.digest()
    _demand(re.fullmatch("[0-9a-f]{64}", before), f"digest must be a SHA-256 in hex; got {before!r}")
    extracted(backbone, samples)
    _demand(backbone.digest() == before, "extract must not change the digest")


def _optional_attributes_are_usable(backbone: Backbone, samples: list[Any]) -> None:
    said, recipe = optional(backbone, "takes"), optional(backbone, "recipe")
    _demand(said in (None, *TAKES), f"takes must be one of {', '.join(TAKES)}; got {said!r}")
    if recipe is not None:
        found = takes(recipe)
        _demand(found is not None, "the kind of its recipe is not registered: neverseen.backbones.register does that")
        _demand(found == said, f"its recipe is registered for {found}, and the backbone takes {said}")


def _a_cache_loses_what_it_must(backbone: Backbone, samples: list[Any]) -> None:
    if isinstance(backbone, FeatureCache):
        wanted, fingerprints = extracted(backbone, samples), [fingerprint(sample) for sample in samples]
        false = np.where(wanted == 0, 1, 0).astype(np.float32)  # tells what is remembered from what is extracted
        _demand(getattr(backbone, "__len__", int)() == 0, "give an empty cache; remember=False must keep nothing")
        backbone.remember(fingerprints, false)
        _same(extracted(backbone, samples), false, "it must give the features that it was told to remember")
        backbone.discard(fingerprints[:1])
        false[0] = wanted[0]
        _same(extracted(backbone, samples), false, "discard must drop the features of these samples alone")
        backbone.clear()
        _same(extracted(backbone, samples), wanted, "clear must drop all features")
    else:
        parts = [name for name in CACHE_METHODS if hasattr(backbone, name)]
        _demand(not parts, f"it has {' and '.join(parts)}: a cache needs all of remember, discard and clear")


_BACKBONE = (
    _features_are_finite_rows,
    _features_depend_on_their_sample_alone,
    _the_digest_is_stable,
    _optional_attributes_are_usable,
    _a_cache_loses_what_it_must,
)

# -- hardware ----------------------------------------------------------------------------------------


def _chosen_by_name(hardware: Hardware) -> None:
    _demand(choose(hardware.name).name == hardware.name, "register it under its name: neverseen.hardware.register")
    copied = pickle.loads(pickle.dumps(hardware))  # noqa: S301 (made here)
    _demand(copied.name == hardware.name, "it must be pickled as its name: derive it from HardwareOf")


def _arrays_come_back(hardware: Hardware) -> None:
    for dtype in (np.int8, np.int32, np.int64, np.float64):
        for values in (_numbers(3, 5).astype(dtype), _numbers(0, 4).astype(dtype), _numbers(4, 6).astype(dtype).T):
            values.flags.writeable = False
            found = hardware.numpy(hardware.array(values))
            _demand(found.dtype == dtype, f"an array of {np.dtype(dtype)} comes back as {found.dtype}")
            _same(found, values, f"an array of {np.dtype(dtype)} comes back changed")


def _conversions(hardware: Hardware) -> None:
    wide = _numbers(70, 50, most=2**50)
    array = hardware.array(wide)
    _same(hardware.numpy(hardware.float64(array)), wide.astype(np.float64), "float64 is wrong")
    _same(hardware.numpy(hardware.int64(hardware.float64(array))), wide, "int64 of integral floats is wrong")
    _same(hardware.numpy(hardware.int8(hardware.array(wide % 127))), wide % 127, "int8 is wrong")
    _same(hardware.numpy(hardware.limb(array, 20, 18)), (wide >> 20) & (2**18 - 1), "limb with bits is wrong")
    _same(hardware.numpy(hardware.limb(array, 20, None)), wide >> 20, "limb without bits is wrong")
    halves = np.array([[-2.5, -1.5, 0.5, 1.5, 2.4]])
    _same(hardware.numpy(hardware.rint(hardware.array(halves))), np.rint(halves), "rint must round ties to even")
    _demand(hardware.max_abs(hardware.float64(array)) == float(np.abs(wide).max()), "max_abs is wrong")
    _demand(np.isnan(hardware.max_abs(hardware.array(np.array([[1.0, np.nan]])))), "max_abs must return NaN if there")
    joined = hardware.concatenate([array, array], 1)
    _same(hardware.numpy(joined), np.concatenate([wide, wide], 1), "concatenate is wrong")
    _same(hardware.numpy(hardware.contiguous(array.T)), wide.T, "contiguous is wrong")
    sums = hardware.row_sums(hardware.array(wide % 1000))
    _same(sums, (wide % 1000).sum(axis=1).astype(np.float64), "row_sums is wrong")
    _same(np.stack(hardware.where(array > 0)), np.stack(np.nonzero(wide > 0)), "where must go row by row")


def _changes_in_place(hardware: Hardware) -> None:
    wide, rows = _numbers(6, 4, most=2**60), _numbers(2, 4, most=2**60)
    target = hardware.zeros(6, 4)
    hardware.add_in_place(target, hardware.array(wide), 1)
    hardware.add_in_place(target, hardware.array(_numbers(6, 4).astype(np.int8)), -1)
    hardware.add_to_rows(target, [4, 1], hardware.array(rows), -1)
    wanted = wide - _numbers(6, 4)
    wanted[[4, 1]] -= rows
    _same(hardware.numpy(target), wanted, "add_in_place or add_to_rows is wrong")
    square = hardware.array(np.zeros((3, 3)))
    hardware.add_to_diagonal(square, 2.0)
    hardware.add_to_diagonal(square, hardware.array(np.array([1.0, 2.0, 3.0])))
    _same(hardware.numpy(square), np.diag([3.0, 4.0, 5.0]), "add_to_diagonal is wrong")


def _products_are_exact(hardware: Hardware) -> None:
    few = itertools.product((0, 1, 2, 15, 16, 17, 80), (1, 2, 15, 16, 31, 40), (1, 2, 16, 33))  # matrix units want many
    for rows, inner, columns in (*few, (40, 2100, 33)):
        left, right = _numbers(rows, inner).astype(np.int8), _numbers(inner, columns, seed=8).astype(np.int8)
        wide = left.astype(np.int64)
        found = hardware.numpy(CodeMatrix(right, hardware).after(hardware.array(left)))
        _same(found, wide @ right, f"int8_matmul of {rows} by {inner} by {columns} is wrong")
        _same(hardware.numpy(gram(hardware.array(left), hardware)), wide.T @ wide, "int8_gram is wrong")
        found = hardware.numpy(class_sums(hardware.array(left), np.arange(rows) % 3, 3, hardware))
        _same(found, [wide[place::3].sum(axis=0) for place in range(3)], "class_sums is wrong")
    wide, block = _numbers(9, 35, most=2**62), _numbers(35, 9, most=2**62, seed=8)
    found = hardware.numpy(hardware.wrapping_matvec(hardware.array(wide), hardware.array(block[:, 0])))
    _same(found, wide @ block[:, 0], "wrapping_matvec must be right modulo 2**64")
    found = hardware.numpy(hardware.symmetric_product(hardware.array(wide.T @ wide), hardware.array(block)))
    _same(found, wide.T @ wide @ block, "symmetric_product must be right modulo 2**64")


def _weights_are_those_of_numpy(hardware: Hardware) -> None:
    codes = _numbers(90, 40)
    matrix, cross = codes.T @ codes, codes[:5].T
    found = solve(hardware.array(matrix), hardware.array(np.ascontiguousarray(cross)), 2**10, hardware=hardware)
    _same(found.weights, solve(matrix, cross, 2**10).weights, "weights differ from those of NumPy")
    factor = hardware.cholesky(hardware.array(matrix + 2.0**10 * np.eye(40)))
    _demand(factor is not None, "cholesky finds no factor of a positive definite matrix")
    lower = hardware.numpy(hardware.triangle(factor))
    near = np.allclose(lower @ lower.T, matrix + 2**10 * np.eye(40)) and not np.triu(lower, 1).any()
    _demand(near, "triangle must return the lower factor of the matrix, with zeros above")
    _demand(hardware.cholesky(hardware.array(-np.eye(3))) is None, "cholesky must return None where there is no factor")
    try:
        inverse = hardware.numpy(hardware.inverse(hardware.array(np.zeros((2, 2)))))
    except (ValueError, RuntimeError):
        return
    _demand(not np.isfinite(inverse).all(), "inverse must not pass a singular matrix off as regular")


_HARDWARE: tuple[Run, ...] = (
    _chosen_by_name,
    _arrays_come_back,
    _conversions,
    _changes_in_place,
    _products_are_exact,
    _weights_are_those_of_numpy,
)

# -- databases ---------------------------------------------------------------------------------------


def _ledger(url: str, create: bool = False) -> Ledger:
    from neverseen.ledger import Ledger  # needs SQLAlchemy, which the other checks do not

    return Ledger(url, create)


def _made(url: str) -> Ledger:
    try:
        return _ledger(url, create=True)
    except LedgerError:  # an earlier check made it
        ledger = _ledger(url)
        if ledger.meta("configuration") is None and not ledger.total() and not any(ledger.journal()):
            return ledger
        ledger.close()
        raise CheckFailedError("give an empty database: this one is the ledger of a store, or holds samples") from None


def _row(place: int) -> SampleRow:
    from neverseen.ledger import SampleRow

    number, salt = (bytes([kind, place]) * 8 for kind in (1, 2))
    return SampleRow(number, number, number, '"class"', f'"id {place}"', "null", number * 2, salt, place, "learned")


def _what_is_committed_stays(url: str) -> None:
    rows = [_row(place) for place in range(40)]
    with _made(url) as ledger, ledger.writing() as writing:
        writing.add(rows)
        writing.append("samples", bytes(range(256)) * 300)
    with _ledger(url) as ledger:
        found = sorted(ledger.samples(), key=lambda row: row.learned)
        _demand(found == rows, "opened again, the rows differ from those committed")
        _demand([len(row.payload) for row in ledger.journal()] == [76800], "opened again, the journal differs")
        with ledger.writing() as writing:
            writing.remove([row.number for row in rows])
            writing.drop_journal(2**40)
        _demand(ledger.total() == 0, "removed rows are still there")


def _a_change_that_fails_is_undone(url: str) -> None:
    with _made(url) as ledger:
        with suppress(InterruptedError), ledger.writing() as writing:
            writing.add([_row(77)])
            raise InterruptedError
        _demand(ledger.total() == 0, "an exception inside a transaction must undo it")


def _readers_see_what_is_committed_alone(url: str) -> None:
    with _made(url) as ledger, _ledger(url) as reader:
        with ledger.writing() as writing:
            writing.add([_row(78)])
            _demand(reader.total() == 0, "a reader must neither see uncommitted rows nor wait for them")
        _demand(reader.total() == 1, "a reader must see committed rows")
        with ledger.writing() as writing:
            writing.remove([_row(78).number])


def _scrubbed_and_whole(url: str) -> None:
    with _made(url) as ledger:
        ledger.scrub()
        ledger.check()


def _a_ledger_is_not_made_twice(url: str) -> None:
    _made(url).close()
    with suppress(LedgerError):
        _ledger(url, create=True).close()
        raise CheckFailedError("creating a ledger must fail where there is one already")


_DATABASE: tuple[Run, ...] = (
    _what_is_committed_stays,
    _a_change_that_fails_is_undone,
    _readers_see_what_is_committed_alone,
    _scrubbed_and_whole,
    _a_ledger_is_not_made_twice,
)
