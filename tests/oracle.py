"""The specification a second time, in Python integers and fractions: slow, and obviously right.

Written from `docs/specification.md` alone; it shares nothing with `src/`. The number after each § is the
section of that page which a function restates. Matrices are lists of rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

Row = list[int]
Matrix = list[list[int]]
Label = Any  # None, bool, int, float, str, bytes, tuple, frozenset, or a NumPy scalar holding one of them


# §1 quantised features


def float32_row(row: Iterable[float]) -> list[float]:
    """The numbers that `Precomputed` makes of a row: each the nearest float32, ties to even (§1)."""
    rounded = []
    for value in row:
        exact = Fraction(value)
        exponent = (
            max(-126, math.frexp(value)[1] - 1) if value else -126
        )  # of the leading bit, at least the least normal
        while abs(exact) >= Fraction(2) ** (exponent + 1):  # an integer that float rounds up has one less
            exponent += 1
        unit = Fraction(2) ** (exponent - 23)
        nearest = float(round(exact / unit) * unit)
        if abs(nearest) >= 2.0**128:
            raise OverflowError(f"{value!r} is beyond float32")
        rounded.append(nearest)
    return rounded


def quantise(row: Iterable[float], scale: float | None = None) -> Row:
    """Divide a row by its own root mean square or a fixed scale, times 16, rounded and clipped to -127..127 (§1)."""
    x = [float(value) for value in row]
    if scale is not None:
        products = [value * (16.0 / scale) for value in x]
        return [round(max(-127.0, min(127.0, product))) for product in products]
    largest = max(abs(value) for value in x)
    if largest == 0:
        return [0] * len(x)
    _, exponent = math.frexp(largest)  # 2^(exponent-1) <= largest < 2^exponent
    z = [math.ldexp(value, -exponent) for value in x]
    root_mean_square = math.sqrt(halving_sum([value * value for value in z]) / len(z))
    k = 16.0 / root_mean_square
    return [max(-127, min(127, round(value * k))) for value in z]


def halving_sum(terms: Sequence[float]) -> float:
    """Add in the order of §1: pad to a power of two, then fold the second half onto the first."""
    length = 1
    while length < len(terms):
        length *= 2
    folded = [*terms, *([0.0] * (length - len(terms)))]
    while len(folded) > 1:
        half = len(folded) // 2
        folded = [folded[i] + folded[half + i] for i in range(half)]
    return folded[0]


# §2 codes


def identity(q: Row) -> Row:
    """The code is the quantised row (§2.1)."""
    return list(q)


def random_projection(q: Row, n_codes: int, seed: int, activation: str = "relu") -> Row:
    """Project on seeded signs; rectify, shift and clip, or take a curve (§2.2)."""
    signs = [sign_row(seed, i, n_codes) for i in range(len(q))]
    shift = projection_shift(len(q))
    projected = [sum(q[i] * signs[i][j] for i in range(len(q))) for j in range(n_codes)]
    if activation == "relu":
        return [min(127, max(p, 0) // 2**shift) for p in projected]
    return [activated(p, len(q), activation) for p in projected]


def activated(p: int, d0: int, activation: str) -> int:
    """The code of a projection: the curve between two bounds of the exponential, closer and closer (§2.2)."""
    if activation == "sign":
        return 127 * ((p > 0) - (p < 0))
    x = Fraction(p, math.isqrt(256 * d0))
    slope = {"tanh": Fraction(2), "sigmoid": Fraction(1), "gelu": Fraction("1.702")}[activation]

    def curve(e: Fraction) -> Fraction:
        if activation == "tanh":
            return 127 * (e - 1) / (e + 1)
        return 127 * e / (1 + e) if activation == "sigmoid" else min(Fraction(127), 32 * x * e / (1 + e))

    terms = 8
    while True:
        found = {math.floor(curve(e) + Fraction(1, 2)) for e in exponential(slope * x, terms)}
        if len(found) == 1:
            return found.pop()
        terms *= 2


def exponential(x: Fraction, terms: int) -> tuple[Fraction, Fraction]:
    """A lower and an upper bound of `exp(x)`, the same for 0: by its series, whose rest is small, and `1 / exp(-x)`."""
    if x < 0:
        low, high = exponential(-x, terms)
        return 1 / high, 1 / low
    size = math.floor(x) + 1
    y, low, term = x / size, Fraction(0), Fraction(1)  # 0 <= y < 1: exp(x) is exp(y) to the power of size
    for n in range(terms):
        low, term = low + term, term * y / (n + 1)
    high = low + 2 * term  # the ratio of the terms that follow is below 1/2
    return low**size, high**size


def two_streams(q: Row, n_codes: int, seed: int, activation: str = "relu", other: str = "tanh") -> Row:
    """Two activations of one projection, side by side (§2.4)."""
    return random_projection(q, n_codes, seed, activation) + random_projection(q, n_codes, seed, other)


def sign_row(seed: int, i: int, n_codes: int) -> Row:
    """Row `i` of the sign matrix, from SHAKE-256 (§2.2)."""
    stream = hashlib.shake_256(b"neverseen:projection:1" + u64(seed) + u64(i)).digest(n_codes // 8 + 1)
    return [1 - 2 * (stream[j // 8] >> (j % 8) & 1) for j in range(n_codes)]


def projection_shift(d0: int) -> int:
    """The greatest shift with `81 * 4^shift <= 128 * d0` (§2.2)."""
    shift = 0
    while 81 * 4 ** (shift + 1) <= 128 * d0:
        shift += 1
    return shift


def gaussian_kernel(q: Row, centres: Iterable[Iterable[float]], bandwidth: float, scale: float | None = None) -> Row:
    """Count the thresholds that each squared distance to a centre does not pass (§2.3)."""
    thresholds = kernel_thresholds(bandwidth, len(q))
    code = []
    for centre in centres:
        distance = sum((a - b) ** 2 for a, b in zip(q, quantise(centre, scale), strict=True))
        code.append(sum(distance <= threshold for threshold in thresholds))
    return code


def kernel_thresholds(bandwidth: float, d0: int) -> Row:
    """`floor(512 h^2 d0 ln(254 / (2v - 1)))` for v = 1..127 (§2.3)."""
    scale = 512 * Fraction(bandwidth) ** 2 * d0
    return [floor_times_log(scale, Fraction(254, 2 * v - 1)) for v in range(1, 128)]


def floor_times_log(scale: Fraction, argument: Fraction) -> int:
    """`floor(scale * ln(argument))`, with digits added until both ends of the error interval agree."""
    digits = 50
    while True:
        with localcontext() as context:
            context.prec = digits
            log = Fraction((Decimal(argument.numerator) / Decimal(argument.denominator)).ln())
        error = Fraction(1, 10 ** (digits - 10))  # quotient and logarithm err by far less: ln is below 6
        low, high = math.floor(scale * (log - error)), math.floor(scale * (log + error))
        if low == high:
            return low
        digits *= 2


# §3 labels and classes


def plain(label: Label) -> Label:
    """The Python value of a NumPy scalar; the integer of a float with an integral value (§3)."""
    value = label.item() if hasattr(label, "item") else label
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a label must be finite, got {value!r}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def label_text(label: Label) -> str:
    """The canonical text of a label (§3)."""
    match plain(label):
        case None | bool() | int() | str() as value:
            return canonical_json(value)
        case float() as value:
            return canonical_json({"float": value.hex()})
        case bytes() as value:
            return canonical_json({"bytes": value.hex()})
        case tuple() as members:
            return '{"tuple":[' + ",".join(map(label_text, members)) + "]}"
        case frozenset() as members:
            return '{"frozenset":[' + ",".join(map(label_text, class_order(members))) + "]}"
        case value:
            raise TypeError(f"not a label: {value!r}")


def class_key(label: Label) -> tuple[Any, ...]:
    """A key that sorts labels by kind, then by value (§3)."""
    match plain(label):
        case None:
            return (0,)
        case bool() as value:
            return (1, value)
        case int() | float() as value:
            return (2, value)
        case str() as value:
            return (3, value)
        case bytes() as value:
            return (4, value)
        case tuple() as members:
            return (5, tuple(class_key(member) for member in members))
        case frozenset() as members:
            return (6, tuple(sorted(class_key(member) for member in members)))
        case value:
            raise TypeError(f"not a label: {value!r}")


def class_order(labels: Iterable[Label]) -> list[Label]:
    """The classes among `labels`: one for each text, in class order (§3)."""
    return sorted({label_text(label): plain(label) for label in labels}.values(), key=class_key)


def canonical_json(value: Any) -> str:
    """Keys sorted, no spaces, ASCII (§3)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


