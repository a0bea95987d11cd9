"""Which positions are to be predicted and what replaces their ids, for a whole batch at once.

The budget of a row is `rate` of its maskable positions (no [CLS], [SEP] or padding), at least 1, at most P. Units:

* token: positions drawn uniformly (google-research/bert, `create_masked_lm_predictions`).
* word: words in random order, each masked whole; one that exceeds what is left of the budget is passed over (the same
  function with `do_whole_word_mask`).
* span: 1 to `max_span` whole words from a random word on, a length n drawn with p(n) proportional to 1/n; shortened to
  fit the budget, passed over where it meets one already taken (ALBERT, arXiv 1909.11942 section 3.1 and its
  `create_pretraining_data.py`).

Each position to predict then becomes [MASK], a random id, or stays, drawn on its own.
"""

import dataclasses

import numpy as np

from bertjax.config.ranges import number, one_of, whole
from bertjax.config.schema import check_fields, key
from bertjax.data.hashing import Stream, as_uniform, hash_bits, hash_bits_of
from bertjax.data.spans import choose_spans, find_words
from bertjax.errors import UserError

UNITS = ('token', 'word', 'span')


@dataclasses.dataclass(frozen=True)
class MaskOptions:
    """How positions are masked.

    Attributes:
      rate: share of the maskable positions that are predicted.
      mask, random: of those, the shares that become [MASK] and a random id; the rest stays as it is.
      unit: 'token', 'word' or 'span'.
      max_span: the most words in a span, for unit 'span'.
      static: draw by (plan, slot) in place of the example number: a pair has the same masks each time it comes up,
        and `config.pair_plans` is Google's `dupe_factor`. Otherwise masks are new each time.
      eval_rate: `rate` for held-out text, whatever the training masks: losses at different rates do not compare.
    """

    rate: float = key(0.15, number(0, 1, above=True))
    mask: float = key(0.8, number(0, 1))
    random: float = key(0.1, number(0, 1))
    unit: str = key('token', one_of(UNITS))
    max_span: int = key(3, whole(1, 1000))
    static: bool = False
    eval_rate: float = key(0.15, number(0, 1, above=True))

    def __post_init__(self):
        check_fields(self, 'masking')
        if self.mask + self.random > 1 + 1e-9:
            raise UserError(
                'config.masking.random',
                f'{self.random} with mask={self.mask}',
                'mask + random of at most 1',
                'lower one of them; what is left to 1 stays unchanged',
            )

    def for_evaluation(self) -> 'MaskOptions':
        """How held-out text is masked."""
        return dataclasses.replace(self, rate=self.eval_rate)


def replacement_ids(vocab_size: int, special_ids: np.ndarray) -> np.ndarray:
    """Int32: the ids from which random replacements are drawn, all but special, unused and padding ones.

    Raises:
      UserError: there are none.
    """
    allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), special_ids)
    if not allowed.size:
        raise UserError('config.tokenizer', 'a vocabulary of special pieces only', 'words', 'train a larger vocabulary')
    return allowed


def budgets(maskable: np.ndarray, options: MaskOptions, max_predictions: int) -> np.ndarray:
    """Int64 [B]: how many of so many `maskable` positions of a row are predicted."""
    budget = np.rint(maskable * options.rate).astype(np.int64)
    return np.minimum(np.clip(budget, 1, max_predictions), maskable)


def mask_batch(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    *,
    options: MaskOptions,
    max_predictions: int,
    mask_id: int,
    allowed_ids: np.ndarray,
    continues_word: np.ndarray,
    seed: int,
    n: np.ndarray,
    within_budget: bool = False,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` in place and returns what was there.

    Args:
      input_ids: int32 [B, S].
      maskable: bool [B, S].
      options: how.
      max_predictions: P.
      mask_id: the id of [MASK].
      allowed_ids: what random replacements are drawn from, see `replacement_ids`.
      continues_word: bool [V], the pieces that continue the word before them.
      seed, n: what the draws are keyed by; n int64 [B].
      within_budget: hold the budget also where every word of a row exceeds it, by masking a part of the shortest.

    Returns:
      masked_positions int32 [B, P], masked_ids int32 [B, P], masked_weights float32 [B, P], as in `batch.py`.
    """
    rows, seq_len = input_ids.shape
    budget = budgets(np.count_nonzero(maskable, axis=1), options, max_predictions)
    if options.unit == 'token':
        scores = hash_bits(seed, Stream.MASK_CHOICE, n[:, None], np.arange(seq_len))  # [B, S]
        chosen = _choose_tokens(scores, maskable, budget)
    else:
        longest = options.max_span if options.unit == 'span' else 1
        most = budget if within_budget else np.full_like(budget, max_predictions)
        words = find_words(input_ids, maskable, continues_word)
        chosen = choose_spans(words, budget, most, longest, seed, n)
    counts = np.diff(np.searchsorted(chosen, np.arange(rows + 1) * seq_len))
    positions = chosen - np.repeat(np.arange(rows) * seq_len, counts)

    flat_ids = input_ids.reshape(-1)
    labels = flat_ids[chosen]
    action = as_uniform(hash_bits_of(counts, seed, Stream.MASK_ACTION, n, positions))
    drawn = as_uniform(hash_bits_of(counts, seed, Stream.MASK_TOKEN, n, positions))
    drawn = allowed_ids[np.minimum((drawn * len(allowed_ids)).astype(np.int64), len(allowed_ids) - 1)]
    masked = np.where(action < options.mask, mask_id, np.where(action < options.mask + options.random, drawn, labels))
    flat_ids[chosen] = masked

    used = np.arange(max_predictions) < counts[:, None]
    found = {name: np.zeros(used.shape, np.int32) for name in ('masked_positions', 'masked_ids')}
    found['masked_positions'][used] = positions
    found['masked_ids'][used] = labels
    return {**found, 'masked_weights': used.astype(np.float32)}


def _choose_tokens(scores: np.ndarray, maskable: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Int64: the `budget` maskable positions of least score of each row, among all B·S, ascending."""
    rows, seq_len = scores.shape
    low = np.uint64((1 << seq_len.bit_length()) - 1)
    # The position is packed into the low bits of its score: sorting numbers is several times faster than sorting their
    # indices.
    keys = np.where(maskable, (scores & ~low) | np.arange(seq_len, dtype=np.uint64), ~np.uint64(0))
    keys.sort(axis=1)
    width = int(budget.max(initial=0))
    least = (keys[:, :width] & low).astype(np.int64) + np.arange(rows)[:, None] * seq_len
    return np.sort(least[np.arange(width) < budget[:, None]])
