"""A first look: learn real images as a stream, forget some on request, and compare digests. ``make demo``.

Every line is one request, with the time it took, the accuracy after it on held-out images of the classes the model
holds, and the model's digest. At the end a second model learns from scratch what was not forgotten, and the two
digests stand side by side. The paper's recursion and retraining go through the same requests, for the figure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cifar, figure
from benchmarks.figure import Curve, duration
from benchmarks.images import AtHand, Images, cifar10, digits
from benchmarks.provenance import provenance, write_json
from benchmarks.rivals import Recursion, Retraining, Rival
from neverseen import (
    AnalyticClassifier,
    FeaturesMovedError,
    ForgettingModel,
    Identity,
    NeverseenError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.backbones import Backbone, Cached, efficientnet_lite0

ENCODER, GAMMA = Identity(), 2**16  # the network's features are the codes
IMAGES_OF_A_PERSON = 20
REASONS = {"altered": "altered", "used": "used already", "key": "another model's"}


def new_model(backbone: Backbone) -> ForgettingModel:
    """Return the demo's model, which can also forget whole classes."""
    return ForgettingModel(backbone, AnalyticClassifier(ENCODER, GAMMA, track_classes=True))


def play(demo: Demo) -> ForgettingModel:
    """Make all requests, then return a model that never saw what they had forgotten."""
    images, labels, classes = demo.images.train, demo.images.train_labels, demo.images.classes
    rows = np.arange(len(images))
    late = rows % 10 == 9  # a tenth comes after the first forgetting
    for pair in zip(classes[::2], classes[1::2], strict=True):  # a task brings two new classes
        new = rows[~late & np.isin(labels, pair)].tolist()
        demo.learn(f"learn {len(new):,} images of {pair[0]} and {pair[1]}", new)
    first = demo.rows_of(1)[0]
    demo.forget("forget 1 image, by its receipt", [first])
    demo.forget_image("forget 1 image, shown again, no receipt", demo.rows_of(2)[0])
    demo.forget_person(3)
    many = sorted(demo.held)[::10]
    demo.forget(f"forget {len(many):,} images of many people, by receipts", many)

    good = demo.receipts[demo.rows_of(4)[0]]
    stranger = new_model(demo.backbone).learn(images[:1], labels[:1])
    demo.refuse("forget, by a receipt with one bit flipped", [good[:-1] + bytes([good[-1] ^ 1])])
    demo.refuse("forget, by the receipt of request 6 again", [demo.receipts[first]])
    demo.refuse("forget, by the receipt of another model", stranger)
    demo.refuse("forget a test image, shown", demo.images.test[:1], demo.images.test_labels[:1])

    demo.forget_class(f"forget the class {classes[7]}, without its images", classes[7])
    demo.learn(f"learn {late.sum():,} new images, of all ten classes", rows[late].tolist())
    demo.forget("forget 1 of these, by its receipt", rows[late][:1].tolist())
    demo.forget_person(5)

    never, kept = new_model(demo.backbone), sorted(demo.held)
    never.learn(images[kept], labels[kept])
    return never