# §4 statistics


class Statistics(NamedTuple):
    """The sums over the samples held (§4)."""

    gram: Matrix  # (d, d)
    cross: Matrix  # (d, C)
    counts: Row  # (C,)
    classes: list[Label]  # (C,), in class order


def statistics(codes: Sequence[Row], labels: Sequence[Label]) -> Statistics:
    """Sum outer products of codes, and of codes with one-hot labels (§4)."""
    d = len(codes[0]) if codes else 0
    classes = class_order(labels)
    texts = [label_text(label) for label in classes]
    targets = [texts.index(label_text(label)) for label in labels]
    held = list(zip(codes, targets, strict=True))
    gram = [[sum(c[i] * c[j] for c in codes) for j in range(d)] for i in range(d)]
    cross = [[sum(c[i] for c, y in held if y == k) for k in range(len(classes))] for i in range(d)]
    counts = [targets.count(k) for k in range(len(classes))]
    return Statistics(gram, cross, counts, classes)


# §3.2 many rows


def label_of_rows(labels: Sequence[Label]) -> tuple[Label, list[int]]:
    """The label of a sample whose rows have these labels, and the order of its rows (§3.2)."""
    names = class_order(labels)
    places = [[at for at, label in enumerate(labels) if label_text(label) == label_text(name)] for name in names]
    pairs = tuple((plain(name), len(some)) for name, some in zip(names, places, strict=True))
    return pairs, [at for some in places for at in some]


def statistics_of_rows(samples: Sequence[Sequence[tuple[Row, dict[Label, int], int]]]) -> Statistics:
    """Sums over all rows of samples, given code, y and w of each; numbers of samples (§3.1, §3.2)."""
    rows = [row for sample in samples for row in sample]
    d = len(rows[0][0]) if rows else 0
    classes = class_order([name for _, y, _ in rows for name in y])
    told = [{label_text(name): value for name, value in y.items()} for _, y, _ in rows]
    gram = [[sum(w * c[i] * c[j] for c, _, w in rows) for j in range(d)] for i in range(d)]
    cross = [
        [sum(c[i] * y.get(label_text(name), 0) for (c, _, _), y in zip(rows, told, strict=True)) for name in classes]
        for i in range(d)
    ]
    having = [{label_text(name) for _, y, _ in sample for name in y} for sample in samples]
    counts = [sum(label_text(name) in names for names in having) for name in classes]
    return Statistics(gram, cross, counts, classes)


