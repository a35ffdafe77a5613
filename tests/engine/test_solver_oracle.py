"""The certified solve against exact fractions: random systems, ties, near-ties, singular data, bad hints.

Every construction checks itself first: a tie is asserted to be one, and a near-tie to be as near as claimed.
"""
# ruff: noqa: S311 (seeded on purpose: the systems are the same in every run)

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen.engine.solver import Solution, solve
from tests import oracle
from tests.oracle import Matrix, Row

HALF = Fraction(1, 2)
GAMMAS = [1, 2, 3, 7, 1001, 2**16, 2**16 + 1, 2**30, 2**30 - 35]
Hint = Solution | npt.NDArray[np.floating] | None
repeatable = settings(derandomize=True, deadline=None, max_examples=100)
fewer = settings(repeatable, max_examples=40)


# Helpers: integer matrices as lists of rows


def product(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def transpose(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def diagonal(values: Row) -> Matrix:
    return [[value if i == j else 0 for j in range(len(values))] for i, value in enumerate(values)]


def plus(matrix: Matrix, ridge: int) -> Matrix:
    """`matrix + ridge * I`; with the sign of `ridge` turned, the way back from `A` to `G`."""
    return [[value + ridge * (i == j) for j, value in enumerate(row)] for i, row in enumerate(matrix)]


def scaled(factor: int, matrix: Matrix) -> Matrix:
    return [[factor * value for value in row] for row in matrix]


def integers(rng: random.Random, rows: int, columns: int, limit: int) -> Matrix:
    return [[rng.randint(-limit, limit) for _ in range(columns)] for _ in range(rows)]


def determinant(matrix: Matrix) -> int:
    """The product of the pivots of a positive definite matrix; also the proof that it is one."""
    rows = [[Fraction(value) for value in row] for row in matrix]
    result = Fraction(1)
    for k, pivot_row in enumerate(rows):
        assert pivot_row[k] > 0, "not positive definite"
        result *= pivot_row[k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / pivot_row[k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], pivot_row, strict=True)]
    assert result.denominator == 1
    return result.numerator


def bezout(values: Row) -> tuple[int, Row]:
    """The greatest common divisor of `values`, and integers whose product with them is it."""
    divisor = 0
    coefficients: Row = []
    for value in values:
        old, s, t, (a, b) = divisor, (1, 0), (0, 1), (divisor, value)
        while b:
            quotient = a // b
            a, b = b, a - quotient * b
            s, t = t, (s[0] - quotient * t[0], s[1] - quotient * t[1])
        divisor = a
        assert divisor == s[0] * old + s[1] * value
        coefficients = [c * s[0] for c in coefficients] + [s[1]]
    return (divisor, coefficients) if divisor > 0 else (-divisor, [-c for c in coefficients])


def distances(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int) -> list[list[Fraction]]:
    """How far each `2^p W*` lies above (+) or below (-) the nearest half-integer; 0 is a tie."""
    exact = oracle.exact_weights(gram, cross, gamma)
    return [[2**grid_bits * w - (math.floor(2**grid_bits * w) + HALF) for w in row] for row in exact]


def count_ties(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int) -> int:
    return sum(distance == 0 for row in distances(gram, cross, gamma, grid_bits) for distance in row)


def solved(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int, hint: Hint = None) -> Solution:
    return solve(np.array(gram, dtype=np.int64), np.array(cross, dtype=np.int64), gamma, grid_bits=grid_bits, hint=hint)


def assert_exact(gram: Matrix, cross: Matrix, gamma: int, grid_bits: int, hint: Hint = None) -> None:
    """The solver's weights are the oracle's. Inputs stay in the range that the solver is asked to serve."""
    assert max(abs(value) for row in [*gram, *cross] for value in row) < 2**55
    expected = oracle.weights(gram, cross, gamma, grid_bits)
    assert max(abs(value) for row in expected for value in row) < 2**62
    weights = solved(gram, cross, gamma, grid_bits, hint).weights
    assert weights.dtype == np.int64
    assert weights.tolist() == expected


# (a) Random systems


@st.composite
def samples(draw: st.DrawFn) -> tuple[Matrix, Matrix]:
    """Gram and cross of a few labelled codes with multiplicities: duplicates, zero rows, empty classes."""
    d, n_classes = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    limit = draw(st.sampled_from([1, 3, 127]))
    code = st.lists(st.integers(-limit, limit), min_size=d, max_size=d)
    sample = st.tuples(code, st.integers(0, n_classes - 1), st.sampled_from([1, 1, 1, 2, 1000, 2**20]))
    held = draw(st.lists(st.one_of(sample, st.tuples(st.just([0] * d), st.just(0), st.just(1))), max_size=24))
    gram = [[sum(m * c[i] * c[j] for c, _, m in held) for j in range(d)] for i in range(d)]
    cross = [[sum(m * c[i] for c, y, m in held if y == k) for k in range(n_classes)] for i in range(d)]
    return gram, cross


@repeatable
@given(system=samples(), gamma=st.sampled_from(GAMMAS), grid_bits=st.sampled_from([1, 20, 40, 48]))
def test_random_samples(system: tuple[Matrix, Matrix], gamma: int, grid_bits: int) -> None:
    assert_exact(*system, gamma, grid_bits)


@repeatable
@given(
    seed=st.integers(0, 2**32),
    d=st.integers(1, 8),
    rank=st.integers(1, 10),
    bits=st.integers(1, 25),
    gamma=st.one_of(st.sampled_from(GAMMAS), st.integers(1, 2**30)),
    grid_bits=st.sampled_from([1, 20, 40]),
)
def test_random_matrices(seed: int, d: int, rank: int, bits: int, gamma: int, grid_bits: int) -> None:
    """`G = L L'` for integers up to 2^25, of full rank or less, and a cross matrix in its range."""
    rng = random.Random(seed)
    factor = integers(rng, d, rank, 2**bits)
    gram = product(factor, transpose(factor))
    cross = product(factor, integers(rng, rank, rng.randint(1, 4), 100))
    assert_exact(gram, cross, gamma, grid_bits)


def test_layout_and_reuse_of_the_arguments() -> None:
    """The memory order of the arguments is no part of the system, and they are left as they were."""
    rng = random.Random(1)
    factor = integers(rng, 6, 9, 127)
    gram, cross = product(factor, transpose(factor)), integers(rng, 6, 3, 500)
    expected = oracle.weights(gram, cross, 5, 40)
    wide = np.zeros((12, 12), dtype=np.int64)
    wide[::2, ::2] = gram
    for g in (np.array(gram, dtype=np.int64, order="F"), wide[::2, ::2]):
        b = np.array(cross, dtype=np.int64, order="F")
        g.flags.writeable = b.flags.writeable = False
        assert solve(g, b, 5, grid_bits=40).weights.tolist() == expected
        assert (g.tolist(), b.tolist()) == (gram, cross)


def test_grid_bits_are_forty_unless_said() -> None:
    gram, cross = np.array([[5]], dtype=np.int64), np.array([[3, -3]], dtype=np.int64)
    assert solve(gram, cross, 2).weights.tolist() == oracle.weights([[5]], [[3, -3]], 2, 40)


@pytest.mark.parametrize("gamma", [1, 3, 2**30])
@pytest.mark.parametrize("grid_bits", [1, 40])
def test_weights_that_are_zero(gamma: int, grid_bits: int) -> None:
    """A zero column, a zero entry among others, and entries far under the grid."""
    gram = [[2**50, 0, 0], [0, 10, 3], [0, 3, 10]]
    cross = [[0, 1, -1, 0], [0, 0, 1, 7], [0, 5, 2, 7]]
    assert_exact(gram, cross, gamma, grid_bits)
    assert_exact(gram, [[0, 0]] * 3, gamma, grid_bits)
    assert_exact([[0] * 3] * 3, [[0, 0]] * 3, gamma, grid_bits)


# (b) Exact ties


@pytest.mark.parametrize("grid_bits", [1, 2, 20, 40, 48])
@pytest.mark.parametrize("gamma", [1, 3, 2**16, 2**30])
def test_ties_in_one_dimension(grid_bits: int, gamma: int) -> None:
    """`gamma + G = 2^(p+1) m`, so `B = n m` has `2^p W* = n / 2`: a tie for odd n."""
    numerators = [n for k in (0, 1, 2, 3, 50, 51) for n in (2 * k + 1, -2 * k - 1)]
    step = 2 ** (grid_bits + 1)
    least = gamma // step + 1  # keeps G non-negative
    for multiple in (least, 3 * least, 32 * least):
        gram, cross = [[step * multiple - gamma]], [[n * multiple for n in [*numerators, 0, 4]]]
        assert count_ties(gram, cross, gamma, grid_bits) == len(numerators)
        assert_exact(gram, cross, gamma, grid_bits)


def test_ties_go_to_even() -> None:
    """The rule spelt out once without the oracle: 2 W* = n / 2."""
    cross = [[1, 3, 5, 7, -1, -3, -5, -7]]
    assert solved([[3]], cross, 1, grid_bits=1).weights.tolist() == [[0, 2, 2, 4, 0, -2, -2, -4]]


@pytest.mark.parametrize("grid_bits", [1, 6, 20, 40])
@pytest.mark.parametrize("gamma", [1, 1001, 2**16])
def test_ties_in_diagonal_systems(grid_bits: int, gamma: int) -> None:
    """Ties stand in one column with thirds, sevenths and integers."""
    step = 2 ** (grid_bits + 1)
    lift = gamma // step + 1  # keeps the Gram matrix non-negative
    totals = [step * lift, 3 * (gamma + 1), 7 * step * lift, step * lift * 5, gamma]
    gram = plus(diagonal(totals), -gamma)
    cross = [
        [lift, -lift, 3 * lift, 2 * lift],
        [1, -1, 2, gamma + 1],
        [7 * lift, 1, -21 * lift, 5],
        [5 * lift, 15 * lift, -5 * lift, 1],
        [1, 0, -1, gamma],
    ]
    ties = distances(gram, cross, gamma, grid_bits)
    assert [distance == 0 for distance in ties[0]] == [True, True, True, False]
    assert not any(distance == 0 for distance in ties[1])
    assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("grid_bits", [1, 5, 20, 40])
@pytest.mark.parametrize("gamma", [1, 3, 2**16, 2**30 - 35])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_ties_in_dense_systems(grid_bits: int, gamma: int, size: int) -> None:
    """`A = 2^(p+1) q M` with `B = M n` has `2^p W* = n / 2q`: ties where n is an odd multiple of q."""
    rng = random.Random(grid_bits * size + gamma)
    odd = 1 if grid_bits == 40 else 105
    factor = integers(rng, size, size, 9)
    lift = gamma // (2 ** (grid_bits + 1) * odd) + 1  # A >= gamma I, so that the Gram matrix is semidefinite
    core = plus(product(factor, transpose(factor)), lift)
    gram = plus(scaled(2 ** (grid_bits + 1) * odd, core), -gamma)
    determinant(plus(gram, 1))
    numerators = [[odd * rng.randrange(-99, 100, 2) for _ in range(4)] for _ in range(size)]
    for row in numerators[::2]:
        row[1] += rng.choice([-1, 1])  # one column mixes ties and near misses
    numerators[0][2] += 1  # and in one only the first entry is none
    cross = product(core, numerators)
    assert count_ties(gram, cross, gamma, grid_bits) == 4 * size - (size + 1) // 2 - 1
    assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("grid_bits", [3, 20, 40])
@pytest.mark.parametrize("size", [3, 4, 6])
@pytest.mark.parametrize("gamma", [1, 2, 77])
def test_ties_through_unimodular_changes_of_basis(grid_bits: int, size: int, gamma: int) -> None:
    """`A = U' D U` with `B = U' c` has `W* = U^-1 (c / D)`: a tie in one entry, others not dyadic.

    Only the last number of D has the power of two. U is unit lower triangular, so W*_0 = c_0 / D_0 and the
    last entry mixes everything; c is then chosen so that its odd denominators cancel.
    """
    rng = random.Random(size + grid_bits)
    lower = [[rng.randint(-2, 2) if j < i else int(i == j) for j in range(size)] for i in range(size)]
    odd = [3**9 * 1009, 5**6 * 1013, 7**5 * 1019, 11**4 * 1021, 13**4 * 1031][: size - 1]
    values = [*odd, 2 ** (grid_bits + 1) * 2**7]
    matrix = product(transpose(lower), product(diagonal(values), lower))
    gram = plus(matrix, -gamma)
    determinant(gram)  # positive definite
    columns = []
    for tie in (1, -1, 3, -3):
        target = [rng.randint(-9, 9) * value if rng.random() < 0.5 else 0 for value in odd]  # integral part
        columns.append(product(transpose(lower), [[c] for c in [*target, tie * 2**7]]))
        target[0] += 1  # the first and those that depend on it leave the dyadic numbers
        columns.append(product(transpose(lower), [[c] for c in [*target, tie * 2**7]]))
    cross = [[column[i][0] for column in columns] for i in range(size)]
    found = distances(gram, cross, gamma, grid_bits)
    assert all(found[size - 1][k] == 0 for k in range(0, 8, 2))
    assert not any(found[0][k] == 0 for k in range(1, 8, 2))
    assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("grid_bits", [1, 2, 3, 4, 5, 6])
def test_ties_found_among_small_samples(grid_bits: int) -> None:
    """Real codes and one-hot labels, searched for ties: on a coarse grid they are common."""
    rng = random.Random(grid_bits)
    found = 0
    while found < 24 // grid_bits:
        d, n = rng.randint(1, 4), rng.randint(1, 5)
        codes = integers(rng, n, d, 3)
        held = oracle.statistics(codes, [rng.randrange(3) for _ in range(n)])
        gamma = rng.choice([1, 2, 3, 4, 5, 8, 16, 2**grid_bits])
        if count_ties(held.gram, held.cross, gamma, grid_bits):
            found += 1
            assert_exact(held.gram, held.cross, gamma, grid_bits)


@pytest.mark.parametrize("copies", [1, 999_983, 10**6, 3 * 10**8])
@pytest.mark.parametrize("multiple", [1, 3, 35])
def test_ties_in_copies_of_one_sample(copies: int, multiple: int) -> None:
    """`gamma + n |c|^2 = 2^(p+1) k`, so `2^p W*_j = m c_j / 2k`: a tie wherever `m c_j / k` is odd."""
    code, grid_bits = [105, -35, 70, 0, 127, -105, 1, 35], 20
    square = copies * sum(c * c for c in code)
    step = 2 ** (grid_bits + 1) * multiple
    gamma = step - square % step
    scale = (square + gamma) // step  # 2^p W*_j = m c_j / (2 multiple scale)
    gram = [[copies * a * b for b in code] for a in code]
    cross = [[m * scale * c for m in (1, -3, 2)] for c in code]
    # multiples of 35 tie for each multiple tried but 3, where 105 does; 127 and 1 tie for 1 alone
    assert count_ties(gram, cross, gamma, grid_bits) >= 4
    assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("others", [4, 16, 60, 120])
def test_tie_beside_a_dense_block(others: int) -> None:
    """One feature of its own ties, while the others give the column a common denominator of thousands of bits.

    Too large for the oracle at the end: the block is then compared with the block solved alone.
    """
    rng = random.Random(others)
    gamma, grid_bits = 2**16, 5
    codes = integers(rng, 2 * others, others, 127)
    block = product(transpose(codes), codes)
    block_cross = product(transpose(codes), [[int(k % 2 == y) for y in range(2)] for k in range(2 * others)])
    gram = [[2**13, *([0] * others)], *([0, *row] for row in block)]  # gamma + 2^13 = 9 * 2^13
    cross = [[3 * 9 * 2**7, -5 * 9 * 2**7], *block_cross]  # 2^p W* = 3/2 and -5/2
    expected = [[2, -2], *solved(block, block_cross, gamma, grid_bits).weights.tolist()]
    if others <= 16:
        assert expected == oracle.weights(gram, cross, gamma, grid_bits)
    assert solved(gram, cross, gamma, grid_bits).weights.tolist() == expected


# (c) Near-ties


def near_tie(matrix: Matrix, i: int, grid_bits: int, excess: int) -> Row | None:
    """A column b with `2^p (A^-1 b)_i = k + 1/2 + excess / (2 det A)`, k an integer; excess is odd.

    With row i of the adjugate, `a`, it reads `2^(p+1) a.b = (2k + 1) det A + excess`. For an odd det A that
    fixes `a.b` modulo det A, and Bezout's coefficients give a b if the entries of `a` have no common divisor;
    else None. That b is huge: taking away `A round(A^-1 b)` moves W* by integers and leaves b as small as A.
    """
    det = determinant(matrix)
    if det % 2 == 0:
        return None
    unit = [[int(j == i)] for j in range(len(matrix))]
    adjugate = [int(det * w) for (w,) in oracle.exact_weights(matrix, unit, 0)]
    divisor, coefficients = bezout(adjugate)
    if divisor != 1:
        return None
    product_wanted = (det + excess) // 2 * pow(2, -grid_bits, det) % det
    huge = [[product_wanted * c] for c in coefficients]
    whole = [[round(w)] for (w,) in oracle.exact_weights(matrix, huge, 0)]
    return [b - taken for (b,), (taken,) in zip(huge, product(matrix, whole), strict=True)]


def excesses(i: int) -> tuple[int, int]:
    return (1, -1) if i % 2 == 0 else (3, -3)


def near_tie_system(rng: random.Random, size: int, bits: int, gamma: int, grid_bits: int) -> tuple[Matrix, Matrix]:
    """A dense system whose column 2i (2i + 1) has entry i just above (below) a tie, by an excess of 1 or 3.

    `2^(p+1) a.b = (2k + 1) det A + excess` fixes k modulo 2: with one of 1 and 3 the near-tie rounds to even,
    as the tie would, and with the other to odd.
    """
    while True:
        factor = integers(rng, size, size, 2**bits)
        gram = product(factor, transpose(factor))
        matrix = plus(gram, gamma)
        columns = [near_tie(matrix, i, grid_bits, excess) for i in range(size) for excess in excesses(i)]
        found = [column for column in columns if column is not None]
        if len(found) == len(columns):
            return gram, transpose(found)


@pytest.mark.parametrize(
    ("size", "bits", "least", "most"),
    [
        (2, 15, 50, 70),
        (3, 14, 70, 100),
        (4, 16, 110, 150),
        (5, 20, 180, 230),
        (6, 21, 230, 280),
        (8, 22, 320, 390),
    ],
)
@pytest.mark.parametrize(("gamma", "grid_bits"), [(1, 40), (2**16, 20), (2**30 - 35, 40), (12, 1)])
def test_near_ties(size: int, bits: int, least: int, most: int, gamma: int, grid_bits: int) -> None:
    """One entry in each column is as near to a tie as its determinant allows: 2^-least to 2^-most."""
    rng = random.Random(1000 * size + gamma + grid_bits)
    gram, cross = near_tie_system(rng, size, bits, gamma, grid_bits)
    nearness = Fraction(1, 2 * determinant(plus(gram, gamma)))
    assert Fraction(1, 2**most) < nearness < Fraction(1, 2**least)
    found = distances(gram, cross, gamma, grid_bits)
    for i in range(size):
        assert found[i][2 * i : 2 * i + 2] == [excess * nearness for excess in excesses(i)]
    expected = oracle.weights(gram, cross, gamma, grid_bits)
    assert {expected[i][2 * i] % 2 for i in range(size)} == {0, 1}
    assert_exact(gram, cross, gamma, grid_bits)


@fewer
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 5),
    bits=st.integers(4, 21),
    gamma=st.sampled_from(GAMMAS),
    grid_bits=st.sampled_from([1, 20, 40, 48]),
    exponent=st.integers(0, 90),
    sign=st.sampled_from([-1, 1]),
)
def test_near_ties_at_every_distance(
    seed: int, size: int, bits: int, gamma: int, grid_bits: int, exponent: int, sign: int
) -> None:
    """The excess over a tie is an odd number of about 2^exponent, over twice the determinant."""
    rng = random.Random(seed)
    column = None
    while column is None:
        factor = integers(rng, size, size, 2**bits)
        gram = product(factor, transpose(factor))
        i = rng.randrange(size)
        column = near_tie(plus(gram, gamma), i, grid_bits, sign * (2**exponent | 1))
    cross = [[b, -b] for b in column]
    det = determinant(plus(gram, gamma))
    if 2 * 2**exponent < det:
        nearness = Fraction(sign * (2**exponent | 1), 2 * det)
        assert distances(gram, cross, gamma, grid_bits)[i] == [nearness, -nearness]
    assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("grid_bits", [1, 20, 40])