class Demo:
    """The exact model and its rivals, who get the same requests, and the receipts, which their owners would keep."""

    def __init__(self, images: Images, backbone: AtHand) -> None:
        self.images, self.backbone = images, backbone
        self.model = new_model(backbone)
        self.receipts: dict[int, bytes] = {}
        self.held: set[int] = set()
        self.failed = False
        self.requests: list[str] = []
        codes, self.test_codes = (ENCODER.encode(backbone.extract(part)) for part in (images.train, images.test))
        self.recursion = Recursion(codes, images.train_labels, GAMMA)
        self.retraining = Retraining(codes, images.train_labels, GAMMA)
        self.curves = [
            Curve("neverseen, exact", "o", "black"),
            Curve("the paper's recursion, float64", "x", "darkorange"),
            Curve("retraining each time, float64", "+", "lightsteelblue"),
        ]

    def owner(self, row: int) -> int:
        """Return the number of the person whose image a row is."""
        return row % (len(self.images.train) // IMAGES_OF_A_PERSON)

    def rows_of(self, person: int) -> list[int]:
        """Return the images of a person that the model holds."""
        return [row for row in sorted(self.held) if self.owner(row) == person]

    def learn(self, words: str, rows: list[int]) -> None:
        """Learn images; their owners get the receipts."""
        images, labels = self.images.train[rows], self.images.train_labels[rows]
        owners = [f"person {self.owner(row)}" for row in rows]

        def exact() -> None:
            self.receipts.update(zip(rows, self.model.learn(images, labels, ids=rows, owners=owners), strict=True))

        self.request(words, exact, lambda rival: rival.learn(rows))
        self.held.update(rows)

    def forget(self, words: str, rows: list[int]) -> None:
        """Forget images by their receipts."""
        receipts = [self.receipts[row] for row in rows]
        self.request(words, partial(self.model.forget, receipts), lambda rival: rival.forget(rows))
        self.held.difference_update(rows)

    def forget_person(self, person: int) -> None:
        """Forget all images of a person, by their receipts."""
        rows = self.rows_of(person)
        self.forget(f"forget all {len(rows)} images of person {person}, by receipts", rows)

    def forget_image(self, words: str, row: int) -> None:
        """Forget an image that is shown again, or by its receipt if the network's rounding has changed since."""
        image, label = self.images.train[row], self.images.train_labels[row]
        self.backbone.drop(image)  # so that it passes the network once more

        def exact() -> None:
            try:
                self.model.forget([image], [label])
            except FeaturesMovedError:  # the network rounded differently this time: what receipts are for
                print("    (its features have moved: its receipt is used instead)")
                self.model.forget([self.receipts[row]])

        self.request(words, exact, lambda rival: rival.forget([row]))
        self.held.remove(row)

    def forget_class(self, words: str, label: Any) -> None:
        """Forget a class, without its images and without receipts."""
        self.request(words, partial(self.model.forget_class, label), lambda rival: rival.forget_class(label))
        self.held = {row for row in self.held if self.images.train_labels[row] != label}

    def refuse(self, words: str, *given: Any) -> None:
        """Ask to forget what must be refused, and show that it was and that nothing changed."""
        before = self.model.digest()
        try:
            self.model.forget(*given)
            self.failed, outcome = True, "ACCEPTED: report this"
        except ReceiptRejectedError as error:
            outcome = f"refused  {REASONS.get(error.reason, error.reason)}"
        except NotLearnedError as error:
            outcome = f"refused  {'features moved' if isinstance(error, FeaturesMovedError) else 'never learned'}"
        digest = self.model.digest()
        self.failed |= digest != before
        print(f"    {words:48} {outcome:31}{digest[:16]}", flush=True)

    def request(self, words: str, exact: Callable[[], object], other: Callable[[Rival], object]) -> None:
        """Have all three do what is asked, new weights included; note and print how long it took and what came out."""
        before, began = self.backbone.seconds, time.perf_counter()
        exact()
        digest = self.model.digest()
        spent = [time.perf_counter() - began - (self.backbone.seconds - before)]
        for rival in (self.recursion, self.retraining):
            began = time.perf_counter()
            other(rival)
            spent.append(time.perf_counter() - began)
        held = np.isin(self.images.test_labels, self.model.classes_)
        test, codes, labels = self.images.test[held], self.test_codes[held], self.images.test_labels[held]
        shares = [self.model.score(test, labels)]
        shares += [rival.accuracy(codes, labels) for rival in (self.recursion, self.retraining)]
        for curve, seconds, share in zip(self.curves, spent, shares, strict=True):
            curve.seconds.append(seconds)
            curve.accuracy.append(share)
        self.requests.append(words)
        outcome = f"{shares[0]:>6.1%} of {len(self.model.classes_):>2} classes"
        print(f"{len(self.requests):>2}  {words:48}{duration(spent[0]):>8}  {outcome:22}{digest[:16]}", flush=True)


def report(demo: Demo, never: ForgettingModel) -> bool:
    """Print the two digests, and time and error of each method; return whether all is as it should be."""
    after, scratch = demo.model.digest(), never.digest()
    print(f"\nafter {len(demo.requests)} requests               {after}\nfrom scratch, on what is left   {scratch}")
    print("equal, bit for bit" if after == scratch else "DIFFERENT: please report this")
    order = [demo.recursion.classes.index(label) for label in demo.retraining.classes]
    exact = _difference(demo.model.classifier.weights_, never.classifier.weights_)
    recursion = _difference(demo.recursion.W[:, order], demo.retraining.W)
    learned = np.array([words.startswith("learn") for words in demo.requests])
    print(f"\n{'':33}{'to learn':>9}{'to forget':>12}   weights that differ from retraining")
    for curve, difference in zip(demo.curves, (exact, recursion, ""), strict=True):
        learn, forget = (duration(np.array(curve.seconds)[rows].sum()) for rows in (learned, ~learned))
        print(f"{curve.mark} {curve.name:31}{learn:>9}{forget:>12}   {difference}".rstrip())
    print(f"\n{figure.drawn(demo.curves)}\n")
    return after == scratch and not demo.failed


def _difference(found: np.ndarray, wanted: np.ndarray) -> str:
    differ, error = (found != wanted).sum(), np.abs(found - wanted).max() / np.abs(wanted).max()
    return f"{differ:,} of {found.size:,}" + (f", by up to {error:.0e} of the largest" if differ else "")


def run(options: argparse.Namespace) -> int:
    """Load the images, compute their features, make all requests and report; return the exit status."""
    images = digits() if options.dataset == "digits" else cifar10(options.data, options.download)
    images = images.reduced(options.samples) if options.samples else images
    backbone: Backbone = efficientnet_lite0(runtime=options.runtime)
    if options.dataset == "cifar10":
        backbone = Cached(backbone, options.data / "features")
    learned, tested, people = len(images.train), len(images.test), len(images.train) // IMAGES_OF_A_PERSON
    print(
        f"{learned:,} {images.about} to learn, dealt out to {people:,} people who get receipts; {tested:,} to test.",
        flush=True,
    )
    began = time.perf_counter()
    demo = Demo(images, AtHand(backbone))
    took = duration(time.perf_counter() - began)
    print(f"{backbone.name} made {backbone.n_features} features of each in {took}. Times below do not count that.\n")
    print(f"{'':4}{'request':48}{'time':>8}  {'accuracy':22}digest", flush=True)
    right = report(demo, play(demo))
    results = provenance("demo", dataset=options.dataset, runtime=options.runtime) | {
        "title": f"{learned:,} {images.about}",
        "requests": [words.split(", ")[0] for words in demo.requests],
        "curves": [asdict(curve) for curve in demo.curves],
    }
    if options.json is not None:
        write_json(options.json, results)
    try:
        figure.save(results, options.figure)
        print(f"This figure as a picture: {options.figure}")
    except ImportError:
        print("For this figure as a picture: pip install matplotlib")
    return 0 if right else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn real images, forget some of them exactly, and show it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=main.__doc__)
    parser.add_argument("--dataset", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--samples", type=int, help="images to learn, at least 200 (all)")
    parser.add_argument("--runtime", choices=("auto", "onnx", "torch"), default="auto", help="(%(default)s)")
    parser.add_argument("--figure", type=Path, default=Path("build/demo.svg"), help="the picture (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what the picture shows there")
    cifar.add_options(parser)
    options = parser.parse_args(arguments)
    if options.samples is not None and options.samples < 200:
        parser.error(f"--samples must be at least 200, got {options.samples}")
    try:
        return run(options)
    except (NeverseenError, cifar.CifarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