# §5 weights


def exact_weights(gram: Matrix, cross: Matrix, gamma: int) -> list[list[Fraction]]:
    """`(G + gamma I)^-1 B` by elimination; the matrix is positive definite, so no pivot is 0 (§5)."""
    d = len(gram)
    ridge = [[Fraction(gram[i][j] + gamma * (i == j)) for j in range(d)] for i in range(d)]
    rows = [a + [Fraction(value) for value in b] for a, b in zip(ridge, cross, strict=True)]  # (d, d + C)
    for pivot in range(d):
        rows[pivot] = [value / rows[pivot][pivot] for value in rows[pivot]]
        for i in range(d):
            factor = rows[i][pivot]
            if i != pivot and factor != 0:
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[pivot], strict=True)]
    return [row[d:] for row in rows]


def weights(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int) -> Matrix:
    """`N = round(2^p W*)`, ties to even, which is what `round` does to a fraction (§5)."""
    return [[round(2**grid_bits * value) for value in row] for row in exact_weights(gram, cross, gamma)]


# §5.2 gamma chosen by the sums


def chosen_gamma(gram: Matrix, cross: Matrix, total: int, squares: int | None = None) -> int:
    """The candidate with the smallest score, the greatest among equals (§5.2). `squares` is `total` for classes."""
    squares = total if squares is None else squares
    candidates = gammas(gram)
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda gamma: (strength_score(gram, cross, total, squares, gamma), -gamma))


def gammas(gram: Matrix) -> list[int]:
    """The candidates (§5.2)."""
    d, t = len(gram), sum(row[place] for place, row in enumerate(gram))
    b, s = t.bit_length(), next(s for s in range(64) if d <= 2**s)
    return [2**k for k in range(min(40, max(0, b - 17 - s)), min(40, max(0, b - 1)) + 1)]


def strength_score(gram: Matrix, cross: Matrix, total: int, squares: int, gamma: int) -> int:
    """`round(16 log2(n RSS / f^2))` (§5.2)."""
    d, columns = len(gram), len(cross[0])
    w = exact_weights(gram, cross, gamma)
    fits = sum(w[i][j] * cross[i][j] for i in range(d) for j in range(columns))
    size = sum(w[i][j] * gram[i][k] * w[k][j] for i in range(d) for k in range(d) for j in range(columns))
    share = exact_weights(gram, gram, gamma)  # A^-1 G, which has the same trace as G A^-1
    free = total - sum(share[i][i] for i in range(d))
    return score_of(Fraction(total * (squares - 2 * fits + size) / (free * free)))


def score_of(value: Fraction) -> int:
    """`round(16 log2(value))` (§5.2)."""
    k = round(16 * (math.log2(value.numerator) - math.log2(value.denominator)))  # nearly; log2 takes any integer
    while Fraction(2) ** (2 * k - 1) > value**32:
        k -= 1
    while Fraction(2) ** (2 * k + 1) <= value**32:
        k += 1
    return k


# §5.3 two streams


def stream_system(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int, ratio: float) -> tuple[Matrix, Matrix, int]:
    """The matrix, right side and gamma of the one system of both streams (§5.3)."""
    h, columns = len(gram) // 2, range(len(cross[0]))
    matrix = [[256 * gram[i][j] * ((i < h) == (j < h)) for j in range(2 * h)] for i in range(2 * h)]
    main = weights([row[:h] for row in gram[:h]], cross[:h], gamma, grid_bits)
    left = [
        [cross[i][k] - sum(Fraction(gram[i][j] * main[j][k], 2**grid_bits) for j in range(h)) for k in columns]
        for i in range(h, 2 * h)
    ]
    rest = [[math.floor(256 * Fraction(ratio) * value + Fraction(1, 2)) for value in row] for row in left]
    return matrix, [[256 * value for value in row] for row in cross[:h]] + rest, 256 * gamma


# §5.4 gamma chosen by leaving out


def gamma_by_leaving_out(codes: Sequence[Row], targets: Matrix) -> int:
    """The candidate whose models have the smallest squared error on the sample that each has not learned (§5.4)."""
    d = len(codes[0])
    gram = [[sum(code[i] * code[j] for code in codes) for j in range(d)] for i in range(d)]
    candidates = gammas(gram)
    if not any(map(any, targets)):
        return candidates[-1]
    return min(candidates, key=lambda gamma: (score_of(left_out_error(codes, targets, gamma)), -gamma))


def left_out_error(codes: Sequence[Row], targets: Matrix, gamma: int) -> Fraction:
    """The sum of the squared errors: one model for each sample, which learns the others (§5.4)."""
    d, total = len(codes[0]), Fraction(0)
    for place, code in enumerate(codes):
        rest = [(c, y) for k, (c, y) in enumerate(zip(codes, targets, strict=True)) if k != place]
        gram = [[sum(c[i] * c[j] for c, _ in rest) for j in range(d)] for i in range(d)]
        cross = [[sum(c[i] * y[j] for c, y in rest) for j in range(len(targets[0]))] for i in range(d)]
        w = exact_weights(gram, cross, gamma)
        for j, y in enumerate(targets[place]):
            total += (y - sum(code[i] * w[i][j] for i in range(d))) ** 2
    return total