@pytest.mark.parametrize("gamma", [1, 2**16 + 1, 2**30])
def test_ties_and_near_ties_in_one_system(grid_bits: int, gamma: int) -> None:
    """`A = 2^(p+1) M`: a column M n ties in all entries, and others miss one tie by `1 / (2 det M)`."""
    rng = random.Random(grid_bits)
    lift = gamma // 2 ** (grid_bits + 1) + 1
    size, above = 6, None
    while above is None:
        core = integers(rng, size, size, 2**4 if grid_bits == 40 else 2**10)
        core = plus(product(core, transpose(core)), lift)
        above = near_tie(core, 3, 0, 1)  # (M^-1 above)_3 = k + 1/2 + 1 / (2 det M)
    # Doubling it: (M^-1 2 above)_3 = 2k + 1 + 1 / det M, and 2^p W* is half of that. The next one has k + 1.
    following = [b + row[3] for b, row in zip(above, core, strict=True)]
    odd = [[rng.randrange(-9, 10, 2)] for _ in range(size)]
    tie = [b for (b,) in product(core, odd)]
    columns = [[sign * 2 * b for b in column] for column in (above, following) for sign in (1, -1)]
    cross = transpose([tie, *columns, [-b for b in tie]])
    gram = plus(scaled(2 ** (grid_bits + 1), core), -gamma)
    nearness = Fraction(1, 2 * determinant(core))
    found = distances(gram, cross, gamma, grid_bits)
    assert all(row[0] == row[5] == 0 for row in found)
    assert found[3][1:5] == [nearness, -nearness, nearness, -nearness]
    assert nearness < Fraction(1, 2**40)
    assert_exact(gram, cross, gamma, grid_bits)


