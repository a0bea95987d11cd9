"""Vectors of many texts, computed in parts that are saved one by one."""

import dataclasses
import hashlib
import io
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from bertjax.files.atomic import write_atomic
from bertjax.inference.encode import Encoding, build_sequences, encode
from bertjax.inference.extract import PART_SIZE
from bertjax.inference.runner import Runner
from bertjax.progress import Advance


@dataclasses.dataclass(frozen=True)
class TextVectors:
    """The vectors of texts.

    Attributes:
      runner: The runner of the model.
      encoding: The definition of the vectors, with pooling.
      max_length: The length in tokens to which longer texts are truncated.
      folder: The folder of the finished parts. A part is named after its texts and the model, so a run reuses only
        identical parts of an earlier run.
    """

    runner: Runner
    encoding: Encoding
    max_length: int
    folder: pathlib.Path

    def compute(self, texts: Sequence[str], advance: Advance) -> np.ndarray:
        """Computes the missing parts, and returns the vectors, float32 [N, D].

        Args:
          texts: N texts.
          advance: A function that is called with the number of newly finished texts.
        """
        vectors = np.empty((len(texts), self.encoding.width(self.runner.model.config)), np.float32)
        for begin in range(0, len(texts), PART_SIZE):
            part = texts[begin : begin + PART_SIZE]
            path = self.folder / f'{self._key(part)}.npy'
            if path.exists():
                advance(len(part))
            else:
                prompted = self.encoding.add_prompt(part)
                features = build_sequences(self.runner.model.tokenizer, prompted, None, self.max_length)
                buffer = io.BytesIO()
                np.save(buffer, np.stack(encode(self.runner, features, self.encoding, advance=advance)))
                write_atomic(path, buffer.getvalue())
            vectors[begin : begin + len(part)] = np.load(path)
        return vectors

    def _key(self, texts: Sequence[str]) -> str:
        content = repr((self.encoding, self.max_length)) + json.dumps(texts)
        return hashlib.sha256(self.runner.model.fingerprint + content.encode()).hexdigest()[:32]
