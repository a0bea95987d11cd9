"""The attention in a few texts, as files and pages hold it."""

import base64
import dataclasses
import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from bertjax.attention_analysis.measuring import rows_of
from bertjax.attention_analysis.reading import Chunk, Texts
from bertjax.attention_analysis.words import UNIT, merge_units
from bertjax.inference.attention import attention
from bertjax.inference.runner import Runner

LONGEST = 64  # tokens of a text that is shown; more lines beside each other tell nobody anything


@dataclasses.dataclass(frozen=True)
class ShownText:
    """The attention in one text, between pieces, or between words.

    Attributes:
      units: U pieces, or words and special tokens.
      weights: float32 [L, H, U, U], see inference/attention.py.
    """

    units: list[str]
    weights: np.ndarray


def attend(runner: Runner, chunk: Chunk, relations: Sequence[str], unit: str, count: int) -> list[ShownText]:
    """The attention in the first `count` texts of a chunk, of longer ones in their first LONGEST tokens; of trees in
    the first that are not longer."""
    tokenizer, longest = runner.model.tokenizer, min(LONGEST, runner.model.config.max_positions)
    if isinstance(chunk, Texts):
        chunk = Texts(*(part and part[:count] for part in chunk))
    else:
        fitting = rows_of(tokenizer, chunk, relations, longest)
        chunk = [] if fitting is None else [chunk[i] for i in fitting.record[:count]]
    features = rows_of(tokenizer, chunk, relations, longest) if count else None
    if features is None:
        return []
    tokens, units = (np.split(x, features.offsets[1:-1]) for x in (features.tokens, features.token[UNIT]))
    found = []
    rows = zip(features.record, tokens, units, attention(runner, features), strict=True)
    for i, ids, own, (pieces, weights) in rows:
        if unit == 'piece':
            found.append(ShownText(pieces, weights))
            continue
        count = int(own.max()) + 1
        merged = merge_units(weights[:, None], own[None], np.ones_like(own)[None])[:, 0, :, :count, :count]
        words = [tokenizer.decode(ids[own == unit]).strip() for unit in range(count)]
        if not isinstance(chunk, Texts):  # as the treebank writes them
            words[1:-1] = chunk[i].words
        found.append(ShownText(words, np.asarray(merged)))
    return found


def as_file(shown: Sequence[ShownText]) -> bytes:
    """A safetensors file: `0`, `1`, … float32 [L, H, U, U]; its metadata `units`, a JSON list of lists of texts."""
    arrays = {str(i): np.ascontiguousarray(one.weights) for i, one in enumerate(shown)}
    return save(arrays, {'units': json.dumps([one.units for one in shown], ensure_ascii=False)})


def packed(one: ShownText) -> dict[str, Any]:
    """What the page carries of a text: its `units`, and `weights`, a byte for each: 255·√w, rounded, which is 0.004 off
    at most and keeps what is small apart; compressed, as base64."""
    quantised = np.rint(255 * np.sqrt(one.weights)).clip(0, 255).astype(np.uint8)
    data = gzip.compress(quantised.tobytes(), mtime=0)
    return {'units': one.units, 'weights': base64.b64encode(data).decode('ascii')}