# (d) Singular and badly conditioned data


@pytest.mark.parametrize("gamma", [1, 2, 3, 2**16, 2**30])
@pytest.mark.parametrize("d", [1, 5, 12])
@pytest.mark.parametrize("copies", [1, 10**6])
def test_one_code(gamma: int, d: int, copies: int) -> None:
    """One sample, or a million equal ones, of which three bear another label."""
    rng = random.Random(d)
    code = [rng.randint(1, 127) * rng.choice([-1, 1]) for _ in range(d)]
    gram = [[copies * a * b for b in code] for a in code]
    cross = [[copies * c - 3 * c, 3 * c] for c in code]
    for grid_bits in (20, 40, 48):
        assert_exact(gram, cross, gamma, grid_bits)


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 2**16, 2**30])
def test_zero_gram(gamma: int) -> None:
    """`W* = B / gamma`: integers, ties, thirds."""
    cross = [[1, -1, 2**20], [3, -5, 7], [2**15, -(2**15), 3 * 2**15], [0, 100, 2**15 + 1]]
    for grid_bits in (1, 15, 40):
        assert_exact([[0] * 4] * 4, cross, gamma, grid_bits)


@pytest.mark.parametrize("gamma", [1, 2, 3, 2**16, 2**30])
@pytest.mark.parametrize(("d", "rank"), [(2, 1), (6, 2), (12, 3), (12, 11), (12, 12)])
@pytest.mark.parametrize("copies", [1, 10**6, 2**34])
def test_rank_deficient_samples(gamma: int, d: int, rank: int, copies: int) -> None:
    """Fewer codes than features, each held many times: the condition number reaches 2^52."""
    codes = integers(random.Random(rank), rank, d, 127)
    gram = scaled(copies, product(transpose(codes), codes))
    onehot = [[int(k % 3 == y) for y in range(3)] for k in range(rank)]
    cross = scaled(copies, product(transpose(codes), onehot))
    assert_exact(gram, cross, gamma, 40)


