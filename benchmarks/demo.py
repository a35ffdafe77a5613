"""A first look: learn real digits as a stream, forget, and compare digests. ``make demo``.

Every line is one request, with the time it took, the accuracy on held-out digits after it, and the model's digest. At
the end the same data without what was forgotten is learned from scratch, and the two digests stand side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from neverseen import AnalyticClassifier, NotLearnedError, RandomProjection


def new_model() -> AnalyticClassifier:
    """Return the demo's model."""
    return AnalyticClassifier(RandomProjection(1024, seed=0), gamma=2**14, track_classes=True)


def main() -> None:
    """Run the demo."""
    images, digits = load_digits(return_X_y=True)
    train, test = np.arange(0, 1500), np.arange(1500, len(images))
    model = new_model()
    print("Handwritten digits from scikit-learn: 1,500 to learn, 297 to test.\n")
    print(f"{'request':44}{'time':>10}{'accuracy':>11}   digest")

    def request(words: str, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        call()
        digest = model.digest()
        spent = time.perf_counter() - began
        accuracy = model.score(images[test], digits[test])
        print(f"{words:44}{spent * 1e3:>7.0f} ms{accuracy:>10.1%}   {digest[:16]}")

    for low in range(0, 10, 2):  # two new classes a task, as in class-incremental learning
        rows = train[(digits[train] // 2) * 2 == low]
        learn = partial(model.partial_fit, images[rows], digits[rows])
        request(f"learn {len(rows)} samples of {low} and {low + 1}", learn)
    request("forget 1 sample", lambda: model.forget(images[:1], digits[:1]))
    request("forget 40 samples", lambda: model.forget(images[1:41], digits[1:41]))
    request("forget the class 7, without its samples", lambda: model.forget_class(7))
    for words, row in (("a sample it already forgot", 0), ("a sample it never learned", 1600)):
        try:
            model.forget(images[[row]], digits[[row]])
        except NotLearnedError:
            print(f"{'forget ' + words:44}{'refused':>10}{'':>11}   {model.digest()[:16]}")

    kept = train[41:][digits[train[41:]] != 7]
    never = new_model().fit(images[kept], digits[kept])
    print(f"\nafter forgetting            {model.digest()}")
    print(f"never having learned them   {never.digest()}")
    print("equal, bit for bit" if model.digest() == never.digest() else "DIFFERENT: please report this")


if __name__ == "__main__":
    main()
