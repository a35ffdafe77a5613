"""Preprocessing of texts: token numbers and a mask."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones.packages import imported
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError

STEP = 32  # a text is filled up to a multiple of this many tokens


class Texts:
    """Preprocessing for networks that read texts.

    Each text is padded to a multiple of 32 tokens, and shares a batch only with texts of the same padded length. So its
    features do not depend on the other texts.

    Parameters
    ----------
    tokenizer : str or path
        A ``tokenizer.json``, or the folder it is in.
    max_length : int
        Number of tokens to read of each text, including special ones; the rest is ignored.
    pad_id : int
        The token for padding.

    Examples
    --------
    >>> Texts("model/tokenizer.json")(["a text", "another"])["input_ids"].shape  # doctest: +SKIP
    (2, 32)
    """

    takes = "texts"

    def __init__(self, tokenizer: str | os.PathLike[str], max_length: int = 256, pad_id: int = 0) -> None:
        self.max_length = whole_number("max_length", max_length, 1, 2**16)
        self.pad_id = whole_number("pad_id", pad_id, 0, 2**31 - 1)
        path = Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        tokenizers = imported("tokenizers", "reading texts", "pip install tokenizers")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"there is no tokenizer to be read at {path} ({error.strerror}). If the model has none of this kind, "
                "make one with transformers: AutoTokenizer.from_pretrained(name, use_fast=True).save_pretrained(folder)"
            ) from error
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the package raises Exception itself
            raise ConfigurationError(f"{path} is not a tokenizer that can be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_length)
        self._digest = hashlib.sha256(content).hexdigest()

    def sizes(self, samples: list[Any]) -> list[int]:
        """Return the padded number of tokens of each text."""
        return [self._size(len(tokens)) for tokens in self._tokens(samples)]

    def __call__(self, samples: list[Any]) -> dict[str, np.ndarray]:
        """Return ``input_ids`` and ``attention_mask``, int64 of shape (n, tokens), for texts."""
        rows = self._tokens(samples)
        shape = len(rows), max((self._size(len(tokens)) for tokens in rows), default=self._size(0))
        ids, mask = np.full(shape, self.pad_id, np.int64), np.zeros(shape, np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def example(self) -> str:
        """Return a sample, the empty text, to find the shape of the features."""
        return ""

    def configuration(self) -> dict[str, Any]:
        """Return the settings and a digest of the tokenizer's file as JSON values, for the digest."""
        return {
            "kind": "texts",
            "tokenizer": self._digest,
            "max_length": self.max_length,
            "pad_id": self.pad_id,
            "step": STEP,
        }

    def __repr__(self) -> str:
        return f"<Texts of at most {self.max_length} tokens, tokenizer {self._digest[:12]}>"

    def _size(self, count: int) -> int:
        return min(self.max_length, -(-max(1, count) // STEP) * STEP)

    def _tokens(self, samples: list[Any]) -> list[list[int]]:
        for sample in samples:
            if not isinstance(sample, str):
                raise InputError(f"this backbone takes texts (str); got {type(sample).__name__}")
        return [encoding.ids for encoding in self._tokenizer.encode_batch(samples)]