@pytest.mark.parametrize("gamma", [1, 3, 1001])
@pytest.mark.parametrize("spread", [2**19, 2**22, 2**25])
def test_condition_beyond_float64(gamma: int, spread: int) -> None:
    """A Gram matrix of rank 3 with entries up to 2^54: in float64 gamma vanishes beside them."""
    rng = random.Random(spread)
    factor = integers(rng, 6, 3, spread)
    gram = product(factor, transpose(factor))
    for cross in (product(factor, integers(rng, 3, 2, 9)), integers(rng, 6, 2, 1000)):
        assert_exact(gram, cross, gamma, 40)


@pytest.mark.parametrize("gamma", [1, 2**16])
def test_almost_parallel_features(gamma: int) -> None:
    """Two features that differ in one sample of many."""
    codes = [[100, 100, 7], [127, 126, -3], [-90, -90, 1]]
    copies = diagonal([10**7, 1, 10**9])
    weighted = product(transpose(codes), copies)  # (d, n), a column for each code
    gram = product(weighted, codes)
    cross = product(weighted, [[1, 0], [0, 1], [0, 1]])
    assert_exact(gram, cross, gamma, 40)


# (e) Hints never change bits


def plain_system() -> tuple[Matrix, Matrix, int, int]:
    rng = random.Random(5)
    factor = integers(rng, 6, 9, 127)
    return product(factor, transpose(factor)), integers(rng, 6, 3, 2000), 3, 40


