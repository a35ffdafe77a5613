"""What learned samples alone say about gamma: no test sample is looked at.

The setting's gamma is fixed before anything is measured. This command is how one would choose it: the head learns all
but a sixth of the learned samples and is scored on that sixth.
"""

from __future__ import annotations

import numpy as np

from benchmarks.paper import metrics
from benchmarks.paper.artefacts import Artefacts
from benchmarks.paper.methods.head import sums
from benchmarks.paper.references import Material


def validate(artefacts: Artefacts, powers: range = range(12, 27)) -> dict[int, float]:
    """Return the accuracy in percent, on the last sixth of the learned samples, for powers of two as gamma."""
    import torch

    codes = Material("codes", artefacts)
    learned = np.arange(len(codes.learned.labels))
    cut = len(learned) - len(learned) // 6
    held_out = codes.at(learned[cut:])
    gram, cross = sums(codes.at(learned[:cut]), artefacts.dataset.n_classes)
    found = {}
    for power in powers:
        shifted = gram.clone()
        shifted.diagonal().add_(2.0**power)
        weights = torch.cholesky_solve(cross, torch.linalg.cholesky(shifted))  # (d, C)
        found[power] = metrics.accuracy(held_out.inputs.double() @ weights, held_out.labels)
    return found
