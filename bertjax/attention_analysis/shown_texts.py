"""Computes the attention in a few texts, for the HTML page of an analysis and for weights.safetensors."""

import base64
import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from bertjax.attention_analysis.analysis_input import Tree
from bertjax.attention_analysis.words import UNIT, make_features, merge_units
from bertjax.inference.attention import Attention, compute_attention
from bertjax.inference.runner import Runner
from bertjax.tasks.reading.records import Row

MAX_SHOWN_TOKENS = 64  # The maximum number of tokens of a shown text. More would be unreadable.


def make_shown_texts(
    runner: Runner, items: Sequence[Row] | Sequence[Tree], relations: Sequence[str], unit: str, count: int
) -> list[Attention]:
    """Computes the attention in the first `count` texts or trees, between pieces or between words.

    Texts with more than MAX_SHOWN_TOKENS tokens, or more than the model's positions, are truncated. Longer trees are
    skipped.
    """
    tokenizer, longest = runner.model.tokenizer, min(MAX_SHOWN_TOKENS, runner.model.config.max_positions)
    features = make_features(tokenizer, items, relations, longest)
    if features is None or not count:
        return []
    features = features.take(np.arange(min(count, len(features))))
    attention = compute_attention(runner, features)
    if unit == 'piece':
        return attention
    tokens, units = (np.split(x, features.offsets[1:-1]) for x in (features.tokens, features.token[UNIT]))
    shown_texts = []
    for i, ids, unit_ids, (_, weights) in zip(features.record, tokens, units, attention, strict=True):
        count = int(unit_ids.max()) + 1
        merged = merge_units(weights[:, None], unit_ids[None], np.ones_like(unit_ids)[None])[:, 0, :, :count, :count]
        words = [tokenizer.decode(ids[unit_ids == number]).strip() for number in range(count)]
        if isinstance(items[i], Tree):  # The page shows the words as the treebank spells them.
            words[1:-1] = items[i].words
        shown_texts.append(Attention(words, np.asarray(merged)))
    return shown_texts


def to_safetensors(shown_texts: Sequence[Attention]) -> bytes:
    """Returns the content of a safetensors file with one array of weights per text, float32 [L, H, U, U].

    The names of the arrays are `0`, `1`, …. The metadata entry `units` is a JSON list with one list of units per text.
    """
    arrays = {str(i): np.ascontiguousarray(text.weights) for i, text in enumerate(shown_texts)}
    return save(arrays, {'units': json.dumps([text.pieces for text in shown_texts], ensure_ascii=False)})


def encode_for_page(text: Attention) -> dict[str, Any]:
    """Returns the `units` and the `weights` of a text. The weights are bytes, compressed with gzip, in base64.

    The byte of a weight w is 255·√w, rounded. The error of w is at most 0.004, and smaller for small weights.
    """
    quantized = np.rint(255 * np.sqrt(text.weights)).clip(0, 255).astype(np.uint8)
    data = gzip.compress(quantized.tobytes(), mtime=0)
    return {'units': text.pieces, 'weights': base64.b64encode(data).decode('ascii')}
