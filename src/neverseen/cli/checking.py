"""``neverseen verify``: checks for outsiders, one command each. `audit` needs the keys, and `mine` can use them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.opening import backbone_for, described, keys_of, opened, require_published, taken_by
from neverseen.cli.printing import counted, print_json, skipped_view, tell, usable
from neverseen.errors import CertificateRejectedError
from neverseen.io.files import require_file
from neverseen.labels import LabelIndex
from neverseen.proof.certificates import Certificate, check_chain, check_signature, check_state, is_mine
from neverseen.proof.keys import Key
from neverseen.sources.receipts import placed_receipts
from neverseen.sources.samples import Columns, read_source

if TYPE_CHECKING:
    from neverseen.store import Holding, Store

_TRIES = 5  # times that weights are read before a store counts as one that keeps changing
ROWS = 256
"""Samples learned at a time. The sums do not depend on this number."""

HELD = {
    "receipt": "holds its sample now, under this receipt: it was learned again",
    "sample": "holds a sample with the same content now: it was learned again, or is somebody else's copy",
    "id": "holds a sample under its id now, with other content: it may be an altered copy",
    "unknown": "holds samples, and only the keys of the receipt can tell whether its sample is among them: give the "
    "keys with --keys",
    "unpublished": "still shows its readers samples that were forgotten since, and its sample may be one of them, "
    "learned again: publish (neverseen publish FOLDER), and check again",
}
"""Why a receipt fails the check although a certificate lists it."""

Places = Annotated[
    list[Path], typer.Argument(help="A store's folder, or files of certificates, oldest first.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verify = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    for command in (chain, mine, weights, retrain, audit, store):
        verify.command()(command)
    app.add_typer(
        verify,
        name="verify",
        help="Check certificates, and the models that they describe. Example: `neverseen verify chain shop`",
    )


def chain(
    places: Places,
    public_key: options.PublicKey = None,
    newest: Annotated[
        str | None,
        typer.Option(
            help="Digest of the newest certificate, if you know it from elsewhere.",
            metavar="HEX",
            callback=options.hex_digits,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that certificates are complete from the first one on, unaltered, and signed by one key.

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
        typer.Option(help="A store that must not hold these samples now.", show_default="the folder, if one is given"),
    ] = None,
    keys: options.Keys = None,
    public_key: options.PublicKey = None,
    as_json: options.Json = False,
) -> None:
    """Check that certificates list these receipts as forgotten, and that the store does not hold the samples now.

    A certificate cannot tell whether a sample was learned again later. A store can: with its keys it compares all
    samples, without them only receipts. If it holds a sample, or may hold it, the check fails.

    Anybody can sign a certificate. If you check without a store, give the signer's key with --public-key.

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
    shown = [receipt for _, receipt in given]
    files = [] if len(places) == 1 and places[0].is_dir() else places
    listing = [_newest_listing(certificates, receipt, where, files) for where, receipt in given]
    answers = []
    if place is not None:
        with opened(place, write=False, keys=keys) as model:
            if store is not None:
                _require_followed(model, certificates)
            answers = model.holds(shown)
    passed = all(_held(answer) is None for answer in answers)
    if as_json:
        facts = {
            "certificates": [entry.number for entry in listing],
            "check": "mine",
            "held": [_held(answer) for answer in answers] or None,
            "key_known": known is not None,
            "keys": [entry.key for entry in listing],
            "passed": passed,
            "store": None if place is None else str(place),
        }
        print_json(facts)
    for (where, _), entry, answer in zip(given, listing, answers, strict=False):
        if (held := _held(answer)) is not None:
            why = HELD[held]
            raise CertificateRejectedError(
                f"{where}: certificate {entry.number} of {entry.time} lists it as forgotten, but {place} {why}"
            )
    if not as_json:
        found = {entry.number: entry for entry in listing}
        numbers = ", ".join(f"certificate {number} of {found[number].time}" for number in sorted(found))
        signed = _signed({entry.key for entry in listing}, known)
        ending = f"and {place} does not hold " + ("its sample" if len(shown) == 1 else "their samples")
        if place is None:
            ending = "the samples may have been learned again later: check with --store FOLDER"
        typer.echo(f"ok: {counted(len(shown), 'receipt')} listed as forgotten by {numbers}, {signed}; {ending}")


def _held(answer: Holding) -> str | None:
    """Return why a receipt fails the check, a key of `HELD`; None if its sample is gone."""
    if answer.held is not None or answer.sure:
        return answer.held
    return "unpublished" if answer.unpublished else "unknown"


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
    """Return the signer, for people. Anybody can make a key and sign, so an unknown key is called unknown."""
    names = ", ".join(sorted(keys))
    if known is not None:
        return f"signed with {names}"
    return f"signed by an unknown key ({names}): give the key that you know with --public-key"