# §6 scores


def scores(code: Row, n: Matrix) -> Row:
    """`S = code N` (§6)."""
    return [sum(code[i] * n[i][k] for i in range(len(code))) for k in range(len(n[0]))]


def decision(s: Row, grid_bits: int) -> list[float]:
    """`S * 2^-p` in float64 (`int / int` rounds correctly); one number where there are two classes (§6)."""
    values = [s[1] - s[0]] if len(s) == 2 else s
    return [value / 2**grid_bits for value in values]


def predict(s: Row, classes: Sequence[Label]) -> Label:
    """The class of the greatest score, the first among equals (§6)."""
    return classes[s.index(max(s))]


def probabilities(s: Row, grid_bits: int) -> list[Fraction]:
    """The probability vector nearest to `S * 2^-p`: `max(S - level, 0)`, the level making the sum 1 (§6)."""
    values = [Fraction(value, 2**grid_bits) for value in s]
    greatest = sorted(values, reverse=True)
    levels = [(sum(greatest[:k], Fraction(-1))) / k for k in range(1, len(values) + 1)]
    level = max(levels)  # a support too small or too large gives a lower level
    return [max(value - level, Fraction(0)) for value in values]


def softened(s: Row, grid_bits: int, temperature: float) -> list[float]:
    """The softmax of `S * 2^-p / T`, in single float64 operations (§6)."""
    powers = []
    for value in s:
        t = min((max(s) - value) / 2**grid_bits / temperature, 600.0)
        k = round(t * float.fromhex("0x1.71547652b82fep+0"))
        r = k * float.fromhex("0x1.62e42feep-1") - t + k * float.fromhex("0x1.a39ef35793c76p-33")
        e = 1.0
        for n in range(13, 0, -1):
            e = 1.0 + r * e / n
        powers.append(e * 0.5**k)
    total = 0.0
    for power in powers:
        total += power
    return [power / total for power in powers]


# §6.1 by class means


class ClassMeans(NamedTuple):
    """What predictions by class means follow from (§6.1)."""

    rule: str
    counts: Row
    sums: Matrix  # s_k, (C, d)
    images: Matrix  # u_k, (C, d)
    scatter: Matrix  # G_w
    gamma: int  # gamma_w
    grid_bits: int


def class_means(
    rule: str, codes: Sequence[Row], labels: Sequence[Label], gamma: int, grid_bits: int, shrinkage: float | None = None
) -> ClassMeans:
    """The means of samples, with their scatter about the rounded means, added up sample by sample (§6.1)."""
    held = statistics(codes, labels)
    sums = [list(column) for column in zip(*held.cross, strict=True)]
    rounded = [[round(Fraction(value, count)) for value in row] for row, count in zip(sums, held.counts, strict=True)]
    texts = [label_text(label) for label in held.classes]
    rest = [
        [a - b for a, b in zip(code, rounded[texts.index(label_text(label))], strict=True)]
        for code, label in zip(codes, labels, strict=True)
    ]
    scatter = statistics(rest, [None] * len(rest)).gram
    if shrinkage is not None:
        trace, share = sum(row[place] for place, row in enumerate(scatter)), Fraction(shrinkage)
        gamma = max(1, round(share * trace / ((1 - share) * len(scatter))))
    solved = weights(scatter, held.cross, gamma, grid_bits) if rule == "lda" else held.cross
    images = [list(column) for column in zip(*solved, strict=True)]
    return ClassMeans(rule, held.counts, sums, images, scatter, gamma, grid_bits)


def dot(left: Row, right: Row) -> int:
    """The product of two vectors."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def mean_scores(means: ClassMeans, code: Row) -> list[Fraction]:
    """The score of each class; by cosine, its square with its sign, which has the same order (§6.1)."""
    found = []
    for count, total, image in zip(means.counts, means.sums, means.images, strict=True):
        x, size = dot(code, image), dot(total, image)
        if means.rule == "cosine":
            found.append(Fraction(x * abs(x), size) if size else Fraction(0))
        else:
            found.append(Fraction(2 * count * x - size, count**2))
    return found


def novelty(means: ClassMeans, code: Row) -> float:
    """How far a code is from the mean of its predicted class (§6.1)."""
    found = mean_scores(means, code)
    k = found.index(max(found))
    if means.rule == "mean":
        return float(dot(code, code) - found[k])
    if means.rule == "cosine":
        length = math.sqrt(float(dot(code, code) * dot(means.sums[k], means.sums[k])))
        return max(0.0, 1.0 - dot(code, means.sums[k]) / length) if length else 1.0
    ((*image,),) = zip(*weights(means.scatter, [[value] for value in code], means.gamma, means.grid_bits), strict=True)
    return max(0.0, float(sum(means.counts) * (dot(code, list(image)) - found[k]) / 2**means.grid_bits))


def means_digest(configuration: bytes, d0: int, classes: Sequence[Label], means: ClassMeans) -> bytes:
    """SHA-256 of what predictions by class means follow from (§6.1)."""
    rule = means.rule.encode("ascii")
    content = b"neverseen:means:1" + configuration + u64(len(rule)) + u64(d0) + u64(len(means.scatter))
    content += u64(len(classes)) + rule
    for label, count, total in zip(classes, means.counts, means.sums, strict=True):
        content += prefixed(label_text(label)) + u64(count) + b"".join(map(i64, total))
    if means.rule == "lda":
        content += u64(means.gamma) + b"".join(map(i64, triangle(means.scatter)))
    return hashlib.sha256(content).digest()


# §7 digests


def u64(value: int) -> bytes:
    """Eight bytes, little-endian."""
    return value.to_bytes(8, "little")


def int8_bytes(row: Row) -> bytes:
    """One two's complement byte for each number."""
    return b"".join(value.to_bytes(1, "little", signed=True) for value in row)


