"""The sums of samples that have many rows each (`neverseen.targets.rows`)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from neverseen.engine.statistics import Statistics
from neverseen.errors import InputError
from neverseen.hardware import Hardware
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.frozen import CHUNK_ROWS
from neverseen.targets import Rows


def sums_of(
    quantised: np.ndarray, index: LabelIndex, targets: Rows, configuration: Configuration, hardware: Hardware
) -> Statistics:
    """Return the statistics of samples of many rows: sums over all rows, and numbers of samples.

    Whole samples are added up at a time, in parts of `CHUNK_ROWS` rows unless one sample has more.
    """
    expand = configuration.encoder.expand
    lengths = np.array([targets.length(name) for name in index.texts], np.int64)[index.positions]
    ends = np.cumsum(lengths)
    if len(quantised) != (int(ends[-1]) if len(ends) else 0):
        raise InputError(f"there are {len(quantised)} rows, and their labels are of {int(lengths.sum())}")
    total = Statistics(configuration.encoder.code_size(quantised.shape[1]), hardware, targets=targets)
    sample = row = 0
    while sample < len(index):
        stop = max(sample + 1, int(np.searchsorted(ends, row + CHUNK_ROWS, side="right")))
        end, some = int(ends[stop - 1]), index.part(sample, stop)
        part = Statistics.of(expand(quantised[row:end], hardware), targets.rows(some), hardware, targets=targets)
        part.counts = targets.counted(Counter(some.texts[at] for at in some.positions))
        total.merge(part)
        sample, row = stop, end
    return total
