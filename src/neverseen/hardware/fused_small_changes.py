"""Small changes on an NVIDIA GPU in a few dozen steps: kernels of our own between the products of PyTorch.

`small_change` computes what `neverseen.hardware.torch_small_changes.small_change` does, with the same bounds and
checks; there each formula stands by itself, and is a step that the GPU has to begin. ``small_changes.cu`` joins all
those between two products. PyTorch comes with what compiles it. Where that is missing or fails, the other form serves.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.hardware.torch_small_changes import System

if TYPE_CHECKING:
    from torch import Tensor

_SOURCE = Path(__file__).parent / "small_changes.cu"
_NAMES = (
    "dots",
    "add_sums",
    "core_inverse",
    "read_codes",
    "read_aside",
    "see",
    "top",
    "cut",
    "first_remainder",
    "finished_images",
    "read_solution",
    "codes_across",
    "misfit",
    "bound",
    "turn",
    "move",
    "tell",
)
_THREADS = 256  # of a block
_WARP = 32
_MOST_BLOCKS = 1056  # that a GPU has at work at a time: more would only add more often to the same number
_FEW_ROWS = 4  # that `dots` takes
_PARTS = 32  # of a sum over all codes
_TOPS = 11  # numbers of `Tops` in small_changes.cu
_AT_ONCE = 16  # samples aside that `see` takes together

Launch = Callable[..., None]
"""Launches a kernel: its name, the blocks, and its arguments, which are tensors and integers."""


def small_change(launch: Launch, limbs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return what `neverseen.hardware.torch_small_changes.small_change` returns, for the same tensors."""
    change = _Change(launch, limbs, tensors)
    change.read()
    change.find_images()
    change.find_misfit()
    return change.moved()


