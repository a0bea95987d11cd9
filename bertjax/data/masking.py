"""Chooses the positions to predict and replaces their ids, for all rows of a batch together.

All positions except padding and special tokens other than [UNK] are maskable. The budget of a row is `rate` times the
number of its maskable positions, at least 1 if it has any, and at most P, the maximum number of predictions. The unit
of masking is one of:

* token: positions drawn uniformly (google-research/bert, `create_masked_lm_predictions`).
* word: whole words in random order, as in the same function with `do_whole_word_mask`. A word longer than the remaining
  budget is skipped.
* span: 1 to `max_span` whole words that begin at a random word. The length n is drawn with p(n) proportional to 1/n. A
  span is shortened to fit the budget, and skipped if it overlaps an earlier span (ALBERT, arXiv 1909.11942 section 3.1
  and its `create_pretraining_data.py`).

A separate draw decides for each chosen position whether it becomes [MASK], becomes a random id, or keeps its id.

A share of the examples can be causal (AntLM, arXiv 2411.03275; GPT-BERT, arXiv 2410.24159). The positions to predict
are chosen in the same way, but all keep their ids, because the model predicts a token only from the tokens to its left.
"""

import dataclasses

import numpy as np

from bertjax.config.ranges import either, integer, number, one_of, special
from bertjax.config.schema import check_fields, key
from bertjax.data.hashing import Stream, hash_bits, randint, uniform
from bertjax.data.spans import choose_spans, find_words
from bertjax.errors import UserError
from bertjax.text.tokenizer_base import Tokenizer

UNITS = ('token', 'word', 'span')
MASK_RATE = number(0, 1, above=True)


@dataclasses.dataclass(frozen=True)
class MaskOptions:
    """The options of masking.

    Attributes:
      rate: The share of the maskable positions that are predicted.
      final_rate: The rate at the end of a phase. The rate changes linearly from `rate`; -1 keeps it constant.
      mask: The share of the predicted positions that become [MASK].
      random: The share of the predicted positions that become a random id. The other positions keep their ids.
      unit: The unit of masking: 'token', 'word' or 'span'.
      max_span: The maximum number of words in a span, for unit 'span'.
      static: Whether an example has the same masks each time it occurs, instead of new masks. `config.pair_plans`
        is then Google's `dupe_factor`.
      eval_rate: The rate for held-out text. It is independent of `rate`, because losses at different rates cannot be
        compared.
      causal_share: The share of the training examples that are causal: attention goes from left to right, and the
        tokens at the chosen positions are predicted without masks, from the positions before them.
    """

    rate: float = key(0.15, MASK_RATE)
    final_rate: float = key(-1.0, either(MASK_RATE, special(-1.0, 'a constant rate')))
    mask: float = key(0.8, number(0, 1))
    random: float = key(0.1, number(0, 1))
    unit: str = key('token', one_of(UNITS))
    max_span: int = key(3, integer(1, 1000), used_with=('unit', 'span'))
    static: bool = False
    eval_rate: float = key(0.15, MASK_RATE)
    causal_share: float = key(0.0, number(0, 1))

    def __post_init__(self):
        check_fields(self, 'masking')
        if self.mask + self.random > 1 + 1e-9:
            found, fix = f'{self.random} with mask={self.mask}', 'lower one of them; the other positions keep their ids'
            raise UserError('config.masking.random', found, 'mask + random of at most 1', fix)

    def for_evaluation(self) -> 'MaskOptions':
        """Returns the options for held-out text."""
        return dataclasses.replace(self, rate=self.eval_rate, causal_share=0.0)


def prediction_budgets(
    maskable: np.ndarray, options: MaskOptions, max_predictions: int, rates: np.ndarray | None = None
) -> np.ndarray:
    """Returns the budget of each row: the number of positions to predict, int64 [B].

    `maskable`, int64 [B], counts the maskable positions. `rates`, float64 [B], replaces the rate of the options.
    """
    budget = np.rint(maskable * (options.rate if rates is None else rates)).astype(np.int64)
    return np.minimum(np.clip(budget, 1, max_predictions), maskable)


def mask_batch(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    *,
    options: MaskOptions,
    max_predictions: int,
    tokenizer: Tokenizer,
    allowed_ids: np.ndarray,
    seed: int,
    n: np.ndarray,
    within_budget: bool = False,
    rates: np.ndarray | None = None,
    causal: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` in place, and returns the positions to predict and their original ids.

    Args:
      input_ids, maskable: int32 and bool [B, S].
      max_predictions: P.
      allowed_ids: int, the ids of random replacements: all except those of special pieces.
      seed, n: The keys of the random draws; n is int64 [B].
      within_budget: Whether a row must not exceed its budget. If all words of a row are longer than the budget, the
        first pieces of the shortest word are masked: as many as the budget if True, up to P if False.
      rates: float64 [B], the rate of each row, which replaces the rate of the options.
      causal: bool [B], the rows in which all positions keep their ids; None if there are none.

    Returns:
      masked_positions int32 [B, P], masked_ids int32 [B, P], masked_weights float32 [B, P], as in `batch.py`.
    """
    rows, seq_len = input_ids.shape
    budget = prediction_budgets(np.count_nonzero(maskable, axis=1), options, max_predictions, rates)
    if options.unit == 'token':
        scores = hash_bits(seed, Stream.MASK_CHOICE, n[:, None], np.arange(seq_len))  # [B, S]
        chosen = _choose_tokens(scores, maskable, budget)
    else:
        max_words = options.max_span if options.unit == 'span' else 1
        max_positions = budget if within_budget else np.full_like(budget, max_predictions)
        words = find_words(input_ids, maskable, tokenizer.continues_word)
        chosen = choose_spans(words, budget, max_positions, max_words, seed, n)
    row, positions = np.divmod(chosen, seq_len)

    labels = input_ids[row, positions]
    action = uniform(seed, Stream.MASK_ACTION, n[row], positions)
    drawn = allowed_ids[randint(len(allowed_ids), seed, Stream.MASK_TOKEN, n[row], positions)]
    unmasked = np.where(action < options.mask + options.random, drawn, labels)
    masked = np.where(action < options.mask, tokenizer.mask_id, unmasked)
    input_ids[row, positions] = masked if causal is None else np.where(causal[row], labels, masked)

    used = np.arange(max_predictions) < np.bincount(row, minlength=rows)[:, None]
    masks = {name: np.zeros(used.shape, np.int32) for name in ('masked_positions', 'masked_ids')}
    masks['masked_positions'][used] = positions
    masks['masked_ids'][used] = labels
    return {**masks, 'masked_weights': used.astype(np.float32)}


def _choose_tokens(scores: np.ndarray, maskable: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Returns, for each row, the `budget` maskable positions with the lowest scores, as ascending indices of [B·S]."""
    rows, seq_len = scores.shape
    low = np.uint64((1 << seq_len.bit_length()) - 1)
    # The low bits of each score are replaced by its position, because sort is several times faster than argsort.
    keys = np.where(maskable, (scores & ~low) | np.arange(seq_len, dtype=np.uint64), ~np.uint64(0))
    keys.sort(axis=1)
    width = int(budget.max(initial=0))
    lowest = (keys[:, :width] & low).astype(np.int64) + np.arange(rows)[:, None] * seq_len
    return np.sort(lowest[np.arange(width) < budget[:, None]])
