"""What all runs of one data set and seed share: split, networks, features, codes. Each is made once and kept.

They live in the work folder as safetensors and npz files, in a folder named after all settings that shape them, and
are made under a lock: of several processes that want one, one makes it and the others wait.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper import data, protocol
from benchmarks.paper.network import ResNet18, load_network, placed, save_network
from benchmarks.paper.settings import Setting, Training
from benchmarks.paper.training import in_batches, quick, train

Arrays = dict[str, np.ndarray]
CODE = 2  # to be raised when networks, features or references are made otherwise


class Artefacts:
    """The shared parts of one data set and seed.

    Parameters
    ----------
    setting : Setting
    name : str
        Of the data set.
    seed : int
    folder : Path
        The data folder.
    work : Path
        Where artefacts are kept. May be deleted at any time; they are then made anew.
    device : str
    """

    def __init__(self, setting: Setting, name: str, seed: int, folder: Path, work: Path, device: str) -> None:
        self.setting, self.name, self.seed, self.folder = setting, name, seed, folder
        self.device = quick(torch.device(device))
        self.work = work
        self.head = f"{setting.analytic.codes}-{setting.analytic.gamma}"  # in the names of what depends on these two
        self.made: dict[str, float] = {}  # seconds that each artefact took, of those made here
        self.waited = 0.0  # seconds for artefacts, made here or by others
        self._making = False

    @cached_property
    def place(self) -> Path:
        """The folder of these artefacts: another one wherever data, settings, device or code make others."""
        setting = self.setting
        shaping = {
            **{name: dataclasses.asdict(getattr(setting, name)) for name in ("sizes", "base", "original")},
            "width": setting.width,
            "backbone": setting.analytic.backbone,
            "mirrored": setting.analytic.mirrored,
            "data": self.data_digest,
            "device": self.device.type,
            "code": CODE,
        }
        mark = hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:8]
        return self.work / mark / f"{self.name}-{self.seed}"

    # -- data --------------------------------------------------------------------------------------

    @cached_property
    def dataset(self) -> data.Dataset:
        """All images."""
        return data.load(self.name, self.folder).reduced(self.setting.sizes.train, self.setting.sizes.test)

    @cached_property
    def split(self) -> protocol.Split:
        """Rows of the training images."""
        sizes = self.setting.sizes
        return protocol.split(len(self.dataset.train_labels), sizes.base, sizes.learned, self.seed)

    @cached_property
    def images(self) -> Tensor:
        """Learned images, uint8 (n, 32, 32, 3), on the device."""
        return torch.from_numpy(self.dataset.train_images[self.split.learned]).to(self.device)

    @cached_property
    def labels(self) -> Tensor:
        """Labels of the learned images."""
        return torch.from_numpy(self.dataset.train_labels[self.split.learned]).to(self.device)

    @cached_property
    def test_images(self) -> Tensor:
        """Test images, on the device."""
        return torch.from_numpy(self.dataset.test_images).to(self.device)

    @cached_property
    def test_labels(self) -> Tensor:
        """Labels of the test images."""
        return torch.from_numpy(self.dataset.test_labels).to(self.device)

    # -- networks ----------------------------------------------------------------------------------

    @cached_property
    def base(self) -> ResNet18:
        """The base-trained network: it has seen the base split and nothing else."""
        return self._network("base", self._train_base)

    @cached_property
    def original(self) -> ResNet18:
        """The base-trained network after training on all learned images at once."""
        return self._network("original", lambda: self.trained(self.images, self.labels))

    def retrained(self, scenario: str, retained: Tensor) -> ResNet18:
        """Return the network that learned only the retained rows, from where the original began.

        Parameters
        ----------
        scenario : str
            A name for these rows.
        retained : Tensor
            Rows of the learned images.
        """
        return self._network(
            f"retrained-{scenario}", lambda: self.trained(self.images[retained], self.labels[retained])
        )

    def trained(self, images: Tensor, labels: Tensor, seed: int | None = None) -> ResNet18:
        """Train a network as the original is trained, from the base-trained one."""
        network = ResNet18(self.dataset.n_classes, self.setting.width)
        network.load_state_dict(self.base.state_dict())
        network = placed(network, self.device)
        self._train(network, images, labels, self.setting.original, self.seed if seed is None else seed)
        return network

    def _train_base(self) -> ResNet18:
        torch.manual_seed(self.seed)
        network = placed(ResNet18(self.dataset.n_classes, self.setting.width), self.device)
        rows = self.split.base
        images = torch.from_numpy(self.dataset.train_images[rows]).to(self.device)
        labels = torch.from_numpy(self.dataset.train_labels[rows]).to(self.device)
        self._train(network, images, labels, self.setting.base, self.seed)
        return network

    @staticmethod
    def _train(network: ResNet18, images: Tensor, labels: Tensor, how: Training, seed: int) -> None:
        train(network, images, labels, seed=seed, **dataclasses.asdict(how))

    # -- features ----------------------------------------------------------------------------------

    @cached_property
    def extract(self) -> Callable[[Tensor], Tensor]:
        """The frozen backbone: uint8 images in, float32 features out, on the device."""
        if self.setting.analytic.backbone == "efficientnet-lite0":
            from neverseen.backbones import efficientnet_lite0

            backbone = efficientnet_lite0(runtime="torch", device=self.device.type, batch_size=128)
            return lambda images: torch.from_numpy(backbone.extract(list(images.cpu().numpy()))).to(self.device)
        if self.setting.analytic.backbone != "resnet18":
            raise ValueError(f"analytic.backbone is {self.setting.analytic.backbone!r}; resnet18 or efficientnet-lite0")
        network, mirrored = self.base.eval(), self.setting.analytic.mirrored

        def of_batch(images: Tensor) -> Tensor:
            features = network.features(images)
            return (features + network.features(images.flip(2))) / 2 if mirrored else features

        return lambda images: in_batches(of_batch, images)

    @cached_property
    def features(self) -> tuple[Tensor, Tensor]:
        """Float32 features of the learned and of the test images, on the CPU."""
        arrays = self.arrays(
            "features",
            lambda: {
                "learned": self.extract(self.images).cpu().numpy(),
                "test": self.extract(self.test_images).cpu().numpy(),
            },
        )
        return torch.from_numpy(arrays["learned"]), torch.from_numpy(arrays["test"])

    @cached_property
    def features_digest(self) -> str:
        """SHA-256 of the features: where it is the same, neverseen's digests are too."""
        return hashlib.sha256(b"".join(part.numpy().tobytes() for part in self.features)).hexdigest()

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 of the images and labels."""
        return self.dataset.digest()

    @cached_property
    def codes(self) -> tuple[Tensor, Tensor]:
        """Int8 codes of the learned and of the test images, as `neverseen.RandomProjection` makes them."""
        from neverseen import RandomProjection
        from neverseen.encoding import quantise
        from neverseen.hardware import choose

        encoder, hardware = RandomProjection(self.setting.analytic.codes, seed=self.seed), choose("auto")
        learned, test = (
            torch.from_numpy(np.array(hardware.numpy(encoder.expand(quantise(part.numpy()), hardware))))
            for part in self.features
        )
        return learned.to(self.device), test.to(self.device)

    # -- keeping -----------------------------------------------------------------------------------

    def arrays(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return named arrays from the work folder, made and stored first where they are not there."""
        path = self.place / f"{name}.npz"
        with self._made_once(path) as partial:
            if partial is not None:
                with partial.open("wb") as file:
                    np.savez(file, **make())  # type: ignore[arg-type]
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def _network(self, name: str, make: Callable[[], ResNet18]) -> ResNet18:
        path = self.place / f"{name}.safetensors"
        with self._made_once(path) as partial:
            if partial is not None:
                save_network(make(), partial)
        network = load_network(path, self.device)
        network.eval()
        return network

    @contextmanager
    def _made_once(self, path: Path) -> Iterator[Path | None]:
        """Yield a path to write to, or None if the file is there already. It appears whole or not at all."""
        if path.exists():
            yield None
            return
        outermost, self._making, came = not self._making, True, time.monotonic()
        try:
            with self._locked(path) as partial:
                yield partial
        finally:
            if outermost:
                self._making = False
                self.waited += time.monotonic() - came

    @contextmanager
    def _locked(self, path: Path) -> Iterator[Path | None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it if this process dies
            if path.exists():
                yield None
                return
            began = time.monotonic()
            partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
            try:
                yield partial
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            self.made[path.stem] = round(time.monotonic() - began, 1)
            print(f"made {self.name}-{self.seed}/{path.name} in {self.made[path.stem]} s", file=sys.stderr, flush=True)
