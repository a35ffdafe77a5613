"""The kernels for small changes, against the operations of PyTorch that they replace."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from neverseen.hardware import fused_small_changes, torch_small_changes  # noqa: E402
from neverseen.hardware.torch_small_changes import Replayed  # noqa: E402
from tests.hardware.emulated import emulated  # noqa: E402

GAMMA = 2.0**16
MOST = 256


def devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def change(size: int, count: int, columns: int, bits: int, sign: int, device: str) -> tuple[int, list[Any], Any]:
    """Return the arguments of a small change, and the solution after it."""
    rng = np.random.default_rng(size + count)
    codes = rng.integers(-10, 40, (4 * size, size)) * rng.integers(0, 2, (4 * size, size))
    labels = np.eye(columns)[np.arange(4 * size) % columns]
    wide = codes.astype(np.float64)
    gram, cross, few = wide.T @ wide, wide.T @ labels, slice(0, count)
    inverse = np.linalg.inv(gram + GAMMA * np.eye(size))
    before = inverse @ cross * 2.0**40
    probe, across = (rng.integers(-(2**63), 2**63 - 1, length) for length in (size, columns))
    image = (gram.astype(np.int64) * probe).sum(axis=1) + int(GAMMA) * probe
    aside, signs = np.zeros((MOST, size), np.int8), np.ones((MOST, 1), np.int8)
    aside[few], signs[few] = codes[few], sign
    told = [
        np.full(columns, 2.0**-49),
        np.full(columns, 2.0**-20),
        [sign, bits, GAMMA],
        2.0 ** (bits * np.arange(-2, 3)),
    ]
    given = [
        *(gram, (inverse + inverse.T) / 2, np.zeros((MOST, size)), np.zeros((MOST, size)), aside, signs),
        *(probe, image, across, codes[few].astype(np.int8), labels[few] * 2.0**40),
        *(
            np.rint(before).astype(np.int64),
            before - np.rint(before),
            np.concatenate([np.asarray(each) for each in told]),
        ),
    ]
    after = gram + sign * wide[few].T @ wide[few] + GAMMA * np.eye(size)
    wanted = np.linalg.solve(after, cross + sign * wide[few].T @ labels[few]) * 2.0**40
    return 2 if bits >= 22 else 3, [torch.from_numpy(np.array(each)).to(device) for each in given], wanted


def kernels(device: str) -> Any:
    if device == "cpu":
        return emulated()
    found = fused_small_changes.kernels()
    assert found is not None  # otherwise PyTorch's operations serve, and nobody notices
    return found


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("size", "count", "columns", "bits"),
    [(5, 1, 1, 24), (70, 1, 33, 20), (96, 8, 100, 22), (33, 24, 7, 20), (128, 64, 9, 20)],
)
def test_they_do_the_same(size: int, count: int, columns: int, bits: int, sign: int, device: str) -> None:
    limbs, given, solution = change(size, count, columns, bits, sign, device)
    plain = torch_small_changes.small_change(limbs, *given)
    fused = fused_small_changes.small_change(kernels(device), limbs, *given)
    assert fused[-1][0] < 1.0
    assert fused[-1][2] == 0.0
    for one, other in zip(plain, fused, strict=True):
        assert one.shape == other.shape
    for one, other in zip(plain[2:4], fused[2:4], strict=True):  # what corrects the inverse
        assert float((one - other).abs().max()) <= 1e-9 * float(one.abs().max())
    known, also = (each[-1][3:].cpu().numpy() for each in (plain, fused))
    assert np.allclose(known, also, rtol=1e-6)  # bounds
    steps, rests = fused[0].cpu().numpy(), fused[1].cpu().numpy()
    assert np.abs((plain[0].cpu().numpy() - steps) + (plain[1].cpu().numpy() - rests)).max() < 1e-9
    assert np.abs(steps + rests - solution).max() < 1e-9 * np.abs(solution).max()


def test_arrays_column_by_column() -> None:
    limbs, given, _ = change(40, 2, 6, 22, -1, "cpu")
    for place in range(len(given)):
        if given[place].ndim == 2:
            given[place] = given[place].t().contiguous().t()
    plain = torch_small_changes.small_change(limbs, *given)
    fused = fused_small_changes.small_change(emulated(), limbs, *given)
    assert torch.equal(plain[0], fused[0])


def test_a_number_that_is_none_is_noticed() -> None:
    limbs, given, _ = change(40, 2, 6, 22, -1, "cpu")
    for place in (0, 1, 12):
        spoiled = [each.clone() for each in given]
        spoiled[place][0, 0] = np.nan
        worst = fused_small_changes.small_change(emulated(), limbs, *spoiled)[-1][0]
        assert not worst < 1.0


def test_without_a_compiler_for_gpus_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any) -> None:
        raise OSError("NVRTC was not found")

    monkeypatch.setattr(fused_small_changes.Kernels, "__init__", missing)
    fused_small_changes.kernels.cache_clear()
    assert fused_small_changes.kernels() is None
    fused_small_changes.kernels.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_change_is_repeated() -> None:
    limbs, given, _ = change(96, 8, 10, 22, -1, "cuda")
    run = functools.partial(fused_small_changes.small_change, kernels("cuda"))
    replayed, wanted = Replayed(run, still=9), run(limbs, *given)
    for _ in range(3):
        labels, told = (given[place].cpu().numpy() for place in (10, 13))
        found = replayed(limbs, *given[:10], labels, *given[11:13], told)
        assert torch.equal(found[0], wanted[0])
        assert not torch.equal(replayed(limbs, *given[:10], labels * 2, *given[11:13], told)[0], wanted[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_other_threads_use_the_gpu_while_a_change_is_captured() -> None:
    limbs, given, _ = change(96, 8, 10, 22, -1, "cuda")
    run = functools.partial(fused_small_changes.small_change, kernels("cuda"))
    wanted = run(limbs, *given)[0].cpu()

    def captured() -> None:
        for _ in range(10):
            assert torch.equal(Replayed(run, still=9)(limbs, *given)[0].cpu(), wanted)

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(captured) for _ in range(4)]:
            each.result()
