"""``neverseen verify``: the checks that outsiders make, each its own command. None needs a secret but `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from neverseen.certificates import Certificate, State, check_chain, check_signature, check_state, is_mine
from neverseen.cli.opening import backbone_of, described, opened
from neverseen.cli.options import Folder, Ids, Json, Keys, Label, Labels, Owners, PublicKey, Receipts, Source
from neverseen.cli.printing import counted, print_json
from neverseen.cli.receipt_files import read_receipts
from neverseen.cli.sources import Columns, read_source
from neverseen.errors import CertificateRejectedError, NotPublishedError
from neverseen.keys import Key
from neverseen.labels import LabelIndex

ROWS = 256
"""Samples learned at a time from scratch. Any number ends in the same sums."""

Places = Annotated[
    list[Path], typer.Argument(help="A store's folder, or certificates, oldest first.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verify = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    for command in (chain, mine, weights, retrain, audit):
        verify.command()(command)
    app.add_typer(
        verify,
        name="verify",
        help="Check certificates, and what they vouch for. Example: `neverseen verify chain shop`",
    )


def chain(
    places: Places,
    public_key: PublicKey = None,
    newest: Annotated[
        str | None,
        typer.Option(help="Digest of the newest certificate, if it is known from elsewhere.", metavar="HEX"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that certificates are all there from the first, unaltered, and signed by one key.

    A store's own key must have signed those in its folder.

    Example: `neverseen verify chain shop`
    """
    certificates, own = _certificates(places)
    check_chain(certificates, public_key or own, newest)
    last = certificates[-1]
    _passed(
        f"{counted(len(certificates), 'certificate')}, from the first to {last.number}, signed with {last.key}",
        {"certificates": len(certificates), "check": "chain", "key": last.key, "newest": last.digest()},
        as_json,
    )


def mine(places: Places, receipts: Receipts = None, public_key: PublicKey = None, as_json: Json = False) -> None:
    """Check that the samples of these receipts were forgotten, as certificates say.

    Example: `neverseen verify mine shop --receipt mine.jsonl`
    """
    if not receipts:
        raise typer.BadParameter("give the receipts with --receipt")
    certificates, own = _certificates(places)
    for certificate in certificates:
        check_signature(certificate, public_key or own)
    numbers = []
    for row, receipt in enumerate(read_receipts(receipts), 1):
        found = next((entry.number for entry in certificates if is_mine(entry, receipt)), None)
        if found is None:
            raise CertificateRejectedError(
                f"receipt {row} is in none of the certificates ({len(certificates)} given): its sample is not "
                "forgotten, or that is not published yet"
            )
        numbers.append(found)
    listed = ", ".join(map(str, sorted(set(numbers))))
    _passed(
        f"forgotten: {counted(len(numbers), 'receipt')}, says certificate {listed}",
        {"certificates": numbers, "check": "mine"},
        as_json,
    )


def weights(
    folder: Folder,
    exported: Annotated[
        Path | None,
        typer.Option(help="Check this exported .safetensors file instead of the store's.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that the published weights are the correctly rounded solution of the sums, without solving.

    One exact residual proves it. The sums and the weights must be those that the newest certificate states.

    Example: `neverseen verify weights shop`
    """
    from neverseen.versions import read_version

    with opened(folder, write=False) as model:
        certificate = model.certificate(model.published_number)
        check_signature(certificate, model.description.public_key)
        statistics = model.statistics()
        if statistics.digest() != certificate.after.statistics and statistics.total + certificate.after.samples:
            raise CertificateRejectedError(
                f"the sums are not those that certificate {certificate.number} states: changes are not published yet "
                "(neverseen publish), or the sums were altered"
            )
        version = model.version() if exported is None else read_version(exported)
        if version.digest() != certificate.after.model:
            raise CertificateRejectedError(
                f"the weights are not those that certificate {certificate.number} states: another version, or altered"
            )
        version.check(statistics)
    rows, columns = version.weights.shape
    _passed(
        f"all {rows * columns:,} weights of version {certificate.number} are the exact solution, correctly rounded",
        {"certificate": certificate.number, "check": "weights", "model": version.digest(), "weights": rows * columns},
        as_json,
    )


def retrain(
    folder: Folder,
    source: Source,
    labels: Labels = None,
    label: Label = None,
    ids: Ids = None,
    owners: Owners = None,
    as_json: Json = False,
) -> None:
    """Learn the retained samples from scratch, and check that the newest certificate states just that model.

    Example: `neverseen verify retrain shop retained.csv`
    """
    from neverseen.encoding import quantise
    from neverseen.hardware import choose
    from neverseen.model import ExactModel

    description = described(folder)
    found = read_source(source, Columns(labels, ids, owners, label))
    with opened(folder, write=False) as model:
        if model.published_number == 0:
            raise NotPublishedError(f"nothing is published in {folder} yet: there is no certificate to check")
        certificate = model.certificate(model.published_number)
    check_signature(certificate, description.public_key)
    backbone = backbone_of(description.backbone.get("recipe"))
    if backbone.digest() != description.configuration.backbone:
        raise CertificateRejectedError("the backbone made here is not the one that the store was made with")
    fresh = ExactModel(description.configuration, backbone.n_features, Key.generate(), choose("auto"))
    names = found.labels or []
    for start in range(0, len(found), ROWS):
        rows = backbone.extract(found.samples[start : start + ROWS])
        fresh.learn(quantise(rows), LabelIndex(names[start : start + ROWS]))
    state = State(fresh.statistics.digest(), fresh.digest(), fresh.statistics.total, len(fresh.classes))
    check_state(certificate, state)
    _passed(
        f"learned from scratch, {counted(len(found), 'sample')} make the model of certificate {certificate.number}: "
        f"{state.model}",
        {"certificate": certificate.number, "check": "retrain", "model": state.model, "samples": len(found)},
        as_json,
    )


def audit(folder: Folder, keys: Keys = None, as_json: Json = False) -> None:
    """Check that no line of the service's audit log was changed, dropped or cut off.

    Needs the store's keys, which authenticate the lines. Every line that certificates and ledger name must be there.

    Example: `neverseen verify audit shop`
    """
    from neverseen.keys import Keyring
    from neverseen.service import audit_key, check_audit
    from neverseen.service.settings import FOLDER
    from neverseen.store.store import KEYS

    description = described(folder)
    known = Keyring.load(folder / KEYS if keys is None else keys)
    with opened(folder, write=False) as model:
        certificates, expected = model.certificates(), model.audit_head
    if certificates:
        check_chain(certificates, description.public_key)
    report = check_audit(folder / FOLDER, audit_key(known), certificates, expected)
    lines = report.last - report.first + 1 if report.last else 0
    words = f"{counted(lines, 'line')} in {counted(report.files, 'file')}"
    if report.first > 1:
        words += f", from line {report.first}: the service has removed those before"
    if report.unkeyed:
        words += f"; {counted(report.unkeyed, 'older line')} of version 0.1.0 without a key"
    words += f"; {counted(report.certificates, 'certificate')} found in it"
    if not report.files:
        words = "there is no audit log, and nothing says that there should be one"
    _passed(words, {"check": "audit"} | vars(report), as_json)


def _certificates(places: list[Path]) -> tuple[list[Certificate], str | None]:
    """Return certificates, and the key that must have signed them if they are a store's own."""
    if len(places) == 1 and places[0].is_dir():
        with opened(places[0], write=False) as model:
            return model.certificates(), model.description.public_key
    return [Certificate.load(place) for place in places], None


def _passed(words: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts | {"passed": True})
    else:
        typer.echo(f"ok: {words}")
