"""The promise: once a store is closed, nothing in its process keeps ids, owners or features of its samples.

A cache that saves reading a text twice keeps the text for as long as the process runs: the id of a sample that was
forgotten long ago, and whose it was. Class names are kept so, as `docs/architecture.md` says, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import gc, hashlib, sys
from pathlib import Path

import numpy as np

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.encoding import quantise
from neverseen.service.errors import Refusal
from neverseen.service.writer.applying import forgetting
from neverseen.service.writer.jobs import SampleList

def word(place):  # made anew each time it is needed, and never in the program's own text
    return hashlib.sha256(b"%d" % place).hexdigest()

def rows():
    return np.random.default_rng(7).normal(size=(12, 16)).astype(np.float32)

def use(folder):
    labels = ["cat", "dog"] * 6
    ids, owners = [word(place) for place in range(12)], [word(100 + place) for place in range(12)]
    with store.create(folder, Precomputed(16), AnalyticClassifier(RandomProjection(24), 2**9)) as made:
        change = made.learning(rows(), labels, ids, owners)
        list(change.facts())
        made.commit(change)
        receipts = list(change.receipts)
        assert made.read_receipt(receipts[0])["id"] == ids[0]
        assert made.ids_held(ids, owners) == [True] * 12
        assert made.held_already(rows(), labels, owners) == [True] * 12
        assert made.receipts_again(made.prepare(rows()[:1]), labels[:1], ids[:1], owners[0]) == receipts[:1]
        made.publish()
        found = made.verdicts(receipts[:4], owners[:4])
        made.forget([each.shown for each in found])
        made.forget(rows()[4:6], labels[4:6], ids=ids[4:6], owners=owners[4:6])
        try:
            forgetting(made, SampleList(made.prepare(rows()[6:8]), labels[6:8], ids[6:8]), None)
        except Refusal:
            pass
        made.without(receipts[6:7]).predict(rows()[:2])
        for given in (receipts[:1], [b"NSR2" + bytes(60)]):
            try:
                made.forget(given)
            except ValueError:
                pass
        try:
            made.learn(rows()[6:7], labels[6:7], ids[6:7], owners[6:7])
        except ValueError:
            pass
        made.holds(receipts)
        made.seal()
        made.check()
    model = ForgettingModel(Precomputed(16), AnalyticClassifier(RandomProjection(24), 2**9))
    model.forget(model.learn(rows(), labels, ids, owners))

def texts():  # all texts, bytes and arrays that anything in the process refers to
    for holder in gc.get_objects():
        for each in gc.get_referents(holder):
            if type(each) in (str, bytes, np.ndarray):
                yield holder, each

def secrets(place):
    return [word(place), word(100 + place)]

use(Path(sys.argv[1]))
gc.collect()
features = [row.tobytes() for row in quantise(rows())] + [row.tobytes() for row in rows()]
asked = {hashlib.sha256(form.encode()).digest() for place in range(12) for each in secrets(place)
         for form in (each, '"' + each + '"')}
for holder, each in texts():
    if isinstance(each, str):
        if hashlib.sha256(each.encode("utf-8", "replace")).digest() in asked:
            print("a text in", type(holder).__name__, str(holder)[:60])
    elif holder is not features:
        raw = each if isinstance(each, bytes) else each.tobytes() if each.dtype != object else b""
        if any(row in raw for row in features):
            print("features in", type(holder).__name__)
print("looked at all")
if len(sys.argv) > 2:  # to see that it would be found
    from neverseen.labels import from_text
    from_text('"' + word(3) + '"')
    print(any(isinstance(each, str) and hashlib.sha256(each.encode("utf-8", "replace")).digest() in asked
              for _, each in texts()))
"""


@pytest.mark.parametrize("control", [False, True])
def test_what_is_left_in_the_process(control: bool, tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), *["control"] * control]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["looked at all", *["True"] * control]
