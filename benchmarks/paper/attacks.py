"""Membership inference: attacks that tell from a model's answers whether it once saw a sample.

**Confidence attack** (`confidence_attack`), the one in common use. Three numbers describe a model's answer p (softmax
of its scores) on a sample of class y: the confidence ``p_y``; the entropy ``-sum p_i log p_i``; the modified entropy
``-(1 - p_y) log p_y - sum_{i != y} p_i log(1 - p_i)`` (Song and Mittal, 2021). They are standardised, and a
support-vector classifier with an RBF kernel learns to tell retained samples (members) from test samples, as many of
each. Its value is the share, 0 to 1, of the *forgotten* samples that it calls members. No value is right in itself:
what counts is the gap to the value of the retrained model, whose attacker is trained on the retrained model's answers.

**Per-example attack** (`lira`), after LiRA (Carlini et al., 2022). Reference models, some of which saw a sample and
some not, give two Gaussians for the logit-scaled confidence of *that sample*, ``log(p_y / (1 - p_y))``. The attacker
sees one model's value and takes the log-likelihood ratio, seen over unseen. Its targets are the forgotten samples,
twice over: answered by the unlearned model (positives) and by the retrained model, which never saw them (negatives).
It reports the AUC, and the true-positive rate at a false-positive rate of at most 1 %. A model equal to the retrained
one has an AUC of exactly 0.5; traces of the samples push it up, forgetting too hard pushes it down, and either
gives the request away: what counts is the distance from 0.5. References are whole trainings for networks; for analytic
heads they are solves, and `analytic_references` makes them.

A model whose answers are not finite gives NaN in both. So does `lira` for samples of a class that is gone, whose
confidence is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.paper.methods.head import solve, sums
from benchmarks.paper.methods.interface import Samples, Tensor, generator

Vector = NDArray[np.float64]
_SMALLEST = 1e-30  # a probability is taken to be at least this, in logarithms only
_NARROWEST = 1e-6  # a standard deviation is taken to be at least this
_EACH_ITS_OWN = 8  # with fewer references than this on a side, all samples share one variance


class Answers(NamedTuple):
    """A model's scores (n, C) on samples, and their labels (n,)."""

    scores: Tensor
    labels: Tensor


class Attack(NamedTuple):
    """The quality of a per-example attack: AUC, and true-positive rate at 1 % false positives; 0 to 1."""

    auc: float
    tpr_at_1_percent: float


# -- the confidence attack -----------------------------------------------------------------------------


def probabilities(scores: Tensor) -> Tensor:
    """Return the softmax of scores in float64, of shape (n, C)."""
    return torch.softmax(scores.double(), 1)


def entropy(p: Tensor) -> Tensor:
    """Return ``-sum p_i log p_i`` of each row, with 0 log 0 = 0."""
    return -(p * p.clamp_min(_SMALLEST).log()).sum(1)


def modified_entropy(p: Tensor, labels: Tensor) -> Tensor:
    """Return ``-(1 - p_y) log p_y - sum_{i != y} p_i log(1 - p_i)`` of each row; 0 if and only if p_y is 1."""
    true = p.gather(1, labels[:, None])  # (n, 1)
    others = p * (1 - p).clamp_min(_SMALLEST).log()  # (n, C)
    others = others.scatter(1, labels[:, None], 0.0)
    return -((1 - true) * true.clamp_min(_SMALLEST).log()).squeeze(1) - others.sum(1)


def attack_features(answers: Answers) -> Vector:
    """Return confidence, entropy and modified entropy of each sample; shape (n, 3)."""
    p, labels = probabilities(answers.scores), answers.labels.to(answers.scores.device)
    columns = [p.gather(1, labels[:, None]).squeeze(1), entropy(p), modified_entropy(p, labels)]
    features: Vector = torch.stack(columns, 1).cpu().numpy()
    return features


def confidence_attack(retained: Answers, test: Answers, forgotten: Answers, seed: int = 0, most: int = 2000) -> float:
    """Return the share of forgotten samples that an RBF SVC, trained on retained against test, calls members.

    Parameters
    ----------
    retained, test, forgotten : Answers
        Of the model attacked.
    seed : int
        Draws the samples that train the classifier.
    most : int
        Members, and non-members, to train it on: as many of each as there are of the fewer, but not more than this.
    """
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    members, others, targets = (attack_features(answers) for answers in (retained, test, forgotten))
    count = min(len(members), len(others), most)
    if count == 0 or len(targets) == 0:
        return math.nan
    if not all(np.isfinite(features).all() for features in (members, others, targets)):
        return math.nan
    random = np.random.default_rng(seed)
    chosen = [features[random.permutation(len(features))[:count]] for features in (members, others)]
    scaler = StandardScaler().fit(np.concatenate(chosen))
    attacker = SVC(kernel="rbf", C=1.0, gamma="scale")
    attacker.fit(scaler.transform(np.concatenate(chosen)), np.repeat([1, 0], count))
    return float(np.mean(attacker.predict(scaler.transform(targets)) == 1))


# -- the per-example attack ----------------------------------------------------------------------------


def scaled_confidences(answers: Answers) -> Vector:
    """Return ``log(p_y / (1 - p_y))`` of each sample, as ``score_y - logsumexp(other scores)``; shape (n,)."""
    scores, labels = answers.scores.double(), answers.labels.to(answers.scores.device)[:, None]
    others = scores.scatter(1, labels, float("-inf"))
    scaled: Vector = (scores.gather(1, labels).squeeze(1) - torch.logsumexp(others, 1)).cpu().numpy()
    return scaled