class _Change:
    """A small change, and the memory for what is found about it, named as in `torch_small_changes`."""

    def __init__(self, launch: Launch, limbs: int, tensors: tuple[Tensor, ...]) -> None:
        import torch

        self._launch, self._limbs = launch, limbs
        # The first two are symmetric.
        tensors = (*tensors[:2], *(torch.as_tensor(each).contiguous() for each in tensors[2:]))
        self._system, (self._codes, self._wanted, self._steps, self._rests, self._told) = (
            System(*tensors[:9]),
            tensors[9:],
        )
        (count, size), columns, aside = self._codes.shape, self._steps.shape[1], len(self._system.aside)
        self._count, self._size, self._columns = count, size, columns
        self._whole, self._rows = (_blocks(count * size), 1), (_blocks(size * _WARP), 1)  # blocks
        # What several threads find together begins with zeros.
        parts = [_TOPS, 3 + 4 * columns, *[count] * 10, aside, size]
        found = torch.zeros(sum(parts), dtype=torch.float64, device=self._codes.device).split(parts)
        self._tops, self._about, self._sums, self._codes_seen, self._squares, self._check, *others = found
        self._highs, self._middles, self._lows, self._whole_across, self._rest_across, self._turned, *others = others
        self._inner, self._seen = others
        self._floats, self._aside_floats, self._aside_turned = (self._new(rows, size) for rows in (count, aside, aside))
        self._parts = self._new(3 * count, size)  # low, middle and high
        self._product = self._new(count, 3 * columns)  # of the codes with the solution
        self._meanwhile = _Meanwhile(self._codes)

    def read(self) -> None:
        """Read the samples and the solution. Nearly all of this is done at the same time as what follows."""
        import torch

        launch, system, size, columns = self._launch, self._system, self._size, self._columns
        beside, steps_across, rests_across = self._new(size, 3 * columns), self._new(size), self._new(size)
        by_row = _blocks(size), self._count
        launch("read_codes", by_row, self._codes, system.probe, self._floats, self._sums, self._codes_seen, size)
        with self._meanwhile as meanwhile:
            aside = len(system.aside)
            launch(
                *("read_aside", (_blocks(size), aside), *system[4:7], self._aside_floats, self._aside_turned),
                *(self._inner, size),
            )
            launch(
                *("see", (_blocks(size), -(-aside // _AT_ONCE)), system.aside, self._inner, system.image),
                *(self._seen, size, aside),
            )
            meanwhile.reached()
            launch(
                *("read_solution", self._rows, self._steps, self._rests, system.across, beside),
                *(steps_across, rests_across, self._tops, size, columns),
            )
            launch(
                *("codes_across", by_row, self._floats, steps_across, rests_across),
                *(self._whole_across, self._rest_across, size),
            )
            torch.mm(self._floats, beside, out=self._product)
        self._kept = beside, steps_across, rests_across  # in use until the end

    def find_images(self) -> None:
        """Find U and V."""
        launch, told, tops = self._launch, self._told, self._tops
        count, size, columns, limbs = self._count, self._size, self._columns, self._limbs
        self._images = self._guess(self._floats)
        inverse = self._new(count, count)
        launch("core_inverse", (1, 1), self._among(self._floats, self._images), told, inverse, count, columns)
        self._lefts = inverse @ self._images  # s U
        launch("top", self._whole, self._lefts, tops, count * size)
        self._meanwhile.wait_until_reached()
        self._first, side, product = self._cut(self._lefts, tops, 2, 1)
        residual, reals = self._new(count, size), self._new(count, size)
        launch(
            *("first_remainder", self._whole, self._floats, told, product, side, tops, residual, reals),
            *(count * size, columns),
        )
        finer = self._add(self._guess(reals), self._among(reals, self._images), self._lefts, -1)
        launch("top", self._whole, finer, tops[1:], count * size)
        self._second, side, product = self._cut(finer, tops[1:], limbs, 0)
        launch(
            *("finished_images", (_blocks(size), count), residual, told, product, side, self._first, self._second),
            *(self._system.probe, self._seen, tops, self._squares, self._check, self._parts[2 * count :]),
            *(self._parts[count:], self._parts, self._highs, self._middles, self._lows, size, count, columns, limbs),
        )

    def find_misfit(self) -> None:
        """Find E, and check V and E."""
        self._meanwhile.wait()
        self._misfit = self._new(3, self._count, self._columns)
        self._launch(
            *("misfit", (_blocks(self._count * _WARP), 1), self._product, self._wanted, self._told),
            *(self._system.across, self._sums, self._codes_seen, self._whole_across, self._rest_across, self._check),
            *(*self._misfit, self._tops, self._size, self._count, self._columns, self._limbs),
        )

    def moved(self) -> tuple[Tensor, ...]:
        """Return the results."""
        import torch

        launch, told, tops, across, about = self._launch, self._told, self._tops, self._system.across, self._about
        count, size, columns, limbs = self._count, self._size, self._columns, self._limbs
        e, known = self._new(5, count, columns), about[3:]
        launch(
            *("bound", (_blocks(columns), 1), *self._misfit, told, self._sums, self._squares, self._highs),
            *(self._middles, self._lows, e, known, tops, size, count, columns, limbs),
        )
        launch("turn", (_blocks(count * _WARP), 1), e[0], across, self._turned, count, columns)
        steps, rests = torch.empty_like(self._steps), torch.empty_like(self._rests)  # row by row, as those are
        low, middle, high = self._parts.split(count)
        products = (e, e, e)  # not read
        made = count > _FEW_ROWS
        if made:
            two = self._parts[count:].t() @ e[3:].view(2 * count, columns)
            products = high.t() @ e[3], two, self._parts.t() @ e[:3].view(3 * count, columns)
        launch(
            *("move", self._rows, self._steps, self._rests, told, self._first, self._second, high, middle, low, e),
            *(*products, known, across, self._turned, steps, rests, known[3 * columns :], tops),
            *(size, count, columns, limbs, int(made)),
        )
        launch("tell", (1, 1), told, self._sums, tops, about, count, columns, limbs)
        return steps, rests, self._lefts, self._images, about

    # -- products ----------------------------------------------------------------------------------

    def _new(self, *shape: int) -> Tensor:
        import torch

        return torch.empty(shape, dtype=torch.float64, device=self._codes.device)

    def _times(self, rows: Tensor, matrix: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``rows @ matrix.T`` and ``rows @ other.T``."""
        if len(rows) > _FEW_ROWS:
            return rows @ matrix.t(), rows @ other.t()
        results = self._new(len(rows), len(matrix)), self._new(len(rows), len(other))
        self._launch(
            *("dots", (_blocks((len(matrix) + len(other)) * _WARP), 1), matrix, results[0], len(matrix)),
            *(other, results[1], len(other), rows, len(rows), rows.shape[1]),
        )
        return results

    def _among(self, rows: Tensor, others: Tensor) -> Tensor:
        """Return ``rows @ others.T`` for a few rows each, in parts that are added up: one would take long."""
        import torch

        if len(rows) <= _FEW_ROWS:
            return self._times(rows, others, others[:0])[0]
        split = math.gcd(_PARTS, self._size)
        left, right = (each.view(len(each), split, -1).transpose(0, 1) for each in (rows, others))
        return torch.bmm(left, right.transpose(1, 2)).sum(0)

    def _add(self, out: Tensor, rows: Tensor, matrix: Tensor, sign: int) -> Tensor:
        """Add ``sign rows @ matrix``."""
        if len(rows) > _FEW_ROWS:
            return out.addmm_(rows, matrix, alpha=sign)
        blocks = _blocks(matrix.shape[1] * _WARP // _FEW_ROWS), 1
        self._launch("add_sums", blocks, rows, matrix, out, len(rows), *matrix.shape, sign)
        return out

    def _guess(self, rows: Tensor) -> Tensor:
        """Return about ``rows A^-1``."""
        result, through = self._times(rows, self._system.matrix, self._system.rights)
        return self._add(result, through, self._system.lefts, -1)

    def _cut(self, values: Tensor, top: Tensor, limbs: int, turn: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return integers, their limbs, and the product of these with A', but for gamma."""
        size = self._count * self._size
        rounded, side = self._new(self._count, self._size), self._new(limbs * self._count, self._size)
        self._launch("cut", self._whole, values, self._told, top, rounded, side, size, self._columns, limbs, turn)
        product, through = self._times(side, self._system.gram, self._aside_floats)
        return rounded, side, self._add(product, through, self._aside_turned, 1)


class _Meanwhile:
    """What is done inside is done at the same time as what follows, in another stream."""

    def __init__(self, like: Tensor) -> None:
        self._here = like.is_cuda

    def __enter__(self) -> _Meanwhile:
        if self._here:
            import torch

            self._main, self._side = torch.cuda.current_stream(), torch.cuda.Stream()
            self._side.wait_stream(self._main)
            self._inside = torch.cuda.stream(self._side)
            self._inside.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        if self._here:
            self._inside.__exit__(*why)

    def reached(self) -> None:
        """Note, inside, how far it is."""
        self._event = self._side.record_event() if self._here else None

    def wait_until_reached(self) -> None:
        """Let what follows wait until then."""
        if self._here:
            self._main.wait_event(self._event)

    def wait(self) -> None:
        """Let what follows wait for all of it."""
        if self._here:
            self._main.wait_stream(self._side)


def _blocks(threads: int) -> int:
    return min(_MOST_BLOCKS, max(1, -(-threads // _THREADS)))


# -- compiling and launching ---------------------------------------------------------------------------


class Kernels:
    """The kernels, compiled for the GPU in use. Launching one does not wait for it.

    Raises OSError or RuntimeError if they cannot be compiled.
    """

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._driver = ctypes.CDLL("libcuda.so.1")
        torch.zeros(1, device="cuda")  # a context
        image, module = _compiled(torch), ctypes.c_void_p()
        self._require(self._driver.cuModuleLoadData(ctypes.byref(module), image))
        self._functions = {}
        for name in _NAMES:
            function = ctypes.c_void_p()
            self._require(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            self._functions[name] = function

    def __call__(self, name: str, blocks: tuple[int, int], *arguments: Tensor | int) -> None:
        """Launch a kernel in PyTorch's current stream."""
        if not min(blocks):
            return
        values: list[Any] = [
            ctypes.c_longlong(each) if isinstance(each, int) else ctypes.c_void_p(each.data_ptr()) for each in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        function, shape = self._functions[name], (*blocks, 1, _THREADS, 1, 1)
        self._require(self._driver.cuLaunchKernel(function, *shape, 0, stream, places, None))

    def _require(self, result: int) -> None:
        if result:
            raise RuntimeError(f"the CUDA driver refuses a kernel of its own: error {result}")


@functools.cache
def kernels() -> Kernels | None:
    """Return the kernels, or None if they cannot be used here."""
    try:
        return Kernels()
    except (OSError, RuntimeError, AttributeError):  # the last if a library lacks a function
        return None


def _compiled(torch: Any) -> ctypes.Array[ctypes.c_char]:
    """Return machine code for the GPU in use."""
    compiler, program = _compiler(torch), ctypes.c_void_p()
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--std=c++17", b"--fmad=false"]
    source = _SOURCE.read_bytes()
    if compiler.nvrtcCreateProgram(ctypes.byref(program), source, _SOURCE.name.encode(), 0, None, None):
        raise RuntimeError("NVRTC makes no program")
    try:
        if compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            raise RuntimeError(f"NVRTC does not compile {_SOURCE.name} for sm_{major}{minor}")
        size = ctypes.c_size_t()
        if compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)) or not size.value:
            raise RuntimeError("NVRTC made no machine code")
        image = ctypes.create_string_buffer(size.value)
        if compiler.nvrtcGetCUBIN(program, image):
            raise RuntimeError("NVRTC does not give its machine code")
        return image
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _compiler(torch: Any) -> ctypes.CDLL:
    """Return NVRTC: that of PyTorch, or one that is installed."""
    version = torch.version.cuda.partition(".")[0]
    home = Path(torch.__file__).parent
    folders = [home / "lib", *sorted(home.parent.glob("nvidia/*/lib"))]
    places = [str(path) for folder in folders for path in sorted(folder.glob("libnvrtc*.so*"))]
    for place in (f"libnvrtc.so.{version}", *(place for place in places if "builtins" not in place), "libnvrtc.so"):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise OSError("NVRTC was not found")