def _newest_listing(certificates: list[Certificate], receipt: bytes, where: str, files: list[Path]) -> Certificate:
    for entry in reversed(certificates):
        if is_mine(entry, receipt):
            return entry
    missing = ", or a certificate that was not given lists it" if files else ""
    raise CertificateRejectedError(
        f"{where}: no certificate lists this receipt ({len(certificates)} given): its sample is not forgotten, or the "
        f"forget is not published yet{missing}"
    )


def weights(
    folder: options.Folder,
    exported: Annotated[
        Path | None,
        typer.Option(help="Check this exported .safetensors file instead of the store's version.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that the published weights are the correctly rounded solution of the sums.

    One exact residual proves it, without solving again. Sums and weights must match the newest certificate.

    Example: `neverseen verify weights shop`
    """
    from neverseen.model.versions import read_version

    if exported is not None:
        require_file(exported, "a .safetensors file that export wrote")
    with opened(folder, write=False) as model:
        require_published(model)
        for _ in range(_TRIES):
            before = _moment(model)
            certificate = model.certificate(model.published_number)
            check_signature(certificate, model.description.public_key)
            version = model.version() if exported is None else read_version(exported)
            try:
                version.check_stated(model.statistics(), certificate.number, certificate.after)
                break
            except CertificateRejectedError:
                if _moment(model) == before:  # or what was read belongs to several moments
                    raise
        else:
            raise CertificateRejectedError(
                f"undecided: another process, such as a service, keeps changing {folder}. Check again when it does not",
                undecided=True,
            )
    count = version.weights.size
    _passed(
        f"all {count:,} weights of version {certificate.number} are the exact solution, correctly rounded",
        {"certificate": certificate.number, "check": "weights", "model": version.digest(), "weights": count},
        as_json,
    )


def _moment(model: Store) -> tuple[int, str | None]:
    """Return what differs after each change and each publication, by any process."""
    return model.published_number, model.ledger.meta("sequence")


def retrain(
    folder: options.Folder,
    source: options.Source,
    labels: options.Labels = None,
    label: options.Label = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    skip_bad: options.SkipBad = False,
    backbone: options.Backbone = None,
    as_json: options.Json = False,
) -> None:
    """Learn the retained samples from scratch, and compare the result with the newest certificate.

    Example: `neverseen verify retrain shop retained.csv`
    """
    from neverseen.backbones.contents import as_list, portions
    from neverseen.backbones.reading import features_of
    from neverseen.hardware import choose
    from neverseen.holdings import LEARN, Change
    from neverseen.model.exact import ExactModel
    from neverseen.model.inputs import label_list
    from neverseen.store.certification import state_of

    description = described(folder)
    takes, made = taken_by(folder, backbone)
    with opened(folder, write=False) as model:
        require_published(model)
        certificate = model.certificate(model.published_number)
    check_signature(certificate, description.public_key)
    columns = Columns(labels, ids, owners, label, texts, weights=weights)
    found = read_source(source, columns, takes=takes, skip_bad=skip_bad)
    network = made or backbone_for(folder, backbone)
    if network.digest() != description.configuration.backbone:
        raise CertificateRejectedError("the backbone made here is not the one that the store was made with")
    about = description.configuration
    tracked = about.class_weight is not None  # the weights need the sums of each class
    fresh = ExactModel.in_memory(about, network.n_features, Key.generate(), choose("auto"), tracked)
    bad = getattr(found.samples, "bad", {})  # grows as images are decoded
    names = (name for row, name in enumerate(found.labels or []) if row not in bad)
    for portion in portions(as_list(found.samples), ROWS):
        rows = features_of(network, portion)  # which a cache must not keep
        truth = label_list(list(islice(names, len(rows))), any_label=True, targets=about.targets)
        fresh.apply(Change(LEARN, about.encoder.quantise(rows), LabelIndex(truth)))
    found = usable(found)
    state = state_of(fresh.statistics, fresh, about.digest().hex())
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
    """Check that no line of the service's audit log was changed, removed or cut off.

    The check needs the store's keys, which authenticate the lines. Every line that the certificates and the ledger name
    must be there, and one line for each of the latest changes.

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

    Use it after you restore a backup, or after a disk failure. It reads everything and changes nothing. A service may
    write to the store meanwhile.

    Example: `neverseen verify store shop`
    """
    with opened(folder, write=False) as model:
        model.check()
        number = model.published_number
        if number:
            model.version()
        about = model.status()
    facts = {"certificates": number, "check": "store", "classes": about["classes"], "samples": about["samples"]}
    held = counted(about["samples"], "sample")
    if about["targets"]["kind"] != "numbers":
        nouns = ("label", "labels") if about["targets"]["kind"] == "label-sets" else ("class", "classes")
        held += f" of {counted(about['classes'], *nouns)}"
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
