"""Vectors of many texts, computed in parts that are saved one by one."""

import dataclasses
import hashlib
import io
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from bertjax.files.atomic import write_atomic
from bertjax.inference.encode import build_sequences, encode
from bertjax.inference.extract import PART_SIZE, Extractor
from bertjax.progress import Advance


@dataclasses.dataclass(frozen=True)
class TextVectors:
    """The vectors of texts.

    Attributes:
      extractor: The definition of the vectors, with pooling.
      folder: The folder of the finished parts. A part is named after its texts and the model, so a run reuses only
        identical parts of an earlier run.
    """

    extractor: Extractor
    folder: pathlib.Path

    def compute(self, texts: Sequence[str], advance: Advance) -> np.ndarray:
        """Computes the missing parts, and returns the vectors, float32 [N, D].

        Args:
          texts: N texts.
          advance: A function that is called with the number of newly finished texts.
        """
        vectors = np.empty((len(texts), self.extractor.width), np.float32)
        for begin in range(0, len(texts), PART_SIZE):
            part = texts[begin : begin + PART_SIZE]
            path = self.folder / f'{self._key(part)}.npy'
            if path.exists():
                advance(len(part))
            else:
                buffer = io.BytesIO()
                np.save(buffer, self._encode(part, advance))
                write_atomic(path, buffer.getvalue())
            vectors[begin : begin + len(part)] = np.load(path)
        return vectors

    def _encode(self, texts: Sequence[str], advance: Advance) -> np.ndarray:
        runner, encoding = self.extractor.runner, self.extractor.encoding
        prompted = encoding.add_prompt(texts)
        features = build_sequences(runner.model.tokenizer, prompted, None, self.extractor.max_length)
        return np.stack(encode(runner, features, encoding, advance=advance))

    def _key(self, texts: Sequence[str]) -> str:
        return hashlib.sha256(self.extractor.identity + json.dumps(texts).encode()).hexdigest()[:32]
