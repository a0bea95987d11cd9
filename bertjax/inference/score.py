"""Scores texts with a masked language model: pseudo-log-likelihood and pseudo-perplexity."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.inference.encode import build_sequences
from bertjax.inference.masked_lm import pseudo_log_likelihoods
from bertjax.inference.runner import Runner
from bertjax.progress import Advance

_MAX_EXPONENT = 709  # exp of a larger number overflows float64


def score_texts(
    runner: Runner, texts: Sequence[str], max_length: int, advance: Advance | None = None
) -> list[dict[str, Any]]:
    """Computes pseudo-log-likelihoods by masking each piece in turn (Salazar et al. 2020, arXiv 1910.14659).

    Args:
      max_length: The maximum length in tokens, including [CLS] and [SEP]. Longer texts are truncated.
      advance: A function that is called with the number of newly finished texts; None shows a progress bar.

    Returns:
      For each text, a dict with `log_likelihood` in nats; `tokens`, the number of pieces without [CLS] and [SEP];
      `words`, the number of whitespace-separated words that were read; and `perplexity`, exp(-log_likelihood / tokens),
      or None for a text without pieces or if it overflows float64.
    """
    if not texts:
        return []
    tokenizer, results = runner.model.tokenizer, []
    features = build_sequences(tokenizer, texts, None, max_length)
    rows = np.split(features.tokens, features.offsets[1:-1])
    for text, ids, scores in zip(texts, rows, pseudo_log_likelihoods(runner, rows, advance), strict=True):
        total, tokens = float(scores.sum(dtype=np.float64)), len(scores)
        if len(ids) == max_length:  # the text may have been truncated
            text = text[: tokenizer.encode_with_offsets([text])[0][2][tokens - 1]]
        score = {'log_likelihood': total, 'tokens': tokens, 'words': len(text.split())}
        results.append({**score, 'perplexity': _perplexity(total, tokens)})
    return results


def corpus_score(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combines the scores of texts. `scores` may also contain results of this function.

    The perplexity follows equation 3 of Salazar et al. 2020.

    Returns:
      A dict with `texts`, `tokens`, `words`, `log_likelihood`, `perplexity`, and `word_perplexity`,
      exp(-log_likelihood / words), which is comparable between vocabularies. Perplexities that overflow float64 are
      None.
    """
    total = {'texts': 0, 'tokens': 0, 'words': 0, 'log_likelihood': 0.0}
    for score in scores:
        total['texts'] += score.get('texts', 1)
        for name in ('tokens', 'words', 'log_likelihood'):
            total[name] += score[name]
    perplexity = _perplexity(total['log_likelihood'], total['tokens'])
    return {**total, 'perplexity': perplexity, 'word_perplexity': _perplexity(total['log_likelihood'], total['words'])}


def _perplexity(log_likelihood: float, count: int) -> float | None:
    return math.exp(-log_likelihood / count) if -log_likelihood < _MAX_EXPONENT * count else None
