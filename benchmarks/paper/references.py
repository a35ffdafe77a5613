"""What a method works on, and the retrained model that it is measured against.

There are two families. Networks are compared with a network trained on the retained images from the same start;
analytic models and moved heads with the exact analytic solution on the retained features.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper import metrics
from benchmarks.paper.artefacts import Artefacts
from benchmarks.paper.attacks import Answers, analytic_references, confidence_attack, lira, scaled_confidences
from benchmarks.paper.methods import METHODS, Method, Samples, Start
from benchmarks.paper.methods.descent import parameters_of, scores_of
from benchmarks.paper.methods.head import Head, ridge
from benchmarks.paper.protocol import shuffled


class Material:
    """Samples as one method takes them.

    Attributes
    ----------
    family : {"network", "analytic"}
    inputs : {"images", "features", "codes"}
    learned, test : Samples
    """

    def __init__(self, inputs: str, artefacts: Artefacts) -> None:
        self.inputs, self.artefacts = inputs, artefacts
        self.family = "network" if inputs == "images" else "analytic"
        labels, test_labels = artefacts.labels, artefacts.test_labels
        if inputs == "features":  # neverseen takes arrays from the CPU
            learned, test = artefacts.features
            labels, test_labels = labels.cpu(), test_labels.cpu()
        else:
            learned, test = (artefacts.images, artefacts.test_images) if inputs == "images" else artefacts.codes
        self.learned, self.test = Samples(learned, labels), Samples(test, test_labels)

    def at(self, positions: np.ndarray) -> Samples:
        """Return learned samples by their positions."""
        rows = torch.from_numpy(positions).to(self.learned.labels.device)
        return Samples(self.learned.inputs[rows], self.learned.labels[rows])

    def part(self, chosen: np.ndarray) -> Samples:
        """Return the learned samples for which `chosen` is true."""
        return self.at(np.flatnonzero(chosen))

    def test_of(self, classes: list[int] | None, most: int | None = None) -> Samples:
        """Return the test samples of these classes, or all; at most so many, drawn by the seed."""
        test, device = self.test, self.test.labels.device
        if classes is not None:
            rows = torch.isin(test.labels, torch.tensor(classes, device=device))
            test = Samples(test.inputs[rows], test.labels[rows])
        if most is not None and most < len(test.labels):
            drawn = shuffled(len(test.labels), "watched", self.artefacts.seed)[:most]
            rows = torch.from_numpy(np.sort(drawn)).to(device)
            test = Samples(test.inputs[rows], test.labels[rows])
        return test

    def parts(self, held: np.ndarray, classes: list[int] | None) -> tuple[Samples, Samples, Samples]:
        """Return retained, forgotten and test samples."""
        return self.part(held), self.part(~held), self.test_of(classes)

    def original(self) -> Any:
        """Return the model that has learned everything, for methods that start from one."""
        artefacts = self.artefacts
        if self.family == "network":
            return artefacts.original

        def solve() -> dict[str, np.ndarray]:
            learned = Material("features", artefacts).learned
            return {"weights": _analytic(learned, artefacts).parameters().numpy()}

        weights = torch.from_numpy(artefacts.arrays(f"head-{artefacts.head}", solve)["weights"])
        return Head(weights.reshape(artefacts.setting.analytic.codes, -1)).to(artefacts.device)

    def solved(self, samples: Samples) -> Head:
        """Return the head that is the analytic solution on codes, by Cholesky in float64."""
        weights = ridge(samples, self.artefacts.dataset.n_classes, self.artefacts.setting.analytic.gamma)
        head = Head(weights)
        head.to(self.artefacts.device)
        return head


class Reference(NamedTuple):
    """The retrained model: parameters, accuracies in percent, the confidence attack on it, its answers."""

    parameters: Tensor  # (P,), float64
    finer: Tensor | None  # of an analytic model: the same solution on a grid of 2**-52
    accuracy: dict[str, float]
    confidence: float
    forgotten_scores: Tensor  # (n, C)


def material_for(kind: type[Method], head_only: bool, artefacts: Artefacts) -> Material:
    """Return the samples as a method takes them, in an experiment with networks or with heads alone."""
    if kind.learns:
        return Material("features" if "features" in kind.inputs else "codes", artefacts)
    return Material("codes" if head_only else "images", artefacts)


def reference_for(
    family: str, scenario: str, held: np.ndarray, classes: list[int] | None, artefacts: Artefacts
) -> Reference:
    """Return the retrained model, made once for all methods of its family.

    Parameters
    ----------
    family : {"network", "analytic"}
    scenario : str
        A name for what is held.
    held : bool ndarray
        Which of the learned samples are retained.
    classes : list of int or None
        Those that test samples may have; None for all.
    artefacts : Artefacts
    """

    def make() -> dict[str, np.ndarray]:
        parts = Material("images" if family == "network" else "features", artefacts).parts(held, classes)
        scores: Callable[[Tensor], Tensor]
        if family == "network":
            network = artefacts.retrained(scenario, torch.from_numpy(np.flatnonzero(held)).to(artefacts.device))
            parameters, scores = parameters_of(network), lambda inputs: scores_of(network, inputs)
            finer = parameters[:0]
        else:
            model = _analytic(parts[0], artefacts)
            parameters, scores = model.parameters(), model.scores
            finer = _analytic(parts[0], artefacts, grid_bits=52).parameters()
        answers = answers_of(scores, parts)
        return {
            "parameters": parameters.numpy(),
            "finer": finer.numpy(),
            "accuracy": np.array([metrics.accuracy(*answer) for answer in answers]),
            "confidence": np.array(_confidence(answers, artefacts)),
            "forgotten": answers[1].scores.numpy(),
        }

    name = f"network-{scenario}" if family == "network" else f"analytic-{artefacts.head}-{scenario}"
    stored = artefacts.arrays(f"reference-{name}", make)
    accuracy = dict(zip(metrics.PARTS, stored["accuracy"].tolist(), strict=True))
    return Reference(
        torch.from_numpy(stored["parameters"]),
        torch.from_numpy(stored["finer"]) if len(stored["finer"]) else None,
        accuracy,
        float(stored["confidence"]),
        torch.from_numpy(stored["forgotten"]),
    )


def attacks_on(
    answers: list[Answers], material: Material, reference: Reference, scenario: str, held: np.ndarray
) -> dict[str, Any]:
    """Attack a model by its answers: the confidence attack, its gap to the retrained model's, the per-example attack.

    Only for requests that leave every class: the answers are on all learned and all test samples.
    """
    artefacts = material.artefacts
    confidence = _confidence(answers, artefacts)
    found: dict[str, Any] = {
        "confidence": confidence,
        "gap": abs(confidence - reference.confidence),
        "lira": None,
        "lira_tpr_at_1_percent": None,
    }
    compared = _compared(material.family, scenario, held, artefacts)
    if compared is not None:
        retrained = Answers(reference.forgotten_scores, answers[1].labels)
        attack = lira(answers[1], retrained, compared["references"], compared["seen"])
        found |= {"lira": attack.auc, "lira_tpr_at_1_percent": attack.tpr_at_1_percent}
    return found


def answers_of(scores: Callable[[Tensor], Tensor], parts: tuple[Samples, ...]) -> list[Answers]:
    """Return a model's answers on each part, on the CPU."""
    return [Answers(scores(part.inputs).cpu(), part.labels.cpu()) for part in parts]


