"""Each kind of hardware computes what its docstrings promise, and is chosen by name."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from neverseen import ConfigurationError, UnknownKindError
from neverseen import hardware as hardware_module
from neverseen.engine.arithmetic import wide_matmul
from neverseen.hardware import Hardware, kernels, torch_cpu, torch_cuda
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.samples import codes


def test_magnitudes_of_any_int64_are_summed(hardware: Hardware) -> None:
    matrix = np.array([[-(2**63), 2**63 - 1], [0, -5]])
    assert hardware.row_sums(hardware.array(matrix)).tolist() == [2.0**64, 5.0]


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 5), (700, 600)])
def test_limbs(kind: type, shape: tuple[int, int], hardware: Hardware) -> None:
    top = int(np.iinfo(kind).max)
    matrix: np.ndarray = np.random.default_rng(0).integers(-min(top, 2**52), min(top, 2**52), shape).astype(kind)
    matrix.flat[:3] = [-top, top, -1][: matrix.size]
    frozen = matrix.copy()
    frozen.flags.writeable = False
    for given in (matrix, frozen):
        for bits in (15, 18, 21):
            low = hardware.numpy(hardware.limb(hardware.array(given), 0, bits))
            middle = hardware.numpy(hardware.limb(hardware.array(given), bits, bits))
            high = hardware.numpy(hardware.limb(hardware.array(given), 2 * bits, None))
            assert low.dtype == middle.dtype == high.dtype == np.float64
            wanted = matrix.astype(np.int64)
            assert np.array_equal(low, wanted & (2**bits - 1))
            assert np.array_equal(middle, (wanted >> bits) & (2**bits - 1))
            assert np.array_equal(high, wanted >> (2 * bits))
        assert np.array_equal(hardware.numpy(hardware.limb(hardware.array(given), 0, None)), matrix.astype(np.float64))
    assert np.array_equal(matrix, frozen)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 65, 100, 128, 200])  # one block or several, the last one smaller
def test_a_blocked_factor_solves(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch_cuda, "_BLOCK", 64)
    root = torch.from_numpy(codes("blocked", size + 9, size).astype(np.float64))
    matrix = root.T @ root + 1000 * torch.eye(size, dtype=torch.float64)
    right = torch.from_numpy(codes("right side", size, 3).astype(np.float64))
    factor = torch_cuda.BlockedFactor(torch.linalg.cholesky(matrix), torch)
    expected = torch.linalg.solve(matrix, right)
    for given in (right, right.T.contiguous().T):
        kept = given.clone()
        torch.testing.assert_close(factor.solve(given), expected, rtol=1e-9, atol=1e-12)
        assert torch.equal(given, kept)


def test_saturating_int8_units_are_not_used() -> None:
    class Saturating:
        @staticmethod
        def from_numpy(array: np.ndarray) -> np.ndarray:
            return array

        @staticmethod
        def _int_mm(left: np.ndarray, right: np.ndarray) -> object:
            class Result:
                def numpy(self) -> np.ndarray:
                    pairs = left.astype(np.int32)[:, :, None] * right.astype(np.int32)[None]
                    sums = pairs.reshape(len(left), -1, 2, right.shape[1]).sum(axis=2)
                    return np.asarray(np.clip(sums, -(2**15), 2**15 - 1).sum(axis=1))

            return Result()

    assert torch_cpu._passes_int8_self_test(Saturating) is True  # signed pairs of 127 * 127 still fit 16 bits ...

    class Shifted(Saturating):
        @staticmethod
        def _int_mm(left: np.ndarray, right: np.ndarray) -> object:  # ... but not when the left is shifted to unsigned
            class Result:
                def numpy(self) -> np.ndarray:
                    pairs = (left.astype(np.int32) + 128)[:, :, None] * right.astype(np.int32)[None]
                    sums = np.clip(pairs.reshape(len(left), -1, 2, right.shape[1]).sum(axis=2), -(2**15), 2**15 - 1)
                    return np.asarray(sums.sum(axis=1) - 128 * right.astype(np.int32).sum(axis=0))

            return Result()

    assert torch_cpu._passes_int8_self_test(Shifted) is False

    class Missing:
        pass

    assert torch_cpu._passes_int8_self_test(Missing) is False


def test_it_works_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert hardware_module.choose("auto").name == "numpy"
    for name in ("torch", "cuda"):
        with pytest.raises(
            ConfigurationError, match=r"needs PyTorch, which is not installed: pip install 'neverseen\[torch\]'"
        ):
            hardware_module.choose(name)


def test_cuda_must_be_there_to_be_asked_for() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert hardware_module.choose("auto").name == "cuda"
    else:
        with pytest.raises(ConfigurationError, match="PyTorch sees no CUDA device"):
            hardware_module.choose("cuda")
        assert hardware_module.choose("auto").name == ("numpy" if kernels.available() else "torch")


class Other(NumpyHardware):
    name = "other"


@pytest.fixture
def other() -> Iterator[None]:
    hardware_module.register("other", Other)
    yield
    del hardware_module.kinds._kinds["other"]


@pytest.mark.usefixtures("other")
def test_hardware_that_is_registered_is_chosen_copied_and_pickled_by_name() -> None:
    chosen = hardware_module.choose("other")
    assert isinstance(chosen, Other)
    assert hardware_module.choose("other") is copy.deepcopy(chosen) is pickle.loads(pickle.dumps(chosen))  # noqa: S301 (ours)


@pytest.mark.parametrize("name", ["other", "", 3, ["numpy"], "numpy_cpu:NumpyHardware", "x" * 1000])
def test_hardware_that_nobody_registered_is_refused(name: str) -> None:
    with pytest.raises(UnknownKindError, match=r"is not known; known are cuda, numpy, torch\. Import the package") as e:
        hardware_module.choose(name)
    assert len(str(e.value)) < 250


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = "import sys; from neverseen import hardware; print(sorted({'torch', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_gpu_measures_and_multiplies_codes() -> None:
    pytest.importorskip("torch")
    from tests.hardware.cpu_tensors import CpuTensors

    tensors, rng = CpuTensors(), np.random.default_rng(0)  # type: ignore[abstract]
    for rows, size in ((1, 5), (20, 3000)):  # by the processor, and by the GPU
        codes = rng.integers(-128, 128, (rows, size)).astype(np.int8)
        lengths, least = tensors.measured(tensors.array(codes))
        assert lengths.tolist() == np.abs(codes.astype(np.int64)).sum(axis=1).tolist()
        assert least == codes.min()
    for rows, inner, columns in ((1, 5, 1), (40, 300, 7), (3, 64, 100), (0, 4, 2)):
        codes = rng.integers(-127, 128, (rows, inner)).astype(np.int8)
        block = rng.integers(-(2**63), 2**63 - 1, (inner, columns))
        block.flat[:4] = [2**63 - 1, -(2**63), -1, 2**62][: block.size]
        found = wide_matmul(tensors.array(codes), tensors.array(block), tensors)
        with np.errstate(over="ignore"):
            assert np.array_equal(tensors.numpy(found), codes.astype(np.int64) @ block)
    positions = np.array([2, 0, 2])
    codes = rng.integers(-127, 128, (3, 6)).astype(np.int8)
    for classes, where in ((3, positions), (1, positions * 0)):
        found = tensors.few_class_sums(tensors.array(codes), where, classes)
        assert np.array_equal(tensors.numpy(found), np.eye(classes, dtype=np.int64)[where].T @ codes)
