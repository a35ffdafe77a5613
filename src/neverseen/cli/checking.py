"""``neverseen verify``: the checks that outsiders make, each its own command; `audit` and `mine` can use the keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.opening import backbone_for, described, keys_of, opened, require_published, taken_by
from neverseen.cli.printing import counted, print_json, skipped_view, tell, tell_skipped
from neverseen.errors import CertificateRejectedError
from neverseen.io.files import require_file
from neverseen.labels import LabelIndex
from neverseen.proof.certificates import Certificate, State, check_chain, check_signature, check_state, is_mine
from neverseen.proof.keys import Key
from neverseen.sources.receipts import placed_receipts
from neverseen.sources.samples import Columns, read_source

if TYPE_CHECKING:
    from neverseen.store import Store

ROWS = 256
"""Samples learned at a time. The sums do not depend on this number."""

HELD = {
    "receipt": "holds its sample now, under this receipt: it was learned again",
    "sample": "holds a sample with the same content now: it was learned again, or is somebody else's copy",
    "id": "holds a sample under its id now, with other content: it may be an altered copy",
    "unknown": "holds samples, and only the keys of the receipt can tell whether its sample is among them: give the "
    "keys with --keys",
}
"""Why a receipt fails the check although a certificate lists it."""

Places = Annotated[
    list[Path], typer.Argument(help="A store's folder, or certificates, oldest first.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verify = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    for command in (chain, mine, weights, retrain, audit, store):
        verify.command()(command)
    app.add_typer(
        verify, name="verify", help="Check certificates and what they state. Example: `neverseen verify chain shop`"
    )


def chain(
    places: Places,
    public_key: options.PublicKey = None,
    newest: Annotated[
        str | None, typer.Option(help="Digest of the newest certificate, if you know it from elsewhere.", metavar="HEX")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that certificates are complete from the first one, unaltered, and signed by one key.

    The certificates in a store's folder must be signed by that store's key.

    Example: `neverseen verify chain shop`
    """
    certificates, own = _certificates(places)
    known = public_key or own
    check_chain(certificates, known, newest)
    last = certificates[-1]
    signed = _signed({last.key}, known)
    _passed(
        f"{counted(len(certificates), 'certificate')}, from the first to {last.number}, {signed}",
        {
            "certificates": len(certificates),
            "check": "chain",
            "key": last.key,
            "key_known": known is not None,
            "newest": last.digest(),
        },
        as_json,
    )


def mine(
    places: Places,
    receipts: options.Receipts = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="A store to search: does it hold these samples again?", show_default="the folder, if one is given"
        ),
    ] = None,
    keys: options.Keys = None,
    public_key: options.PublicKey = None,
    as_json: options.Json = False,
) -> None:
    """Check that certificates list these receipts as forgotten; given a store, that it does not hold the samples now.

    A certificate cannot tell whether a sample was learned again later. A store can: with its keys all samples are
    compared, without them only receipts. If a sample is held, or may be, the check fails.

    Anybody can sign a certificate. Without a store, give the signer's key with --public-key.

    Example: `neverseen verify mine shop --receipt mine.jsonl`
    """
    if not receipts:
        raise typer.BadParameter("give the receipts with --receipt")
    certificates, own = _certificates(places)
    place = store or (places[0] if own is not None else None)
    if place is not None:
        own = described(place).public_key
        if public_key not in (None, own):
            raise CertificateRejectedError(
                f"{place} is another store: it signs with {own}, and the certificates must be signed by {public_key}. "
                "It cannot tell whether the samples are held: give the store of the certificates"
            )
    known = own or public_key
    for certificate in certificates:
        check_signature(certificate, known)
    given = placed_receipts(receipts)
    tokens = [token for _, token in given]
    listing = [_newest_listing(certificates, token, where) for where, token in given]
    answers = []
    if place is not None:
        with opened(place, write=False, keys=keys) as model:
            if store is not None:
                _require_followed(model, certificates)
            answers = model.holds(tokens)
    passed = all(answer.held is None and answer.sure for answer in answers)
    if as_json:
        facts = {
            "certificates": [entry.number for entry in listing],
            "check": "mine",
            "held": [answer.held or (None if answer.sure else "unknown") for answer in answers] or None,
            "key_known": known is not None,
            "keys": [entry.key for entry in listing],
            "passed": passed,
            "store": None if place is None else str(place),
        }
        print_json(facts)
    for (where, _), entry, answer in zip(given, listing, answers, strict=False):
        if answer.held is not None or not answer.sure:
            why = HELD[answer.held or "unknown"]
            raise CertificateRejectedError(
                f"{where}: certificate {entry.number} of {entry.time} lists it as forgotten, but {place} {why}"
            )
    if not as_json:
        found = {entry.number: entry for entry in listing}
        numbers = ", ".join(f"certificate {number} of {found[number].time}" for number in sorted(found))
        signed = _signed({entry.key for entry in listing}, known)
        ending = f"and {place} does not hold " + ("its sample" if len(tokens) == 1 else "their samples")
        if place is None:
            ending = "the samples may have been learned again later: check with --store FOLDER"
        typer.echo(f"ok: {counted(len(tokens), 'receipt')} listed as forgotten by {numbers}, {signed}; {ending}")