def _confidence(answers: list[Answers], artefacts: Artefacts) -> float:
    retained, forgotten, test = answers
    return confidence_attack(retained, test, forgotten, artefacts.seed, artefacts.setting.sizes.attack)


def _analytic(samples: Samples, artefacts: Artefacts, **others: int) -> Method:
    """Return neverseen's model of features."""
    model, how = METHODS["neverseen"](), artefacts.setting.analytic
    settings = {"codes": how.codes, "projection_seed": artefacts.seed, "gamma": how.gamma, **others}
    model.prepare(
        Start(artefacts.dataset.n_classes, artefacts.device, artefacts.seed, settings=settings, learned=samples)
    )
    return model


def _compared(family: str, scenario: str, held: np.ndarray, artefacts: Artefacts) -> dict[str, np.ndarray] | None:
    """Return the models that the per-example attack compares with: scaled confidences, and who saw what."""
    sizes, seed = artefacts.setting.sizes, artefacts.seed
    if family == "network":
        if seed not in sizes.reference_seeds or not sizes.network_references:
            return None
        count = sizes.network_references
        found = {}
        for n in range(count):  # processes that come for them at a time begin with different ones
            number = (n + os.getpid()) % count
            make = partial(_trained, number, held, artefacts)
            found[number] = artefacts.arrays(f"compared-network-{scenario}-{number}", make)
        return {name: np.stack([found[n][name] for n in range(count)]) for name in ("references", "seen")}
    if not sizes.head_references:
        return None

    def solve() -> dict[str, np.ndarray]:
        retained, forgotten, _ = Material("codes", artefacts).parts(held, None)
        n_classes, gamma = artefacts.dataset.n_classes, artefacts.setting.analytic.gamma
        pair = analytic_references(retained, forgotten, n_classes, gamma, sizes.head_references, seed)
        return dict(zip(("references", "seen"), pair, strict=True))

    return artefacts.arrays(f"compared-analytic-{artefacts.head}-{scenario}", solve)


def _trained(number: int, held: np.ndarray, artefacts: Artefacts) -> dict[str, np.ndarray]:
    """Train a network on the retained and half of the forgotten images; of a pair, the second takes the other half."""
    retained, forgotten, _ = Material("images", artefacts).parts(held, None)
    half = shuffled(len(forgotten.labels), f"references-{number // 2}", artefacts.seed)
    seen = np.zeros(len(half), dtype=bool)
    seen[half[: len(half) // 2]] = True
    seen = seen if number % 2 == 0 else ~seen
    rows = torch.from_numpy(seen).to(forgotten.labels.device)
    images = torch.cat([retained.inputs, forgotten.inputs[rows]])
    labels = torch.cat([retained.labels, forgotten.labels[rows]])
    network = artefacts.trained(images, labels, artefacts.seed + 2000 + number)
    answers = Answers(scores_of(network, forgotten.inputs).cpu(), forgotten.labels.cpu())
    return {"references": scaled_confidences(answers), "seen": seen}
