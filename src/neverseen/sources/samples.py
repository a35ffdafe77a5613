"""Samples from files: folders of images, tables, lines of text. All of it is untrusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from neverseen.errors import InputError
from neverseen.sources.array_files import read_arrays
from neverseen.sources.csv_files import read_csv
from neverseen.sources.json_lines import read_json_lines
from neverseen.sources.parquet_files import read_parquet
from neverseen.sources.tables import ROW_LIMIT, Columns, Samples, Takes, lines_of

__all__ = ["Columns", "Samples", "Takes", "read_source"]

TABLES = {
    ".csv": read_csv,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".npz": read_arrays,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}
IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEXTS = {".txt", ".tsv", ".text"}
_SHOWN = 3  # bad images that an error names


def read_source(
    source: Path, columns: Columns, *, labelled: bool = True, takes: Takes | None = None, skip_bad: bool = False
) -> Samples:
    """Return the samples of a source.

    Parameters
    ----------
    labelled : bool
        Whether labels are needed. If not, a whole line is a text, and an image may lie in any folder.
    takes : Takes, optional
        What the store takes. Other samples are refused, and images are decoded once to check them.
    skip_bad : bool
        Leave out unusable images, and list them in ``skipped``.
    """
    ending = source.suffix.lower()
    given = [name for name in ("labels", "ids", "owners", "texts") if getattr(columns, name) is not None]
    if given and (source.is_dir() or ending not in TABLES) and source.exists():
        raise InputError(
            f"{source} has no columns, and --{given[0]} names one: use a table (.csv, .jsonl, .parquet, .npz)"
        )
    if source.is_dir():
        found = _images(source, columns, labelled, takes, skip_bad)
    elif not source.exists():
        raise FileNotFoundError(f"there is no {source}")
    elif not source.is_file():  # reading a pipe might wait for ever
        raise InputError(f"{source} is a pipe or a device: give a file")
    elif ending in TABLES:
        found = TABLES[ending](source, replace(columns, labelled=labelled), takes)
    elif ending in TEXTS:
        found = _texts(source, columns, labelled, takes)
    elif ending in IMAGES:
        _require_kind(source, "an image", "images", takes)
        found = Samples([source], None, None, None, [source.name], [source.name])
        if takes is not None:
            found = _usable(source, found, skip_bad=False)
    else:
        raise InputError(
            f"{source}: the ending of its name is unknown; use a folder of images, or a file that ends in .csv, "
            ".jsonl, .parquet, .npz, .txt or .tsv"
        )
    if not len(found):
        raise InputError(f"there are no samples in {source}")
    if columns.label is not None and not columns.label.strip():
        raise InputError("--label is empty: give the samples a label")
    if columns.label is not None:
        found.labels = [columns.label] * len(found)
    if labelled and found.labels is None:
        raise InputError(f"{source} has no labels: name their column with --labels, or give one for all with --label")
    return found


def _require_kind(source: Path, what: str, kind: str, takes: Takes | None) -> None:
    if takes is not None and takes.kind != kind:
        raise InputError(f"{source} is {what}, and {takes}")


def _images(source: Path, columns: Columns, labelled: bool, takes: Takes | None, skip_bad: bool) -> Samples:
    _require_kind(source, "a folder, for images", "images", takes)
    classes = labelled and columns.label is None
    paths = sorted(_image_paths(source), key=lambda path: path.relative_to(source).as_posix())
    names = [path.relative_to(source).as_posix() for path in paths]
    labels = None
    if classes:
        loose = next((name for name in names if "/" not in name), None)
        if loose is not None:
            raise InputError(
                f"the image {source / loose} is in no subfolder, so it has no class. Put it in a subfolder named after "
                "its class, or give one label for all images with --label"
            )
        labels = [name.partition("/")[0] for name in names]
    found = Samples(paths, labels, list(names), None, names, names)
    return found if takes is None else _usable(source, found, skip_bad)


def _image_paths(source: Path) -> Iterator[Path]:
    for count, path in enumerate(source.rglob("*")):
        if count > ROW_LIMIT:
            raise InputError(f"{source} has more than {ROW_LIMIT:,} files: use fewer at a time")
        if path.suffix.lower() in IMAGES and path.is_file() and not path.name.startswith("."):
            yield path


def _usable(source: Path, found: Samples, skip_bad: bool) -> Samples:
    """Return the usable images; raise with the names of the others, unless they may be skipped."""
    from neverseen.backbones import progress_bar
    from neverseen.backbones.contents import decoded
    from neverseen.backbones.images import require_image

    good: list[int] = []
    bad: list[tuple[str, str]] = []
    with progress_bar("images", len(found), batch=1) as advance:
        for row, path in enumerate(found.samples):
            try:
                require_image(decoded(path))
                good.append(row)
            except InputError as error:
                bad.append((found.names[row], str(error).removeprefix(f"the image {path} ")))
            except OSError as error:  # unreadable
                bad.append((found.names[row], f"it cannot be read: {error.strerror}"))
            advance(1)
    if not bad:
        return found
    if skip_bad and good:
        kept = found.only(good)
        kept.skipped = bad
        return kept
    shown = "; ".join(f"{name}: {why}" for name, why in bad[:_SHOWN]) + "; ..." * (len(bad) > _SHOWN)
    ending = "" if not good else ". --skip-bad leaves them out"
    raise InputError(f"{len(bad)} of {len(found)} images in {source} cannot be used: {shown}{ending}")


def _texts(source: Path, columns: Columns, labelled: bool, takes: Takes | None) -> Samples:
    _require_kind(source, "a file of texts", "texts", takes)
    split = labelled and columns.label is None
    samples, labels, lines = [], [], []
    with source.open("r", encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(lines_of(source, file), 1):
            words = line.rstrip("\r\n")
            if not words:
                continue
            label, tab, rest = words.partition("\t")
            if split and not tab:
                raise InputError(
                    f"{source}, line {number}: no TAB between label and text. Give one label for all with --label"
                )
            if split and not (label.strip() and rest.strip()):
                missing = "text after" if label.strip() else "label before"
                raise InputError(f"{source}, line {number}: there is no {missing} the TAB")
            samples.append(rest if split else words)
            labels.append(label)
            lines.append(f"line {number}")
    names = [f"text {number}" for number in range(1, len(samples) + 1)]
    return Samples(samples, labels if split else None, None, None, names, lines)