def scaled(encoder: dict[str, Any], scale: float | None) -> dict[str, Any]:
    """`E` with its fixed scale, if there is one (§7)."""
    return encoder if scale is None else encoder | {"scale": float(scale).hex()}


def identity_configuration(scale: float | None = None) -> dict[str, Any]:
    """`E` of the identity encoder (§7)."""
    return scaled({"kind": "identity"}, scale)


def random_projection_configuration(
    n_codes: int, seed: int, activation: str = "relu", scale: float | None = None
) -> dict[str, Any]:
    """`E` of the random projection (§7)."""
    encoder = {"kind": "random-projection", "codes": n_codes, "seed": seed}
    return scaled(encoder if activation == "relu" else encoder | {"activation": activation}, scale)


def two_streams_configuration(
    n_codes: int, seed: int, ratio: float, activation: str = "relu", other: str = "tanh", scale: float | None = None
) -> dict[str, Any]:
    """`E` of two streams (§7)."""
    encoder = {"kind": "two-streams", "codes": n_codes, "seed": seed, "activation": activation, "compensation": other}
    return scaled(encoder | {"ratio": float(ratio).hex()}, scale)


def gaussian_kernel_configuration(
    centres: Sequence[Sequence[float]], bandwidth: float, scale: float | None = None
) -> dict[str, Any]:
    """`E` of the Gaussian kernel (§7)."""
    digest = hashlib.sha256(b"".join(int8_bytes(quantise(centre, scale)) for centre in centres)).hexdigest()
    shape = [len(centres), len(centres[0])]
    encoder = {"kind": "gaussian-kernel", "bandwidth": float(bandwidth).hex(), "centres": digest, "shape": shape}
    return scaled(encoder, scale)


def configuration(encoder: dict[str, Any], gamma: int, grid_bits: int, backbone: str | None = None) -> dict[str, Any]:
    """The configuration, as JSON values (§7)."""
    settings = {"encoder": encoder, "format": 1, "gamma": gamma, "grid_bits": grid_bits}
    return settings if backbone is None else settings | {"backbone": backbone}


def configuration_digest(encoder: dict[str, Any], gamma: int, grid_bits: int, backbone: str | None = None) -> bytes:
    """SHA-256 of the configuration (§7)."""
    settings = configuration(encoder, gamma, grid_bits, backbone)
    return hashlib.sha256(canonical_json(settings).encode("ascii")).digest()


def precomputed_digest(n_features: int, name: str) -> str:
    """The digest of the backbone `Precomputed` (§7)."""
    about = {"features": n_features, "kind": "precomputed", "name": name}
    return hashlib.sha256(canonical_json(about).encode("ascii")).hexdigest()


def model_digest(configuration: bytes, d0: int, classes: Sequence[Label], n: Matrix) -> bytes:
    """SHA-256 of a model; with no sample, `d0 = 0` and both lists are empty (§7)."""
    content = b"neverseen:model:1" + configuration + u64(d0) + u64(len(n)) + u64(len(classes))
    for label in classes:
        content += prefixed(label_text(label))
    for row in n:
        for value in row:
            content += value.to_bytes(8, "little", signed=True)
    return hashlib.sha256(content).digest()


def statistics_digest(sums: Statistics) -> bytes:
    """SHA-256 of the sums (§7)."""
    content = b"neverseen:statistics:1" + u64(len(sums.gram))
    for place, label in enumerate(sums.classes):
        content += prefixed(label_text(label)) + u64(sums.counts[place])
        content += b"".join(i64(row[place]) for row in sums.cross)
    return hashlib.sha256(content + b"".join(map(i64, triangle(sums.gram)))).digest()


def i64(value: int) -> bytes:
    """Eight bytes, little-endian, signed."""
    return value.to_bytes(8, "little", signed=True)


def triangle(matrix: Matrix) -> Row:
    """The upper triangle with the diagonal, row by row (§8.2)."""
    return [value for place, row in enumerate(matrix) for value in row[place:]]


def fingerprint(dtype: str, shape: Row, body: bytes) -> bytes:
    """Unkeyed BLAKE2b of a raw sample that is an array (§7)."""
    head = canonical_json(["array", dtype, shape]).encode("ascii")
    return hashlib.blake2b(u64(len(head)) + head + body, digest_size=16, person=b"neverseen:sample").digest()


def fingerprint_of_rows(prints: Sequence[bytes]) -> bytes:
    """That of a sample, given those of its rows in order (§3.2)."""
    head = canonical_json(["rows", len(prints)]).encode("ascii")
    return hashlib.blake2b(
        u64(len(head)) + head + b"".join(prints), digest_size=16, person=b"neverseen:sample"
    ).digest()


