"""The service with the demo's model, to look around in. ``make serve``.

The first time, a store is made in ``build/demo-store``: it learns the demo's digits, each of one of 200 people, and
publishes them. Receipts are beside it, and so is the operator's API key. Later times start from there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.demo import ENCODER, GAMMA, IMAGES_OF_A_PERSON
from benchmarks.images import digits
from neverseen import AnalyticClassifier, NeverseenError, store
from neverseen.backbones import efficientnet_lite0
from neverseen.service import KeyFile, Settings, serve
from neverseen.service.operations.settings import service_folder
from neverseen.sources.receipts import ReceiptFile


def make(folder: Path, samples: int | None) -> None:
    """Make the store, its receipts and its key; all of it, or nothing."""
    images = digits() if samples is None else digits().reduced(samples)
    backbone = efficientnet_lite0()
    people = max(1, len(images.train) // IMAGES_OF_A_PERSON)
    print(f"learning {len(images.train):,} {images.about} of {people} people, for the first time", flush=True)
    classifier = AnalyticClassifier(ENCODER, GAMMA, track_classes=True)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with store.create(partial / "store", backbone, classifier) as model:
        owners = [f"person-{row % people}" for row in range(len(images.train))]
        ids = [f"{owner}/digit-{row}" for row, owner in enumerate(owners)]
        file = ReceiptFile(partial / "receipts.jsonl")
        change = model.learning(images.train, images.train_labels, ids, owners)
        file.write(change.receipts, change.facts())
        model.commit(change)
        model.publish()
        place = service_folder(partial / "store")
        place.mkdir(mode=0o700, exist_ok=True)
        np.savez(place / "probe.npz", features=backbone.extract(images.test), labels=images.test_labels)
    token = KeyFile(place).add("operator", ["admin"], None)
    path = partial / "operator.key"
    path.touch(mode=0o600)
    path.write_text(token + "\n")
    partial.rename(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the demo's model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/demo-store"), help="(%(default)s)")
    parser.add_argument("--samples", type=int, help="digits to learn (all)")
    parser.add_argument("--host", default="127.0.0.1", help="(%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="(%(default)s)")
    options = parser.parse_args(arguments)
    try:
        if not options.folder.exists():
            make(options.folder, options.samples)
        folder = options.folder / "store"
        print(f"console:  http://{options.host}:{options.port}/")
        print(f"API key:  {(options.folder / 'operator.key').read_text().strip()}")
        print(f"receipts: {options.folder / 'receipts.jsonl'}", flush=True)
        settings = Settings.load(folder, output="top-k")
        serve(folder, settings, backbone=efficientnet_lite0(), host=options.host, port=options.port)
    except (NeverseenError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
