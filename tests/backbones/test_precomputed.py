"""The package's face, its lazy imports, features that are there already, and the progress bar."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError, InputError, NeverseenError, backbones
from neverseen.backbones import Backbone, Precomputed, progress_bar
from neverseen.backbones.packages import imported
from neverseen.errors import MissingPackageError


def test_public_face() -> None:
    assert backbones.__all__ == sorted(backbones.__all__)
    assert set(backbones.__all__) == {
        "Backbone", "BaseSet", "Cached", "FeatureCache", "FullBackbone", "Images", "OnnxBackbone", "PerSample", "Precomputed", "Recipe", "Texts", "TorchBackbone", "as_list",
        "base_train", "decoded", "efficientnet_lite0", "fingerprint", "minilm", "progress_bar", "register",
    }  # fmt: skip
    assert all(hasattr(backbones, name) for name in backbones.__all__)


def test_optional_libraries_stay_unimported() -> None:
    unwanted = ["torch", "onnxruntime", "onnx", "PIL", "transformers", "tokenizers", "rich", "timm", "torchvision"]
    script = f"import neverseen.backbones, sys; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named() -> None:
    with pytest.raises(
        MissingPackageError, match="reading needs the package no_such, which is not installed: pip install no"
    ):
        imported("no_such.part", "reading", "pip install no_such")
    assert issubclass(MissingPackageError, NeverseenError)
    assert issubclass(MissingPackageError, ImportError)


def test_a_package_that_does_not_import_is_told_from_one_that_is_missing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackageError,
        match=r"is installed but does not import here \(RuntimeError: operator nms does not exist\)",
    ):
        imported("broken_package", "reading", "pip install broken_package")


def test_rows_are_features() -> None:
    backbone = Precomputed(2, name="table")
    assert isinstance(backbone, Backbone)
    for rows in (
        [[1.0, 2.5]],
        np.array([[1.0, 2.5]]),
        [np.array([1.0, 2.5], ">f8")],
        (np.array([1, 2.5], np.float16) for _ in "a"),
    ):
        features = backbone.extract([np.asarray(row) for row in rows])
        assert features.dtype == np.float32
        assert features.tolist() == [[1.0, 2.5]]
    assert backbone.extract([]).shape == backbone.extract(np.zeros((0, 2))).shape == (0, 2)
    assert backbone.base is None
    assert repr(backbone) == "Precomputed(2, name='table')"


def test_the_digest_is_of_name_and_size() -> None:
    assert Precomputed(2).digest() == Precomputed(2, "precomputed").digest()
    assert len({Precomputed(2).digest(), Precomputed(3).digest(), Precomputed(2, "other").digest()}) == 3
    assert Precomputed(2).digest() == "4d438ea40cfa6158b9b74b9d56a836e6d32b21f430d52f003e0eb8244b757128"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (["a text"], "sample 0 must be a row of 2 features; got a text"),
        (np.zeros((2, 3)), r"sample 0 must be a row of 2 features; got an array of shape \(3,\)"),
        ([np.zeros(2), np.zeros((1, 2))], "sample 1 must be a row"),
        ([np.zeros(2), np.array([0, np.nan])], "sample 1 has features that are NaN, infinite or beyond float32"),
        ([np.array([0, 1e39])], "beyond float32"),
        ([[1.0, 2.0]], "a sample is of type list"),
    ],
)
def test_other_samples_are_refused(samples: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precomputed(2).extract(samples)


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="n_features must be a whole number"):
        Precomputed(0)
    with pytest.raises(ConfigurationError, match="name must be a text; got 3"):
        Precomputed(2, 3)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(total: int, batch: int, wanted: bool | None, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("some work", total, batch=batch, shown=wanted) as advance:
        advance(total)
    return screen.getvalue()


def test_a_bar_is_shown_where_somebody_can_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    assert "some work" in shown(100, 32, None, True, monkeypatch)
    assert shown(32, 32, None, True, monkeypatch) == ""
    assert shown(100, 32, None, False, monkeypatch) == ""
    assert shown(100, 32, False, True, monkeypatch) == ""
    assert "some work" in shown(1, 32, True, False, monkeypatch)


def test_a_bar_within_a_bar_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("outer", 2, shown=True) as advance:
        with progress_bar("inner", 5, shown=True) as inner:
            inner(5)
        advance(2)
    assert "outer" in screen.getvalue()
    assert "inner" not in screen.getvalue()
    with progress_bar("next", 2, shown=True) as advance:  # and the outer one is over
        advance(2)
    assert "next" in screen.getvalue()


def test_an_error_within_a_bar_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), progress_bar("first", 2, shown=True):
        raise ZeroDivisionError
    assert not backbones.progress._local.busy


def test_another_thread_has_its_own_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def other() -> None:
        seen.append(getattr(backbones.progress._local, "busy", False))

    with progress_bar("outer", 2, shown=True):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [False]


def test_without_rich_there_is_no_bar_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress_bar("some work", 3, shown=True) as advance:
        advance(3)