def likelihood_ratios(observed: Vector, references: Vector, seen: NDArray[np.bool_]) -> Vector:
    """Return for each sample the log-likelihood ratio of having been seen.

    Parameters
    ----------
    observed : ndarray of shape (n,)
        Scaled confidences of the model attacked.
    references : ndarray of shape (m, n)
        Those of the reference models.
    seen : bool ndarray of shape (m, n)
        Which reference was trained on which sample. Each sample must be seen by one at least, and unseen by one.

    Notes
    -----
    Means are each sample's own. So are variances if every sample has 8 references or more on that side; with fewer,
    all samples share the mean of their variances, as the LiRA paper advises for few references.
    """
    if references.shape != seen.shape or references.shape[1:] != observed.shape:
        raise ValueError(
            f"references and seen must have shape (m, {len(observed)}); got {references.shape} and {seen.shape}"
        )
    if not (seen.any(0).all() and (~seen).any(0).all()):
        raise ValueError("each sample must be seen by at least one reference model and unseen by at least one")
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so, for the caller to see
        return _log_density(observed, references, seen) - _log_density(observed, references, ~seen)


def _log_density(observed: Vector, references: Vector, chosen: NDArray[np.bool_]) -> Vector:
    """Return the log density of each value under the Gaussian of its sample's chosen references, less a constant."""
    counts = chosen.sum(0)  # (n,)
    means = np.where(chosen, references, 0.0).sum(0) / counts
    squares = np.where(chosen, (references - means) ** 2, 0.0).sum(0)  # (n,)
    if counts.min() >= _EACH_ITS_OWN:
        variances = squares / (counts - 1)
    else:
        variances = np.full(len(means), squares.sum() / max(1, (counts - 1).sum()))
    deviations = np.maximum(np.sqrt(variances), _NARROWEST)
    density: Vector = -(((observed - means) / deviations) ** 2) / 2 - np.log(deviations)
    return density


def attack_quality(positives: Vector, negatives: Vector) -> Attack:
    """Return how well a statistic tells positives, which should be greater, from negatives.

    The AUC is the chance that a positive is greater than a negative, ties counting half. The true-positive rate is the
    greatest share of positives strictly above a threshold that at most 1 % of the negatives are strictly above.
    """
    if (
        len(positives) == 0
        or len(negatives) == 0
        or not (np.isfinite(positives).all() and np.isfinite(negatives).all())
    ):
        return Attack(math.nan, math.nan)
    order = np.sort(negatives)
    below, not_above = np.searchsorted(order, positives, "left"), np.searchsorted(order, positives, "right")
    auc = float((below + not_above).sum()) / (2 * len(positives) * len(negatives))
    threshold = order[len(order) - 1 - len(order) // 100]
    return Attack(auc, float(np.mean(positives > threshold)))


def lira(unlearned: Answers, retrained: Answers, references: Vector, seen: NDArray[np.bool_]) -> Attack:
    """Attack the forgotten samples: answers of the unlearned model are positives, of the retrained one negatives.

    Parameters
    ----------
    unlearned, retrained : Answers
        On the n forgotten samples, in the same order.
    references : ndarray of shape (m, n)
        `scaled_confidences` of reference models on these samples.
    seen : bool ndarray of shape (m, n)
        Which reference was trained on which sample.
    """
    ratios = [likelihood_ratios(scaled_confidences(a), references, seen) for a in (unlearned, retrained)]
    return attack_quality(ratios[0], ratios[1])


def analytic_references(
    retained: Samples, forgotten: Samples, n_classes: int, gamma: float, count: int = 16, seed: int = 0
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return references for `lira` on analytic heads: `count` ridge solutions, each on half of the forgotten samples.

    Each also learns all retained samples, which the attacker is thus granted. References come in pairs, the second with
    the forgotten samples that the first left out, so each sample is seen by half of them.

    Parameters
    ----------
    retained, forgotten : Samples
        Codes and labels.
    count : int
        An even number, 2 or more.

    Returns
    -------
    references : ndarray of shape (count, n)
        Scaled confidences on the forgotten samples.
    seen : bool ndarray of shape (count, n)
    """
    if count < 2 or count % 2:
        raise ValueError(f"count must be even and at least 2, for references come in pairs; got {count}")
    device, size = forgotten.labels.device, len(forgotten.labels)
    references, seen = np.empty((count, size)), np.empty((count, size), dtype=bool)
    gram, cross = sums(retained, n_classes)
    for pair in range(count // 2):
        order = torch.randperm(size, generator=generator("cpu", seed, pair))
        first = torch.zeros(size, dtype=torch.bool)
        first[order[: size // 2]] = True
        for row, chosen in ((2 * pair, first), (2 * pair + 1, ~first)):
            rows = chosen.to(device)
            more_gram, more_cross = sums(Samples(forgotten.inputs[rows], forgotten.labels[rows]), n_classes)
            weights = solve(gram + more_gram, cross + more_cross, gamma)  # (d, C)
            answers = Answers(forgotten.inputs.double() @ weights, forgotten.labels)
            references[row], seen[row] = scaled_confidences(answers), chosen.numpy()
    return references, seen
