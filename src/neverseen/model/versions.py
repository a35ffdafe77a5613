"""Published versions: the weights of a model as one file, with their proof.

A version can predict, and can be checked. It holds no sums, no digests of samples and no key. It depends only on the
settings and the held samples: models with the same settings and samples publish the same bytes, whatever their
histories.

The file is laid out like a saved model (``docs/specification.md``, section 8): safetensors with a canonical header, a
description and a checksum. The description has the keys ``bits`` (of the witness), ``classes``, ``configuration``,
``format`` (``"neverseen-version-1"``), ``n_features``, ``sha256`` and ``unproved``; the tensors are ``centres`` (only
of a `GaussianKernel`), ``rests`` in the narrowest integers, and ``weights`` in int64. A version without samples has
``n_features`` 0, no classes, and no tensors but ``centres``. If the sums choose gamma, ``gamma`` is what they chose.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.encoding import require_storable
from neverseen.engine.definiteness import least_eigenvalue
from neverseen.engine.following import Following
from neverseen.engine.packing import narrowed
from neverseen.engine.solver import solve
from neverseen.engine.statistics import Statistics
from neverseen.engine.strength import MOST_EXPONENT
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import (
    CertificateRejectedError,
    FileRejectedError,
    HardwareError,
    IllConditionedError,
    InputError,
    LimitError,
    NeverseenError,
    damaged,
)
from neverseen.hardware import Array, Hardware
from neverseen.io.files import replace_file
from neverseen.io.tensorfile import demand, pack, unpack
from neverseen.labels import in_class_order
from neverseen.model.configuration import AUTO, Configuration
from neverseen.model.exact import ExactModel
from neverseen.model.frozen import FrozenWeights
from neverseen.model.problem import Problem, problem, strength, sums_digest, why_not_made_up
from neverseen.proof.certificates import State
from neverseen.proof.witness import MAX_BITS, Witness, check_weights, make_witness, require_gram

__all__ = ["Version", "read_version", "write_version"]

FORMAT = "neverseen-version-1"
_FIELDS = {"bits", "classes", "configuration", "format", "n_features", "unproved"}
_CANDIDATES = [1 << exponent for exponent in range(MOST_EXPONENT + 1)]


class Version(FrozenWeights):
    """The weights of a model at one moment, with their witness: they can be checked.

    Examples
    --------
    >>> from neverseen import Identity
    >>> version = Version.empty(Configuration(Identity(), gamma=1, grid_bits=40))
    >>> version.classes, version.digest()[:8]
    ([], '67597ccd')
    """

    def __init__(
        self,
        configuration: Configuration,
        n_features: int,
        classes: list[str],
        weights: np.ndarray,
        witness: Witness,
        hardware: Hardware | None = None,
        chosen: int | None = None,
    ) -> None:
        super().__init__(configuration, n_features, classes, weights, hardware)
        self.witness, self._chosen = witness, chosen

    @property
    def gamma(self) -> int | None:
        """The ridge strength of the weights; None if the sums choose it and there are none."""
        return self._chosen if self.configuration.gamma == AUTO else self.configuration.gamma

    @classmethod
    def of(cls, model: ExactModel) -> Version:
        """Return the version of a model as it is now. Without samples, it is the empty version.

        Each of its weights was proved or solved for: `HardwareError` if one is wrong.
        """
        with model.locked():
            statistics = model.statistics
            if not statistics.counts:
                return cls.empty(model.configuration, model.hardware)
            weights = np.array(model.weights())
            solution = model.solution()
            system = problem(statistics, model.configuration, weights, solution.gamma)
            witness = make_witness(system.gram, system.cross, solution, model.hardware)
            if isinstance(solution, Following):
                _confirm(system.gram, system.cross, solution, witness)
            about, gamma = model.configuration, solution.gamma
            return cls(about, model.n_features, model.classes, weights, witness, model.hardware, gamma)

    @classmethod
    def empty(cls, configuration: Configuration, hardware: Hardware | None = None) -> Version:
        """Return the version of a model that holds no sample."""
        nothing = np.zeros((0, 0), np.int64)
        return cls(configuration, 0, [], nothing, Witness(nothing.astype(np.int8), 1), hardware)

    def check(self, statistics: Statistics) -> None:
        """Raise `CertificateRejectedError` unless these are the correctly rounded weights of these sums.

        It takes one exact residual and one factorisation, but no solve: see `neverseen.proof.witness`. You need not
        trust the sums: sums that cannot come from samples are refused. If the sums choose gamma, it is chosen again.
        """
        if self.classes != statistics.classes:
            raise CertificateRejectedError("the version and the sums are of different classes")
        if not self.classes:
            return
        balanced = self.configuration.class_weight is not None
        if balanced and (why := why_not_made_up(statistics)) is not None:  # the weights follow from the sums of classes
            raise CertificateRejectedError(f"the sums do not come from any samples: {why}")
        if self.configuration.gamma == AUTO:
            self._check_gamma(statistics)
        one = self.configuration.encoder.compensation_ratio is None
        check_weights(
            *(self._system(statistics) if one else self._system_of_streams(statistics)),
            self.configuration.grid_bits,
            self.weights,
            self.witness,
            statistics.hardware,
        )

    def _check_gamma(self, statistics: Statistics) -> None:
        """Raise `CertificateRejectedError` unless these sums choose the gamma of this version."""
        require_gram(statistics.gram)
        try:
            gamma = strength(statistics, self.configuration).gamma
        except (IllConditionedError, InputError, LimitError) as error:
            raise CertificateRejectedError(f"the choice of gamma cannot be checked: {error}") from error
        if gamma != self.gamma:
            raise CertificateRejectedError(f"the sums choose gamma = {gamma}, and the version has {self.gamma}")

    def _system(self, statistics: Statistics) -> Problem:
        return problem(statistics, self.configuration, self.weights, self.gamma)

    def _system_of_streams(self, statistics: Statistics) -> Problem:
        """Return the system of two streams; raise `CertificateRejectedError` if these sums cannot have one.

        It has only two blocks of the Gram matrix. So the whole matrix is proved here.
        """
        gram, gamma = statistics.gram, int(self.configuration.gamma)
        require_gram(gram)
        shape = (len(gram), len(self.classes))
        if self.weights.shape != shape:
            raise CertificateRejectedError(f"the weights do not have the shape {shape} of these sums")
        try:
            if least_eigenvalue(IntegerSystem(gram, gamma, statistics.hardware)) is None:
                raise CertificateRejectedError(
                    "the sums cannot be proved to come from samples: the matrix of both streams is not positive "
                    "semidefinite, or gamma is too small for 64-bit floats to tell. Learn the data again to check"
                )
            return self._system(statistics)
        except LimitError as error:
            raise CertificateRejectedError(f"the sums are too large for two streams to be checked: {error}") from error

    def check_stated(self, statistics: Statistics, number: int, stated: State) -> None:
        """Raise `CertificateRejectedError` unless a certificate states these weights and sums, and they `check`.

        Parameters
        ----------
        number : int
            Of the certificate.
        stated : State
            What it says of the model after it. If the sums are others, changes may wait to be published: the error is
            `undecided`.
        """
        if self.digest() != stated.model:
            words = f"the weights do not match certificate {number}: they are of another version, or altered"
            raise CertificateRejectedError(words, number)
        held = statistics.total + stated.samples  # without samples all is 0
        if held and sums_digest(statistics, self.configuration) != stated.statistics:
            raise CertificateRejectedError(
                f"the sums do not match certificate {number}: changes are not published yet, or the sums were altered. "
                "Publish, and check again",
                number,
                undecided=True,
            )
        self.check(statistics)


def write_version(path: str | os.PathLike[str], version: Version) -> None:
    """Write a version to a file of mode 600, replacing it as a whole or not at all."""
    encoder = version.configuration.encoder
    require_storable(encoder)
    array = encoder.array()
    tensors = {} if array is None else {"centres": array}
    if version.classes:
        tensors |= {"rests": version.witness.rests, "weights": version.weights}
    about = {
        "bits": version.witness.bits,
        "classes": version.classes,
        "configuration": version.configuration.as_json(),
        "format": FORMAT,
        "n_features": version.n_features,
        "unproved": list(version.witness.unproved),
    }
    if version.configuration.gamma == AUTO:
        about["gamma"] = version.gamma
    replace_file(Path(path), pack(about, tensors))


def read_version(path: str | os.PathLike[str], hardware: Hardware | None = None) -> Version:
    """Return the version that a file holds, or raise `FileRejectedError`.

    `Version.check` shows that its weights are right. The certificate, which has their digest, shows that they are the
    publisher's.
    """
    refused = f"{path} is not a version that can be used"
    with damaged(FileRejectedError(f"{refused}: it is damaged, or something else")):
        try:
            return _assembled(*unpack(Path(path), FORMAT), hardware)
        except NeverseenError as error:
            raise FileRejectedError(f"{refused}: {error}") from error


def _assembled(about: dict[str, Any], tensors: dict[str, np.ndarray], hardware: Hardware | None) -> Version:
    settings, classes, n_features = about["configuration"], about["classes"], about["n_features"]
    configuration = Configuration.from_json(settings, tensors.pop("centres", None))
    fields = _FIELDS | ({"gamma"} if configuration.gamma == AUTO else set())
    demand(set(about) == fields, "it does not have the fields of a version")
    demand(isinstance(classes, list) and in_class_order(set(classes)) == classes, "its classes are not in order")
    demand(configuration.targets.has_columns(dict.fromkeys(classes, 1)), "it has columns that its targets do not have")
    if not classes:
        version = Version.empty(configuration, hardware)
        demand(not tensors and type(n_features) is int and n_features == 0, "it has features but no classes")
        demand(
            type(about["bits"]) is int and about["bits"] == 1 and about["unproved"] == [],
            "it has a witness but no classes",
        )
        demand(about.get("gamma") is None, "it has a gamma but no classes")
        return version
    demand(type(n_features) is int and n_features > 0, "its number of features is not a number")
    weights, rests = tensors.pop("weights"), tensors.pop("rests")
    demand(not tensors, "it has a tensor too many")
    shape = (configuration.encoder.code_size(n_features), len(classes))
    demand(weights.shape == shape and weights.dtype == np.int64, "the shape of its weights does not fit its settings")
    demand(
        rests.shape == shape and rests.dtype == narrowed(rests).dtype,
        "the shape of its witness does not fit its settings",
    )
    bits, unproved = about["bits"], about["unproved"]
    demand(type(bits) is int and 1 <= bits <= MAX_BITS, "its witness has an impossible number of bits")
    demand(
        all(type(column) is int and 0 <= column < len(classes) for column in unproved)
        and unproved == sorted(set(unproved)),
        "its list of unproved columns is not a list of columns",
    )
    half = 1 << (bits - 1)
    demand(-half <= int(rests.min()) and int(rests.max()) <= half, "its witness has a rest that is too large")
    demand(not rests[:, unproved].any(), "its witness has rests in columns that it lists as unproved")
    chosen = about.get("gamma")
    can_be = type(chosen) is int and chosen in _CANDIDATES
    demand(can_be or configuration.gamma != AUTO, "its gamma is none that sums can choose")
    witness = Witness(rests, bits, tuple(unproved))
    return Version(configuration, n_features, classes, weights, witness, hardware, chosen)


def _confirm(gram: Array, cross: Array, solution: Following, witness: Witness) -> None:
    """Solve for the columns that the witness does not prove; raise `HardwareError` if followed weights differ."""
    columns = list(witness.unproved)
    if not columns:
        return
    right = solution.hardware.contiguous(cross[:, columns])
    solved = solve(gram, right, solution.gamma, solution.grid_bits, hardware=solution.hardware)
    if not np.array_equal(solved.weights, solution.weights[:, columns]):
        raise HardwareError(
            "weights that were followed through changes are not those of a solve: this machine computes wrongly, or "
            "neverseen does. Nothing was published. Close the store and open it again, and report this"
        )
