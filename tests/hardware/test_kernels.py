"""The compiled kernels compute what Python's integers do, on every instruction set here, and refuse wrong arrays."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from neverseen.hardware import choose, compiling, few_rows, kernels
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
SIZES = [0, 1, 2, 7, 31, 32, 33, 100, 257]
LEVELS = range(kernels._level + 1) if kernels.available() else [0]

built = pytest.mark.skipif(not kernels.available(), reason="the kernels are not compiled, or turned off")


@pytest.fixture(params=LEVELS, ids=["any", "avx2", "avx512", "vnni"][: len(LEVELS)])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each instruction set that this processor has."""
    monkeypatch.setattr(kernels, "_level", request.param)
    return int(request.param)


def symmetric(size: int, rng: np.random.Generator, kind: type) -> np.ndarray:
    if kind is np.float64:
        half = np.tril(rng.normal(size=(size, size)))
        return half + np.tril(half, -1).T
    half = np.tril(rng.integers(-(2**63), 2**63 - 1, (size, size), endpoint=True))  # any bits at all
    return half + np.tril(half, -1).T


def numbers(shape: tuple[int, ...], rng: np.random.Generator, kind: type) -> np.ndarray:
    if kind is np.float64:
        return rng.normal(size=shape)
    return rng.integers(-(2**63), 2**63 - 1, shape, endpoint=True)


def wrapped(values: np.ndarray) -> np.ndarray:
    """Python's integers modulo 2**64."""
    return np.array((values + 2**63) % 2**64 - 2**63, dtype=object).astype(np.int64).reshape(values.shape)