def key_check(key: bytes) -> str:
    """What tells a key from others (§8.1)."""
    return hashlib.blake2b(b"", digest_size=8, key=key, person=b"neverseen:key-id").hexdigest()


def member_digest(configuration: bytes, key: bytes, label: Label, q: Row) -> bytes:
    """Keyed BLAKE2b of one sample (§7)."""
    content = configuration + prefixed(label_text(label)) + int8_bytes(q)
    return hashlib.blake2b(content, digest_size=16, key=key, person=b"neverseen:member").digest()


def ticket_number(configuration: bytes, key: bytes, id_text: str) -> bytes:
    """Keyed BLAKE2b of a sample's id (§7)."""
    return hashlib.blake2b(
        configuration + id_text.encode("ascii"), digest_size=16, key=key, person=b"neverseen:ticket"
    ).digest()


def ticket_number_of_owner(configuration: bytes, key: bytes, owner_text: str, id_text: str) -> bytes:
    """Keyed BLAKE2b of an owner and an id, as stores have it (§7)."""
    about = configuration + prefixed(owner_text) + id_text.encode("ascii")
    return hashlib.blake2b(about, digest_size=16, key=key, person=b"neverseen:owned").digest()


def ticket_content(configuration: bytes, key: bytes, class_text: str, fingerprint: bytes) -> bytes:
    """Keyed BLAKE2b of a raw sample and its class (§7)."""
    return hashlib.blake2b(
        configuration + fingerprint + class_text.encode("ascii"), digest_size=16, key=key, person=b"neverseen:raw"
    ).digest()


def receipt_parts(token: bytes, key: bytes) -> tuple[bytes, bytes, str, str, str, Row]:
    """Model, fingerprint, id, owner, label and features of a receipt without a salt (§9)."""
    assert token[:4] == b"NSR1"
    return _receipt_parts(token, key, 0)[1:]


def salted_receipt_parts(token: bytes, key: bytes) -> tuple[bytes, bytes, bytes, str, str, str, Row]:
    """Salt, and the same, of a receipt that has one (§9)."""
    assert token[:4] == b"NSR2"
    return _receipt_parts(token, key, 16)