def tie_system() -> tuple[Matrix, Matrix, int, int]:
    rng = random.Random(6)
    factor = integers(rng, 6, 6, 9)
    core = plus(product(factor, transpose(factor)), 1)
    cross = product(core, [[rng.randrange(-99, 100, 2) for _ in range(3)] for _ in range(6)])
    return plus(scaled(2**21, core), -7), cross, 7, 20


def near_system() -> tuple[Matrix, Matrix, int, int]:
    return *near_tie_system(random.Random(7), 5, 16, 3, 40), 3, 40


def singular_system() -> tuple[Matrix, Matrix, int, int]:
    codes = integers(random.Random(8), 2, 6, 127)
    return scaled(10**6, product(transpose(codes), codes)), scaled(10**6, transpose(codes)), 1, 40


SYSTEMS = [plain_system, tie_system, near_system, singular_system]
FloatArray = npt.NDArray[np.float64]

ARRAY_HINTS: dict[str, Callable[[FloatArray], npt.NDArray[np.floating]]] = {
    "inverse": lambda inverse: inverse,
    "float32 inverse": lambda inverse: inverse.astype(np.float32),
    "fortran order": np.asfortranarray,
    "zeros": np.zeros_like,
    "negative zeros": lambda inverse: -np.zeros_like(inverse),
    "nan": lambda inverse: np.full_like(inverse, np.nan),
    "one nan": lambda inverse: np.where(np.arange(inverse.size).reshape(inverse.shape) == 1, np.nan, inverse),
    "infinite": lambda inverse: np.full_like(inverse, np.inf),
    "one infinite": lambda inverse: np.where(np.eye(len(inverse)) > 0, np.inf, inverse),
    "negated": lambda inverse: -inverse,
    "doubled": lambda inverse: 2 * inverse,
    "halved": lambda inverse: inverse / 2,
    "huge": lambda inverse: np.full_like(inverse, 1e308),
    "tiny": lambda inverse: np.full_like(inverse, 5e-324),
    "identity": lambda inverse: np.eye(len(inverse)),
    "matrix, not inverse": np.linalg.inv,
    "reversed": lambda inverse: np.ascontiguousarray(inverse[::-1]),
    "random": lambda inverse: np.random.default_rng(0).normal(size=inverse.shape),
    "transposed": lambda inverse: (inverse + np.triu(np.abs(inverse), 1) / 8).T,
    "disturbed": lambda inverse: inverse * (1 + 1e-3 * np.random.default_rng(1).normal(size=inverse.shape)),
    "singular": lambda inverse: np.outer(inverse[0], inverse[0]),
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", ARRAY_HINTS)
def test_array_hints(system: Callable[[], tuple[Matrix, Matrix, int, int]], kind: str) -> None:
    """An approximate inverse, good or garbage, gives the weights of no hint, and is left as it was."""
    gram, cross, gamma, grid_bits = system()
    unit = diagonal([1] * len(gram))
    inverse = np.array([[float(w) for w in row] for row in oracle.exact_weights(gram, unit, gamma)])
    hint = ARRAY_HINTS[kind](inverse)
    before = hint.tobytes()
    assert_exact(gram, cross, gamma, grid_bits, hint)
    assert hint.tobytes() == before


@pytest.mark.parametrize("system", SYSTEMS)
def test_solutions_as_hints(system: Callable[[], tuple[Matrix, Matrix, int, int]]) -> None:
    """Solutions of the same system, of one more sample, and of others with other gamma, grid and classes."""
    gram, cross, gamma, grid_bits = system()
    d, n_classes = len(gram), len(cross[0])
    code = [7 * (i + 1) - 20 for i in range(d)]
    more = [[g + code[i] * code[j] for j, g in enumerate(row)] for i, row in enumerate(gram)]
    added = [[b + code[i] * (k == 0) for k, b in enumerate(row)] for i, row in enumerate(cross)]
    others = [
        solved(gram, cross, gamma, grid_bits),
        solved(more, added, gamma, grid_bits),
        solved(gram, cross, gamma + 1, grid_bits),
        solved(gram, cross, gamma, grid_bits - 7),
        solved(gram, [row[:1] for row in cross], gamma, grid_bits),  # classes that came later
        solved(gram, [[*row, 1] for row in cross], gamma, grid_bits),  # a class that left
        solved([[0] * d] * d, [[1] * n_classes] * d, 1, grid_bits),
        solved([[0] * d] * d, [[0] * n_classes] * d, 2**30, 1),
        solved(diagonal([2**50] * d), [[3**i] * n_classes for i in range(d)], 5, 40),
    ]
    before = [other.weights.tolist() for other in others]
    for other in others:
        assert_exact(gram, cross, gamma, grid_bits, other)
    assert [other.weights.tolist() for other in others] == before


@fewer
@given(
    system=samples(),
    gamma=st.sampled_from(GAMMAS),
    hinted=st.sampled_from(["array", "bits"]),
    seed=st.integers(0, 2**32),
)
def test_hints_of_any_bits(system: tuple[Matrix, Matrix], gamma: int, hinted: str, seed: int) -> None:
    """An array of ordinary numbers at some scale, or of random bits: any float64 there is."""
    gram, cross = system
    rng = np.random.default_rng(seed)
    shape = (len(gram), len(gram))
    if hinted == "bits":
        hint = rng.integers(0, 2**64, shape, dtype=np.uint64).view(np.float64)
    else:
        hint = rng.normal(size=shape) * 10.0 ** rng.integers(-12, 6)
    assert_exact(gram, cross, gamma, 40, hint)


def test_chain_of_hints() -> None:
    """Each solution hints at the next, over a hundred samples learned and forgotten one at a time."""
    rng = random.Random(9)
    codes = integers(rng, 10, 5, 127)
    held: list[int] = []
    hint: Hint = None
    for _ in range(100):
        held = sorted(set(held) ^ {rng.randrange(10)})
        gram = [[sum(codes[s][i] * codes[s][j] for s in held) for j in range(5)] for i in range(5)]
        cross = [[sum(codes[s][i] for s in held if s % 2 == k) for k in range(2)] for i in range(5)]
        solution = solved(gram, cross, 1, 40, hint)
        assert solution.weights.tolist() == oracle.weights(gram, cross, 1, 40)
        hint = solution