def exact(matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The product by Python's integers where that does not take long, else by NumPy's, which wrap."""
    if matrix.size * block.size <= 2**20:
        return wrapped(matrix.astype(object) @ block.astype(object))
    return np.asarray(np.einsum("ij,j...->i...", matrix, block))


def assert_near(found: np.ndarray, left: np.ndarray, right: np.ndarray, before: np.ndarray | float = 0.0) -> None:
    """A float64 product is right up to what a sum of so many terms can lose."""
    reach = np.abs(left) @ np.abs(right) + np.abs(before)
    assert (np.abs(found - (before + left @ right)) <= (left.shape[-1] + 4) * 2.0**-52 * reach).all()


# -- products ----------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize("size", SIZES)
def test_matrix_times_vector(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    for threads in (1, 2, 3):
        matrix, vector = symmetric(size, rng, np.int64), numbers((size,), rng, np.int64)
        found = kernels.times_vector(matrix, vector, threads=threads)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, exact(matrix, vector))
        matrix, vector = symmetric(size, rng, np.float64), numbers((size,), rng, np.float64)
        assert_near(kernels.times_vector(matrix, vector, threads=threads), matrix, vector)


@built
@pytest.mark.parametrize("size", SIZES)
def test_a_matrix_of_integers_times_floats(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    matrix = symmetric(size, rng, np.int64)
    for threads, columns in [(1, 0), (2, 1), (3, 2), (1, 7), (2, 20), (3, 25), (1, 73)]:
        block = numbers((size, columns), rng, np.float64)
        found = kernels.times_block(matrix, block, threads=threads)
        assert found.dtype == np.float64
        assert_near(found, matrix.astype(np.float64), block)
    sizes, sums, squares = kernels.row_moments(matrix)
    floats = matrix.astype(np.float64)
    reach = np.abs(floats).sum(axis=1)
    assert (np.abs(sizes - reach) <= (size + 8) * 2.0**-52 * reach).all()
    assert (np.abs(sums - floats.sum(axis=1)) <= (size + 8) * 2.0**-52 * reach).all()
    assert np.allclose(squares, (floats * floats).sum(axis=1), rtol=(size + 8) * 2.0**-52)


@built
@pytest.mark.parametrize("size", SIZES)
def test_narrow_integers(size: int, level: int) -> None:
    """All numbers of 32 bits, with the least and the greatest among them."""
    rng = np.random.default_rng(size)
    matrix = symmetric(size, rng, np.int64) >> 32
    matrix[:1, :1] = -(2**31)
    for threads, columns in [(1, 0), (2, 1), (1, 7), (2, 20), (3, 25), (1, 73)]:
        block = rng.integers(-(2**31), 2**31 - 1, (size, columns), endpoint=True)
        block[:1, :] = 2**31 - 1
        found = kernels.times_block(matrix, block, narrow=True, threads=threads)
        np.testing.assert_array_equal(found, exact(matrix, block))


@built
@pytest.mark.parametrize("size", [33, 100])
def test_matrix_at_any_address(size: int, level: int) -> None:
    """Vectors are read where they are aligned: that depends on where the array begins."""
    rng = np.random.default_rng(0)
    for offset in range(9):
        room = np.zeros(size * size + 9, np.int64)
        matrix = room[offset : offset + size * size].reshape(size, size)
        matrix[:], vector = symmetric(size, rng, np.int64), numbers((size,), rng, np.int64)
        np.testing.assert_array_equal(kernels.times_vector(matrix, vector), exact(matrix, vector))


@built
@pytest.mark.parametrize("size", SIZES)
def test_matrix_times_block(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    for threads, columns in [(1, 0), (2, 1), (3, 2), (1, 7), (2, 20), (3, 25), (1, 73), (2, 149)]:
        matrix, block = symmetric(size, rng, np.int64), numbers((size, columns), rng, np.int64)
        found = kernels.times_block(matrix, block, threads=threads)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, exact(matrix, block))
        matrix, block = symmetric(size, rng, np.float64), numbers((size, columns), rng, np.float64)
        assert_near(kernels.times_block(matrix, block, threads=threads), matrix, block)


@built
@pytest.mark.parametrize("size", [1, 2, 23, 130, 300])
def test_a_product_of_any_matrices(size: int, level: int) -> None:
    """The left stands in any order: by rows, by columns, with gaps, turned around, or where numbers are not aligned."""
    rng = np.random.default_rng(size)
    for rows, columns, threads in [(1, 1, 1), (5, 24, 2), (20, 100, 3), (70, 7, 2), (130, 400, 1)]:
        for kind in (np.int64, np.float64):
            right = numbers((size, columns), rng, kind)
            wide = numbers((2 * rows, 3 * size), rng, kind)
            moved = np.frombuffer(b"-" + wide[:rows, :size].tobytes(), np.uint8)[1:].view(kind).reshape(rows, size)
            for left in (wide[:rows, :size], wide[::2, ::3], wide[rows - 1 :: -1, :size], moved):
                for each in (left, np.asfortranarray(left)):
                    found = kernels.product(each, right, threads=threads)
                    if kind is np.int64:
                        np.testing.assert_array_equal(found, exact(np.array(left), right))
                    else:
                        assert_near(found, np.array(left), right)
        codes = rng.integers(-127, 127, (size, rows), np.int8, endpoint=True).T
        right = numbers((size, columns), rng, np.int64)
        np.testing.assert_array_equal(kernels.product(codes, right, threads=threads), exact(codes, right))


@built
@pytest.mark.parametrize("inner", [0, 1, 3, 4, 130, 4097])
def test_codes_times_codes(inner: int, level: int) -> None:
    rng = np.random.default_rng(inner)
    for rows, columns, threads in [(0, 3, 1), (1, 1, 1), (7, 49, 2), (50, 20, 3), (201, 100, 2)]:
        left, right = (
            rng.integers(-128, 127, shape, np.int8, endpoint=True) for shape in ((rows, inner), (inner, columns))
        )
        found = kernels.times_codes(left, right, threads=threads)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, left.astype(np.int64) @ right.astype(np.int64))
    left, right = np.full((2, 100_000), 127, np.int8), np.full((100_000, 2), -127, np.int8)
    assert (kernels.times_codes(left, right) == -(127**2) * 100_000).all()


@built
@pytest.mark.parametrize("inner", [0, 1, 3, 4, 130, 513])
def test_a_few_rows_times_a_factor(inner: int, level: int) -> None:
    rng = np.random.default_rng(inner)
    for rows, columns in [(0, 3), (1, 1), (1, 100), (3, 257), (8, 512)]:
        left = rng.integers(-127, 127, (rows, inner), np.int8, endpoint=True)
        left[:, ::3] = 0
        for kind, most in (
            (np.int8, 1),
            (np.int8, 127),
            (np.int64, 2**31 - 1),
            (np.int64, 2**31),
            (np.int64, 2**63 - 1),
        ):
            right = rng.integers(-most, most, (inner, columns), kind, endpoint=True)
            if most == 1:
                right[right == 0] = 1
            found = few_rows.Factor(right).after(left)
            assert found.dtype == (np.int32 if kind == np.int8 else np.int64)
            np.testing.assert_array_equal(found, left.astype(np.int64) @ right.astype(np.int64))  # modulo 2**64
    full = np.full((1, inner), -127, np.int8)
    for sign in (1, -1):
        assert (few_rows.Factor(np.full((inner, 5), sign, np.int8)).after(full) == -127 * sign * inner).all()
    with pytest.raises(ValueError, match="left must have the shape"):
        few_rows.Factor(np.zeros((4, 2), np.int8)).after(np.zeros((1, 5), np.int8))


@built
def test_a_few_samples_are_rounded_as_by_numpy() -> None:
    rng = np.random.default_rng(0)
    sums = rng.integers(-(2**31), 2**31 - 1, (3, 700), np.int32, endpoint=True)
    numbers = rng.standard_normal((3, 700)) * np.array([[1e-44], [1.0], [1e37]])
    np.testing.assert_array_equal(few_rows.rounded(numbers), numbers.astype(np.float32))
    for shift in (0, 5, 24, 31):
        np.testing.assert_array_equal(few_rows.rectified(sums, shift), (sums >> shift).clip(0, 127))
    for wrong in (np.nan, np.inf, -1e39):
        numbers[2, 600] = wrong
        assert few_rows.rounded(numbers) is None
    assert few_rows.quantised(np.array([[1.0, np.inf]])) is None


@built
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_team_works_for_the_thread_that_gathered_it(level: int) -> None:
    rng = np.random.default_rng(0)
    matrix, block = symmetric(300, rng, np.int64), numbers((300, 30), rng, np.int64)
    wanted = exact(matrix, block)

    def product(threads: int) -> None:
        for _ in range(50):
            np.testing.assert_array_equal(kernels.product(matrix, block, threads=threads), wanted)

    with ThreadPoolExecutor(3) as others, kernels.team():
        with kernels.team():  # there is one already
            product(3)
        meanwhile = [others.submit(product, threads) for threads in (1, 2, 3)]

        def apart() -> None:
            with kernels.team():
                product(2)

        meanwhile.append(others.submit(apart))
        for threads in (1, 2, 5):  # as many as there are, or fewer
            product(threads)
        for each in meanwhile:
            each.result()
        if hasattr(os, "fork"):
            child = os.fork()
            if child == 0:  # it has no such threads, and must not wait for them
                os._exit(0 if (kernels.product(matrix, block, threads=2) == wanted).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
    product(2)
    with pytest.raises(KeyError), kernels.team():
        raise KeyError
    with kernels.team():
        product(2)


@built
def test_products_read_one_triangle(level: int) -> None:
    """So a vector's product costs half of the memory's time. What is below the diagonal is not looked at."""
    rng = np.random.default_rng(0)
    matrix, vector = symmetric(100, rng, np.int64), numbers((100,), rng, np.int64)
    np.testing.assert_array_equal(kernels.times_vector(np.triu(matrix), vector), exact(matrix, vector))


# -- updates -----------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize("size", SIZES)
def test_codes_are_added(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    for threads, count in [(1, 0), (2, 1), (3, 2), (1, 3), (2, 20), (3, 401)]:
        matrix = symmetric(size, rng, np.int64)
        codes, signs = (
            rng.integers(-127, 127, (count, size), np.int8, endpoint=True),
            rng.integers(-1, 2, count, np.int8),
        )
        wide = codes.astype(np.int64)
        expected = matrix + wide.T @ (wide * signs[:, None])
        kernels.add_codes(matrix, codes, signs, threads=threads)
        np.testing.assert_array_equal(matrix, expected)
        half = (expected & 0xFFFF).astype(np.int32)
        wanted = half + wide.T @ (wide * signs[:, None])
        kernels.add_codes(half, codes, signs, threads=threads)
        np.testing.assert_array_equal(half, wanted)


@built
def test_the_largest_codes_do_not_overflow(level: int) -> None:
    codes = np.full((5000, 3), 127, np.int8)
    codes[:, 1] = -127
    matrix = np.full((3, 3), 2**63 - 1)
    kernels.add_codes(matrix, codes, np.ones(5000, np.int8))
    signs = np.array([[1, -1, 1]]) * np.array([[1], [-1], [1]])
    np.testing.assert_array_equal(matrix, wrapped(signs.astype(object) * 5000 * 127**2 + (2**63 - 1)))


@built
@pytest.mark.parametrize("size", SIZES)
def test_a_low_rank_is_added(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    for threads, count in [(1, 0), (2, 1), (3, 2), (1, 7), (2, 20), (3, 513)]:
        before, left, core = (
            symmetric(size, rng, np.float64),
            rng.normal(size=(size, count)),
            symmetric(count, rng, np.float64),
        )
        right, matrix = np.ascontiguousarray(left @ core), before.copy()
        turned = np.ascontiguousarray(left.T), np.ascontiguousarray(-0.5 * right.T)
        kernels.add_low_rank(matrix, *turned, -2.0, threads=threads)
        np.testing.assert_array_equal(matrix, matrix.T)
        upper = np.triu_indices(size)
        reach = (np.abs(left) @ np.abs(right.T) + np.abs(before))[upper]
        assert (np.abs(matrix - (before + left @ right.T))[upper] <= (count + 4) * 2.0**-52 * reach).all()


# -- moving ------------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize("size", SIZES)
def test_a_solution_is_moved(size: int, level: int) -> None:
    rng = np.random.default_rng(size)
    for threads, terms, columns in [(1, 0, 3), (2, 1, 1), (3, 2, 17), (1, 20, 100), (2, 131, 33)]:
        u1, e1 = (np.rint(rng.normal(size=shape) * 2.0**18) for shape in ((size, terms), (terms, columns)))
        u1, left = u1 * 2.0**-20, [rng.normal(size=u1.shape) * scale for scale in (2.0**-21, 2.0**-40)]
        u2, e2 = np.rint(left[0] * 2.0**40) * 2.0**-40, np.rint(rng.normal(size=e1.shape) * 2.0**18) * 2.0**-20
        u3, e3 = left[1], rng.normal(size=e1.shape) * 2.0**-20
        steps, rests = rng.integers(-(2**45), 2**45, (size, columns)), rng.uniform(-0.5, 0.5, (size, columns))
        doubt, near = np.full(columns, 2.0**-10), np.full(size * columns, -1)
        before, after = steps.copy(), rests.copy()
        count = kernels.move(steps, rests, (u1, u2, u3), (e1, e2, e3), doubt, near, threads=threads)
        # In units of 2**-40: products with the large parts are exact, and so are their sums.
        large = (u1 * 2.0**20).astype(np.int64) @ e1.astype(np.int64) * 2**20
        large += (u1 * 2.0**20).astype(np.int64) @ (e2 * 2.0**20).astype(np.int64)
        large += (u2 * 2.0**40).astype(np.int64) @ e1.astype(np.int64)
        small = u1 @ e3 + u2 @ (e2 + e3) + u3 @ (e1 + e2 + e3)
        sizes = np.abs(u1) @ np.abs(e3) + np.abs(u2) @ np.abs(e2 + e3) + np.abs(u3) @ np.abs(e1 + e2 + e3)
        turned = (large & (2**40 - 1)) * 2.0**-40, (large >> 40) - (steps - before)  # a part below 1, and a whole one
        error = np.abs(((turned[0] - rests) + after) + turned[1] + small)
        assert (error <= 2.0**-36 + (6 * terms + 4) * 2.0**-52 * sizes).all()
        assert (np.abs(rests) <= 0.5).all()
        expected = np.flatnonzero(~(0.5 - np.abs(rests) > doubt))
        assert count == len(expected)
        np.testing.assert_array_equal(np.sort(near[:count]), expected)
        assert (near[count:] == -1).all()


@built
def test_what_is_in_doubt_is_counted_even_without_room(level: int) -> None:
    steps, rests, near = np.zeros((50, 4), np.int64), np.full((50, 4), 0.25), np.full(3, -1)
    rests[7, 2] = np.nan
    none, some = np.zeros((50, 1)), np.zeros((1, 4))
    doubt = np.array([0.25, 0.2, 0.2, np.nan])
    assert kernels.move(steps, rests, (none,) * 3, (some,) * 3, doubt, near) == 50 + 1 + 50
    assert set(near) <= {4 * row + column for row in range(50) for column in (0, 3)} | {30}
    assert kernels.move(steps, rests, (none,) * 3, (some,) * 3, doubt, near[:0]) == 101


# -- refusals ----------------------------------------------------------------------------------------

G, T = np.eye(4, dtype=np.int64), np.eye(4)
X, B, CODES, SIGNS = np.ones(4, np.int64), np.ones((4, 3), np.int64), np.ones((3, 4), np.int8), np.ones(3, np.int8)
BAD: list[tuple[type[Exception], Callable[..., Any], tuple[Any, ...]]] = [
    (TypeError, kernels.times_vector, (G, np.ones(4, np.float32))),
    (TypeError, kernels.times_vector, (G.astype(np.int32), X)),
    (TypeError, kernels.times_vector, (G.astype(">i8"), X)),
    (TypeError, kernels.times_vector, (G.tolist(), X)),
    (TypeError, kernels.times_vector, (G, X.tolist())),
    (ValueError, kernels.times_vector, (G, X[:3])),
    (ValueError, kernels.times_vector, (G, X[:, None])),
    (ValueError, kernels.times_vector, (G[:3], X)),
    (ValueError, kernels.times_vector, (np.int64(3) + G[0], X)),
    (ValueError, kernels.times_vector, (np.eye(8, dtype=np.int64)[::2, ::2], X)),
    (ValueError, kernels.times_vector, (G, np.ones(8, np.int64)[::2])),
    (ValueError, kernels.times_vector, (np.frombuffer(bytes(129), np.int64, 16, 0)[:0], X)),
    (ValueError, kernels.times_vector, (np.zeros(129, np.uint8)[1:].view(np.int64).reshape(4, 4), X)),
    (ValueError, kernels.times_block, (G, np.ones((3, 4), np.int64).T)),
    (ValueError, kernels.times_block, (G, X)),
    (TypeError, kernels.times_block, (T, B)),
    (TypeError, kernels.add_codes, (T, CODES, SIGNS)),
    (TypeError, kernels.add_codes, (G, CODES.astype(np.uint8), SIGNS)),
    (TypeError, kernels.add_codes, (G, CODES, SIGNS.astype(np.int64))),
    (ValueError, kernels.add_codes, (G, CODES, SIGNS[:2])),
    (ValueError, kernels.add_codes, (G, CODES, 2 * SIGNS)),
    (ValueError, kernels.add_codes, (G, np.full((3, 4), -128, np.int8), SIGNS)),
    (ValueError, kernels.add_codes, (G, CODES[:, :3], SIGNS)),
    (ValueError, kernels.add_codes, (G, G.view(np.int8)[:, :4].copy()[:3].T[:3], SIGNS)),
    (ValueError, kernels.add_codes, (G, G.view(np.int8).reshape(32, 4), np.ones(32, np.int8))),
    (ValueError, kernels.add_codes, (np.broadcast_to(np.int64(1), (4, 4)), CODES, SIGNS)),
    (ValueError, kernels.add_low_rank, (T, T, np.eye(4))),
    (ValueError, kernels.add_low_rank, (T, np.ones((2, 4)), np.ones((3, 4)))),
    (TypeError, kernels.add_low_rank, (G, np.ones((2, 4)), np.ones((2, 4)))),
]


@built
@pytest.mark.parametrize(("error", "kernel", "arguments"), BAD)
def test_a_wrong_array_is_refused(
    error: type[Exception], kernel: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(error):
        kernel(*arguments)
    np.testing.assert_array_equal(G, np.eye(4))
    np.testing.assert_array_equal(T, np.eye(4))


@built
def test_a_read_only_array_is_not_changed() -> None:
    fixed = np.eye(4, dtype=np.int64)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.add_codes(fixed, CODES, SIGNS)


@built
def test_moves_of_wrong_arrays_are_refused() -> None:
    shapes = {f"u{place}": (5, 2) for place in (1, 2, 3)} | {f"e{place}": (2, 3) for place in (1, 2, 3)}
    good: dict[str, Any] = {
        name: np.zeros(shape) for name, shape in (shapes | {"doubt": (3,), "rests": (5, 3)}).items()
    }
    good |= {"steps": np.zeros((5, 3), np.int64), "near": np.zeros(2, np.int64)}

    def move(**wrong: Any) -> int:
        given = good | wrong
        left, right = (tuple(given[f"{side}{place}"] for place in (1, 2, 3)) for side in "ue")
        return kernels.move(given["steps"], given["rests"], left, right, given["doubt"], given["near"])

    assert move() == 0
    for name, array in good.items():
        for wrong, error in (
            (array.astype(np.float32), TypeError),
            (array[None], ValueError),
            (array[..., ::-1], ValueError),
        ):
            with pytest.raises(error, match=name):
                move(**{name: wrong})
    shared = np.zeros((5, 3))
    with pytest.raises(ValueError, match="share memory"):
        move(steps=shared.view(np.int64), rests=shared)


@built
@pytest.mark.parametrize("threads", [0, -1, 9])
def test_threads_have_a_limit(threads: int) -> None:
    with pytest.raises(ValueError, match="threads must be"):
        kernels.times_vector(G, X, threads=threads)


# -- building ----------------------------------------------------------------------------------------


def copied(folder: Path) -> Path:
    for name in compiling._SOURCES:
        shutil.copy(Path(compiling.__file__).parent / name, folder)
    return folder


@pytest.mark.parametrize("compiler", ["/nothing/here", "false", "'"])
def test_without_a_compiler_there_is_no_library(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    (copied(tmp_path) / compiling.LIBRARY).write_text("an old one")
    reason = compiling.compile_library(tmp_path)
    assert reason is not None
    assert compiler in reason
    assert "\n" not in reason
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(compiling._SOURCES)


@built
def test_a_library_of_another_source_is_not_used(tmp_path: Path) -> None:
    shutil.copy(Path(compiling.__file__).parent / compiling.LIBRARY, copied(tmp_path))
    assert kernels._load(tmp_path)[0] is not None
    with (tmp_path / "kernels.c").open("a") as source:
        source.write("\n")
    assert kernels._load(tmp_path) == (None, "compiled from another source")


def test_what_is_no_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEVERSEEN_KERNELS", raising=False)
    assert kernels._load(copied(tmp_path)) == (None, "not compiled")
    (tmp_path / compiling.LIBRARY).write_text("no library")
    library, state = kernels._load(tmp_path)
    assert library is None
    assert state.startswith("not compiled: ")


def test_everything_works_without_them() -> None:
    program = (
        "import numpy as np\n"
        "from neverseen.engine.solver import solve\n"
        "from neverseen.hardware import choose, kernels\n"
        "assert not kernels.available()\n"
        "codes = np.arange(60).reshape(12, 5) % 7\n"
        "found = solve(codes.T @ codes, codes.T @ codes[:, :2], 3, 30)\n"
        "wanted = np.linalg.solve(codes.T @ codes + 3 * np.eye(5), codes.T @ codes[:, :2])\n"
        "assert np.abs(found.weights / 2**30 - wanted).max() < 2**-28\n"
        "try:\n    kernels.times_vector(np.eye(2), np.ones(2))\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=os.environ | {"NEVERSEEN_KERNELS": "0"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the kernels are turned off by NEVERSEEN_KERNELS=0\n"


# -- packages ----------------------------------------------------------------------------------------


SMALL = (
    "long ns_version(void) { return NS_VERSION; } long ns_level(void) { return 0; } long ns_panel, ns_move, "
    "ns_gather, ns_dismiss, ns_times_vector, ns_times, ns_times_codes, ns_few, ns_quantise, ns_rectify, ns_round, ns_moments, ns_update;"
)
"""A library that takes no time to compile."""


class Application:
    """What hatchling gives a hook to speak with."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def display_warning(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("compiler", ["/nothing/here", "cc"])
def test_a_wheel_is_built_with_or_without_a_compiler(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler == "cc" and shutil.which("cc") is None:
        pytest.skip("there is no compiler")
    interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.setenv("CC", compiler)
    monkeypatch.delenv("NEVERSEEN_KERNELS", raising=False)
    folder = tmp_path / "src/neverseen/hardware"
    folder.mkdir(parents=True)
    shutil.copy(compiling.__file__, copied(folder))
    (folder / "kernels.c").write_text(SMALL)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["KernelsHook"]()
    hook.root, hook.app = str(tmp_path), Application()
    data: dict[str, Any] = {"artifacts": [], "pure_python": True, "tag": None}
    hook.initialize("standard", data)
    if compiler == "cc":
        assert data["artifacts"] == ["src/neverseen/hardware/_kernels.so"]
        assert data["pure_python"] is False
        assert data["tag"].startswith("py3-none-")
        assert kernels._load(folder)[0] is not None
        assert hook.app.said == []
    else:
        assert data == {"artifacts": [], "pure_python": True, "tag": None}
        (said,) = hook.app.said
        assert said.startswith("neverseen is built without its compiled kernels (/nothing/here: ")
        assert not (folder / compiling.LIBRARY).exists()


@built
def test_an_interrupt_leaves_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that nobody dismisses would spin for as long as the process runs."""
    call = kernels._call

    def interrupted(name: str, *arguments: Any) -> Any:
        found = call(name, *arguments)
        if name == "ns_gather":
            raise KeyboardInterrupt
        return found

    found: list[int] = []

    def gather() -> None:
        found.append(call("ns_gather", 2))
        call("ns_dismiss")

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "_most_threads", lambda: 2)
        patched.setattr(kernels, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt), kernels.team():
            pass
    other = threading.Thread(target=gather)
    other.start()
    other.join()
    call("ns_dismiss")
    assert found == [2]


@built
def test_two_threads_that_want_to_be_alone() -> None:
    """The library gets its threads back: whoever ended last restored the limit of the other, for good."""
    hardware, entered, done = choose("numpy"), threading.Event(), threading.Event()

    def count() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    def second() -> None:
        with hardware.alone():
            entered.set()
            done.wait(30)

    before = count()  # shows something only where there are several
    other = threading.Thread(target=second)
    with hardware.alone():
        other.start()
        assert entered.wait(30)
        assert set(count()) == {1}
    done.set()
    other.join()
    assert count() == before


@built
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has threads that run when nothing else does")
def test_a_thread_that_comes_too_late_is_not_waited_for() -> None:
    """On a busy machine a thread of the team may get no processor for long. The product is done without it."""
    program = (
        "import os, time\n"
        "import numpy as np\n"
        "from neverseen.hardware import kernels\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "end = time.monotonic() + 20\n"
        "if (busy := os.fork()) == 0:\n"
        "    while time.monotonic() < end:\n        sum(range(10000))\n"
        "    os._exit(0)\n"
        "matrix = np.ones((200, 200))\n"
        "kernels._call('ns_gather', 3)\n"
        "for thread in os.listdir('/proc/self/task'):\n"
        "    if int(thread) != os.getpid():\n"
        "        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))\n"
        "begin = time.monotonic()\n"
        "for _ in range(300):\n    kernels.product(matrix, matrix, threads=3)\n"
        "print(time.monotonic() - begin, flush=True)\n"
        "os.kill(busy, 9)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 6, done.stdout


@built
def test_a_team_that_nobody_dismisses_sleeps() -> None:
    seen: list[tuple[float, float]] = []

    def little_is_used() -> bool:
        seen.append((time.process_time(), time.monotonic()))
        (used, begin), (used_now, now) = seen[-50:][0], seen[-1]
        return len(seen) >= 50 and used_now - used < (now - begin) / 4

    call = kernels._call
    assert call("ns_gather", 3) == 3
    try:
        eventually(little_is_used, "the team spins", 20)
    finally:
        call("ns_dismiss")


@built
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_meanwhile_gathers_its_own_team() -> None:
    """Also if another thread forked: the team of the parent's thread is not there, and is not in its way."""
    call = kernels._call

    def fork() -> int:
        child = os.fork()
        if child == 0:
            found = call("ns_gather", 2)
            call("ns_dismiss")
            os._exit(found)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert call("ns_gather", 2) == 2
    with ThreadPoolExecutor(1) as other:
        found = other.submit(fork).result()
    call("ns_dismiss")
    assert found == 2
