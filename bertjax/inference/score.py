"""How well texts fit a masked language model: pseudo-log-likelihood and pseudo-perplexity."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.inference.encode import sequences
from bertjax.inference.input import chunks
from bertjax.inference.masked import pseudo_log_likelihoods
from bertjax.inference.runner import Runner
from bertjax.progress import Advance, telling

_LARGEST = 709  # exp of more is no float64
_TOGETHER = 64  # texts that are masked at once: some thousand sequences


def score_texts(
    runner: Runner, texts: Sequence[str], max_length: int, advance: Advance | None = None
) -> list[dict[str, Any]]:
    """Pseudo-log-likelihoods (Salazar et al. 2020, arXiv 1910.14659), each piece masked in turn.

    Args:
      runner: of a model with an MLM head.
      texts: cut to `max_length` tokens.
      max_length: with [CLS] and [SEP].
      advance: is told how many more texts are done; None for a progress bar.

    Returns:
      Of each text `log_likelihood`, in nats, over its `tokens`, the pieces without [CLS] and [SEP], of so many `words`
      between blanks; and `perplexity`, exp(-log_likelihood / tokens); None of a text without pieces.
    """
    tokenizer, results = runner.model.tokenizer, []
    with telling(advance, 'scoring', len(texts)) as tell:
        for together in chunks(texts, _TOGETHER):
            features = sequences(tokenizer, together, None, max_length)
            rows = np.split(features.tokens, features.offsets[1:-1])
            found = pseudo_log_likelihoods(runner, rows, tell)
            for text, ids, scores in zip(together, rows, found, strict=True):
                total, tokens = float(scores.sum(dtype=np.float64)), len(scores)
                if len(ids) == max_length:  # it may have lost its end
                    text = text[: tokenizer.encode_with_offsets([text])[0][2][tokens - 1]]
                facts = {'log_likelihood': total, 'tokens': tokens, 'words': len(text.split())}
                results.append({**facts, 'perplexity': _perplexity(total, tokens)})
    return results


def corpus_score(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all texts, or of several such sums, together; the perplexity as the paper has it (equation 3).

    Returns:
      `texts`, `tokens`, `words`, `log_likelihood`, `perplexity`, and `word_perplexity`, exp(-log_likelihood / words),
      which models of different vocabularies can be compared by. What is more than a float holds is None.
    """
    total = {'texts': 0, 'tokens': 0, 'words': 0, 'log_likelihood': 0.0}
    for score in scores:
        total['texts'] += score.get('texts', 1)
        for name in ('tokens', 'words', 'log_likelihood'):
            total[name] += score[name]
    perplexity = _perplexity(total['log_likelihood'], total['tokens'])
    return {**total, 'perplexity': perplexity, 'word_perplexity': _perplexity(total['log_likelihood'], total['words'])}


def _perplexity(log_likelihood: float, count: int) -> float | None:
    return math.exp(-log_likelihood / count) if -log_likelihood < _LARGEST * count else None