def _require_followed(model: Store, certificates: list[Certificate]) -> None:
    """Raise unless a store has these certificates: an older copy of it does not know later samples."""
    for certificate in certificates:
        number, published = certificate.number, model.published_number
        if number > published or model.certificate(number) != certificate:
            why = f"it has {published}" if number > published else "its certificate of that number differs"
            raise CertificateRejectedError(
                f"{model.folder} does not have certificate {number} ({why}): it is an older copy of the store that "
                "signed it, or another store. It cannot tell whether the samples are held: give the current store",
                number,
            )


def _signed(keys: set[str], known: str | None) -> str:
    """Return who signed, for people. Anybody can make a key and sign, so an unknown key is called unknown."""
    names = ", ".join(sorted(keys))
    if known is not None:
        return f"signed with {names}"
    return f"signed by an unknown key ({names}): give the key that you know with --public-key"


def _newest_listing(certificates: list[Certificate], receipt: bytes, where: str) -> Certificate:
    for entry in reversed(certificates):
        if is_mine(entry, receipt):
            return entry
    raise CertificateRejectedError(
        f"{where}: no certificate lists this receipt ({len(certificates)} given): its sample is not forgotten, or the "
        "forget is not published yet"
    )


def weights(
    folder: options.Folder,
    exported: Annotated[
        Path | None,
        typer.Option(help="Check this exported .safetensors file instead of the store's version.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that the published weights are the correctly rounded solution of the sums, without solving.

    One exact residual proves it. The sums and the weights must match the newest certificate.

    Example: `neverseen verify weights shop`
    """
    from neverseen.model.versions import read_version

    if exported is not None:
        require_file(exported, "a .safetensors file that export wrote")
    with opened(folder, write=False) as model:
        require_published(model)
        certificate = model.certificate(model.published_number)
        check_signature(certificate, model.description.public_key)
        statistics = model.statistics()
        if statistics.digest() != certificate.after.statistics and statistics.total + certificate.after.samples:
            raise CertificateRejectedError(
                f"the sums do not match certificate {certificate.number}: changes are not published yet (neverseen "
                "publish), or the sums were altered"
            )
        version = model.version() if exported is None else read_version(exported)
        if version.digest() != certificate.after.model:
            raise CertificateRejectedError(
                f"the weights do not match certificate {certificate.number}: they are of another version, or altered"
            )
        version.check(statistics)
    rows, columns = version.weights.shape
    _passed(
        f"all {rows * columns:,} weights of version {certificate.number} are the exact solution, correctly rounded",
        {"certificate": certificate.number, "check": "weights", "model": version.digest(), "weights": rows * columns},
        as_json,
    )


def retrain(
    folder: options.Folder,
    source: options.Source,
    labels: options.Labels = None,
    label: options.Label = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    skip_bad: options.SkipBad = False,
    backbone: options.Backbone = None,
    as_json: options.Json = False,
) -> None:
    """Learn the retained samples from scratch, and check that the newest certificate states this very model.

    Example: `neverseen verify retrain shop retained.csv`
    """
    from neverseen.backbones.reading import features_of
    from neverseen.encoding import quantise
    from neverseen.hardware import choose
    from neverseen.holdings import LEARN, Change
    from neverseen.model.exact import ExactModel

    description = described(folder)
    takes, made = taken_by(folder, backbone)
    with opened(folder, write=False) as model:
        require_published(model)
        certificate = model.certificate(model.published_number)
    check_signature(certificate, description.public_key)
    columns = Columns(labels, ids, owners, label, texts)
    found = read_source(source, columns, takes=takes, skip_bad=skip_bad)
    tell_skipped(found)
    network = made or backbone_for(folder, backbone)
    if network.digest() != description.configuration.backbone:
        raise CertificateRejectedError("the backbone made here is not the one that the store was made with")
    fresh = ExactModel.in_memory(description.configuration, network.n_features, Key.generate(), choose("auto"))
    names = found.labels or []
    for start in range(0, len(found), ROWS):
        rows = features_of(network, found.samples[start : start + ROWS])  # which a cache must not keep
        fresh.apply(Change(LEARN, quantise(rows), LabelIndex(names[start : start + ROWS])))
    state = State(fresh.statistics.digest(), fresh.digest(), fresh.statistics.total, len(fresh.classes))
    check_state(certificate, state)
    _passed(
        f"learning {counted(len(found), 'sample')} from scratch gives the model of certificate {certificate.number}: "
        f"{state.model}",
        {
            "certificate": certificate.number,
            "check": "retrain",
            "model": state.model,
            "samples": len(found),
            "skipped": skipped_view(found),
        },
        as_json,
    )


def audit(folder: options.Folder, keys: options.Keys = None, as_json: options.Json = False) -> None:
    """Check that no line of the service's audit log was changed, dropped or cut off.

    Needs the store's keys, which authenticate the lines. Every line named by certificates and ledger must be present,
    and one for each of the latest changes.

    Example: `neverseen verify audit shop`
    """
    from neverseen.service import audit_key, check_audit
    from neverseen.service.operations.audit import TURN
    from neverseen.service.operations.settings import FOLDER

    description = described(folder)
    known = keys_of(folder, keys)
    with opened(folder, write=False) as model:
        certificates, expected = model.certificates(), model.audit_head
        requests = [] if model.ledger.is_outdated else model.ledger.requests(TURN)[::-1]
    if certificates:
        check_chain(certificates, description.public_key)
    report = check_audit(folder / FOLDER, audit_key(known), certificates, expected, requests)
    lines = report.last - report.first + 1 if report.last else 0
    words = f"{counted(lines, 'line')} in {counted(report.files, 'file')}"
    if report.first > 1:
        words += f", from line {report.first} (the service has removed earlier lines)"
    if report.unkeyed:
        words += f"; {counted(report.unkeyed, 'older line')} of version 0.1.0 without a key"
    words += f"; {counted(report.certificates, 'certificate')} found in it"
    if not report.files:
        words = "there is no audit log, and neither ledger nor certificates name one"
    _passed(words, {"check": "audit"} | vars(report), as_json)


def store(folder: options.Folder, as_json: options.Json = False) -> None:
    """Check that a store is whole: its ledger, sums, certificates and published weights exist and agree.

    It reads everything and changes nothing. A service may write to the store meanwhile. Use it after you restore a
    backup, or after a disk failure.

    Example: `neverseen verify store shop`
    """
    with opened(folder, write=False) as model:
        model.check()
        number = model.published_number
        if number:
            model.version()
        about = model.status()
    facts = {"certificates": number, "check": "store", "classes": about["classes"], "samples": about["samples"]}
    held = f"{counted(about['samples'], 'sample')} of {counted(about['classes'], 'class', 'classes')}"
    _passed(f"{folder} is whole: {held} in ledger and sums, {counted(number, 'certificate')}", facts, as_json)


def _certificates(places: list[Path]) -> tuple[list[Certificate], str | None]:
    """Return certificates, and the key that must have signed them if they are a store's own."""
    if len(places) == 1 and places[0].is_dir():
        with opened(places[0], write=False) as model:
            require_published(model)
            return model.certificates(), model.description.public_key
    for place in places:
        require_file(place, "a store's folder, or files of certificates")
    return [Certificate.load(place) for place in places], None


def _passed(words: str, facts: dict[str, Any], as_json: bool) -> None:
    tell(f"ok: {words}", facts | {"passed": True}, as_json)