def _receipt_parts(token: bytes, key: bytes, salt_size: int) -> tuple[bytes, bytes, bytes, str, str, str, Row]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    sealing_key = hashlib.blake2b(b"", digest_size=32, key=key, person=b"neverseen:seal").digest()
    assert int.from_bytes(token[4:8], "little") == len(token)
    assert token[8:16] == hashlib.blake2b(b"", digest_size=8, key=key, person=b"neverseen:key-id").digest()
    content = AESGCMSIV(sealing_key).decrypt(token[16:28], token[28:], token[:28])
    assert token[16:28] == hashlib.blake2b(content, digest_size=12, key=key, person=b"neverseen:nonce").digest()
    first = 38 + salt_size
    ends = [first]
    for place in (first - 6, first - 4, first - 2):
        ends.append(ends[-1] + int.from_bytes(content[place : place + 2], "little"))
    texts = [content[start:end].decode("ascii") for start, end in pairwise(ends)]
    padded = first + -(-(ends[-1] - first) // 32) * 32
    assert not any(content[ends[-1] : padded])
    features = [byte - 256 if byte > 127 else byte for byte in content[padded:]]
    salt = content[32 : 32 + salt_size]
    return salt, content[:16], content[16:32], texts[0], texts[1], texts[2], features


def prefixed(text: str) -> bytes:
    """A text with its length in front (§7)."""
    return u64(len(text)) + text.encode("ascii")


# §8 the saved file

Tensor = tuple[int, list[int], Row]  # bytes of an entry, shape, entries; entries of one byte in "members" are unsigned


def narrowest(values: Row, shape: Row) -> Tensor:
    """The first of 1, 2, 4 and 8 bytes that holds every entry (§8.2)."""
    width = next(n for n in (1, 2, 4, 8) if all(-(2 ** (8 * n - 1)) <= value < 2 ** (8 * n - 1) for value in values))
    return width, shape, values


def tensor_file(about: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Header and tensors of a file (§8, §8.1)."""
    header: dict[str, Any] = {}
    body = b""
    for name in sorted(tensors):
        width, shape, values = tensors[name]
        unsigned = name in ("members", "tickets")
        start = len(body)
        body += b"".join(value.to_bytes(width, "little", signed=not unsigned) for value in values)
        kind = "U8" if unsigned else {1: "I8", 2: "I16", 4: "I32", 8: "I64"}[width]
        header[name] = {"data_offsets": [start, len(body)], "dtype": kind, "shape": shape}
    joined = canonical_json(about).encode("ascii") + canonical_json(header).encode("ascii") + body
    about = about | {"sha256": hashlib.sha256(joined).hexdigest()}
    header["__metadata__"] = {"neverseen": canonical_json(about)}
    head = canonical_json(header).encode("ascii")
    head += b" " * (-len(head) % 8)
    return u64(len(head)) + head + body


def saved_model(
    settings: dict[str, Any], d0: int, sums: Statistics, members: list[bytes], tickets: list[bytes], key: bytes
) -> bytes:
    """The file of a model that tracks no classes, without its key (§8)."""
    d = len(sums.gram)
    about = {
        "classes": [label_text(label) for label in sums.classes],
        "configuration": settings,
        "counts": sums.counts,
        "format": "neverseen-model-1",
        "key": None,
        "key_check": key_check(key),
        "n_features": d0,
        "track_classes": False,
    }
    columns = [row[place] for place in range(len(sums.classes)) for row in sums.cross]
    tensors: dict[str, Tensor] = {
        "gram": narrowest(triangle(sums.gram), [d * (d + 1) // 2]),
        "members": (1, [len(members), 16], list(b"".join(members))),
        "sums": (8, [len(sums.classes), d], columns),
    }
    if tickets:
        tensors["tickets"] = (1, [len(tickets), 48], list(b"".join(sorted(tickets))))
    return tensor_file(about, tensors)


# §9 receipts


def receipt(
    key: bytes,
    configuration: bytes,
    fingerprint: bytes,
    id_text: str,
    owner: str,
    label: str,
    q: Row,
    salt: bytes = b"",
) -> bytes:
    """Seal a receipt, with a salt as stores have it or without (§9.1)."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    texts = [text.encode("ascii") for text in (id_text, owner, label)]
    joined = b"".join(texts)
    lengths = b"".join(len(text).to_bytes(2, "little") for text in texts)
    content = configuration[:16] + fingerprint + salt + lengths + joined + bytes(-len(joined) % 32) + int8_bytes(q)
    nonce = hashlib.blake2b(content, digest_size=12, key=key, person=b"neverseen:nonce").digest()
    head = (
        (b"NSR2" if salt else b"NSR1")
        + (28 + len(content) + 16).to_bytes(4, "little")
        + bytes.fromhex(key_check(key))
        + nonce
    )
    sealing_key = hashlib.blake2b(b"", digest_size=32, key=key, person=b"neverseen:seal").digest()
    sealed: bytes = AESGCMSIV(sealing_key).encrypt(nonce, content, head)
    return head + sealed


def receipt_line(token: bytes, id_text: str, owner: str, label: str) -> str:
    """A line of a file of receipts (§9.3)."""
    said = {"id": json.loads(id_text), "label": json.loads(label), "owner": json.loads(owner)}
    return canonical_json(said | {"receipt": base64.urlsafe_b64encode(token).decode("ascii")}) + "\n"


def commitment(token: bytes) -> str:
    """What stands for a receipt in a certificate (§10.2)."""
    return hashlib.sha256(b"neverseen:commitment:1" + token).hexdigest()


# §10 versions and certificates


class Witness(NamedTuple):
    """What a version has beside its weights (§10.1)."""

    bits: int
    rests: Matrix  # (d, C)
    unproved: Row


def witness(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int) -> Witness:
    """Bits, rests and unproved columns, by the four steps of §10.1."""
    d, classes = len(gram), len(cross[0])
    exact, n = exact_weights(gram, cross, gamma), weights(gram, cross, gamma, grid_bits)
    root = math.isqrt(d - 1) + 1
    b = (max(gram[i][i] for i in range(d)) + gamma).bit_length()
    s = (d - 1).bit_length()
    fits = [53 - -(-b // k) - s for k in (1, 2, 3)]
    width = min(40, 62 - b - s, next((f for f in fits if f >= 16), fits[2]))
    wide = {
        j for j in range(classes) for i in range(d) if abs((n[i][j] + 2 ** (grid_bits - 1)) >> grid_bits) > 2**width
    }
    trace = sum(gram[i][i] + gamma for i in range(d))
    first = min(60, (root * (trace // gamma + 1)).bit_length() + 20)
    for t in (first, 60):
        scaled = [[2**t * (2**grid_bits * exact[i][j] - n[i][j]) for j in range(classes)] for i in range(d)]
        m = [[round(value) for value in row] for row in scaled]
        proved = []
        for j in range(classes):
            errors = [scaled[i][j] - m[i][j] for i in range(d)]
            residual = [
                sum((gram[i][k] + gamma * (i == k)) * errors[k] for k in range(d)) for i in range(d)
            ]  # R = A (2^t Z - M), integers
            r = max(abs(value) for value in residual)
            bound = root * r / gamma
            fine = all(
                abs(m[i][j]) + bound < 2 ** (t - 1) or (r == 0 and abs(m[i][j]) == 2 ** (t - 1) and n[i][j] % 2 == 0)
                for i in range(d)
            )
            proved.append(fine and j not in wide)
        if all(proved):
            break
    unproved = [j for j in range(classes) if not proved[j]]
    if len(unproved) == classes:
        return Witness(1, [[0] * classes for _ in range(d)], unproved)
    return Witness(t, [[0 if j in unproved else row[j] for j in range(classes)] for row in m], unproved)


def version_file(settings: dict[str, Any], d0: int, sums: Statistics, gamma: int, grid_bits: int) -> bytes:
    """The file of a published version (§10.1)."""
    shape = [len(sums.gram), len(sums.classes)]
    proof = witness(sums.gram, sums.cross, gamma, grid_bits)
    about = {
        "bits": proof.bits,
        "classes": [label_text(label) for label in sums.classes],
        "configuration": settings,
        "format": "neverseen-version-1",
        "n_features": d0,
        "unproved": proof.unproved,
    }
    if settings["gamma"] == "auto":
        about["gamma"] = gamma
    n = weights(sums.gram, sums.cross, gamma, grid_bits)
    return tensor_file(
        about,
        {
            "rests": narrowest([value for row in proof.rests for value in row], shape),
            "weights": (8, shape, [value for row in n for value in row]),
        },
    )


def signed_certificate(content: dict[str, Any], secret: bytes) -> str:
    """A certificate: what it says, its key and its signature; of format 2 if it speaks of an audit log (§10.2)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    signer = Ed25519PrivateKey.from_private_bytes(secret)
    number = "2" if "audit" in content else "1"
    said = content | {"format": f"neverseen-certificate-{number}", "key": signer.public_key().public_bytes_raw().hex()}
    signature = signer.sign(f"neverseen:certificate:{number}{canonical_json(said)}".encode("ascii"))
    return canonical_json(said | {"signature": signature.hex()}) + "\n"


# §10.3 the held tree


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def bit_of(commitment: bytes, place: int) -> int:
    """A bit of a commitment: bit 0 is the highest of the first byte."""
    return int.from_bytes(commitment, "big") >> (255 - place) & 1


def held_hash(commitments: Iterable[bytes], depth: int = 0) -> bytes:
    """The hash of a set at a depth; at depth 0, the root (§10.3)."""
    members = list(commitments)
    if not members:
        return bytes(32)
    if len(members) == 1:
        return sha256(b"neverseen:leaf:1", members[0])
    left, right = ([each for each in members if bit_of(each, depth) == side] for side in (0, 1))
    return sha256(b"neverseen:node:1", held_hash(left, depth + 1), held_hash(right, depth + 1))


def held_path(commitments: Iterable[bytes], commitment: bytes) -> tuple[bytes | None, list[bytes]]:
    """Leaf and siblings of a path (§10.3)."""
    members, siblings = list(commitments), list[bytes]()
    while len(members) > 1:
        depth = len(siblings)
        halves = [[each for each in members if bit_of(each, depth) == side] for side in (0, 1)]
        mine = bit_of(commitment, depth)
        siblings.append(held_hash(halves[1 - mine], depth + 1))
        members = halves[mine]
    return (members[0] if members else None), siblings


def held_climb(leaf: bytes | None, commitment: bytes, siblings: Sequence[bytes]) -> bytes:
    """The root that a proof leads to (§10.3, rule 4)."""
    found = bytes(32) if leaf is None else sha256(b"neverseen:leaf:1", leaf)
    for depth in range(len(siblings) - 1, -1, -1):
        pair = (siblings[depth], found) if bit_of(commitment, depth) else (found, siblings[depth])
        found = sha256(b"neverseen:node:1", *pair)
    return found


def held_proof(commitments: Iterable[bytes], commitment: bytes, number: int, digest: str) -> str:
    """The text of a proof, which names a certificate (§10.3)."""
    members = list(commitments)
    leaf, siblings = held_path(members, commitment)
    said = {
        "certificate": {"digest": digest, "number": number},
        "commitment": commitment.hex(),
        "format": "neverseen-proof-1",
        "leaf": None if leaf is None else leaf.hex(),
        "root": held_hash(members).hex(),
        "siblings": [each.hex() for each in siblings],
    }
    return canonical_json(said) + "\n"


def proof_shows(text: str) -> str:
    """What a proof shows: "presence", "absence", or "nothing" if it does not hold (§10.3)."""
    try:
        said = json.loads(text.encode("ascii"))
        assert canonical_json(said) + "\n" == text
        assert len(text) <= 2**15
        assert list(said) == ["certificate", "commitment", "format", "leaf", "root", "siblings"]
        assert list(said["certificate"]) == ["digest", "number"]
        assert said["format"] == "neverseen-proof-1"
        assert type(said["certificate"]["number"]) is int
        assert 1 <= said["certificate"]["number"] <= 2**53 - 1
        assert isinstance(said["siblings"], list)
        leaf, root, wanted, siblings = said["leaf"], said["root"], said["commitment"], said["siblings"]
        for word in (said["certificate"]["digest"], root, wanted, *siblings, *([] if leaf is None else [leaf])):
            assert isinstance(word, str)
            assert len(word) == 64
            assert set(word) <= set("0123456789abcdef")
        assert len(siblings) <= 256
        assert siblings[-1:] != ["0" * 64]
        depth, end, about = len(siblings), None if leaf is None else bytes.fromhex(leaf), bytes.fromhex(wanted)
        assert end is None or all(bit_of(end, place) == bit_of(about, place) for place in range(depth))
        assert held_climb(end, about, [bytes.fromhex(each) for each in siblings]).hex() == root
    except (AssertionError, ValueError, KeyError, TypeError):
        return "nothing"
    return "presence" if leaf == wanted else "absence"


# §12 the audit log


def audit_key(membership: bytes) -> bytes:
    """The key of a log's codes (§12.1)."""
    return hashlib.blake2b(b"", digest_size=32, key=membership, person=b"neverseen:audit").digest()


def audit_code(entry: dict[str, Any], key: bytes) -> str:
    """The code of a line, which says this besides (§12.1)."""
    said = canonical_json(entry).encode("ascii")
    return hashlib.blake2b(said, digest_size=32, key=key, person=b"neverseen:line").hexdigest()


def audit_lines(entries: Iterable[dict[str, Any]], key: bytes) -> list[str]:
    """The lines of a log, from the first (§12.1)."""
    lines: list[str] = []
    previous = "0" * 64
    for number, entry in enumerate(entries, 1):
        said = entry | {"line": number, "previous": previous}
        previous = audit_code(said, key)
        lines.append(canonical_json(said | {"mac": previous}) + "\n")
    return lines
