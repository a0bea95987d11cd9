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

from bertjax.data.hashing import Stream, hash_bits, uniform
from bertjax.data.spans import choose_spans, find_words
from bertjax.errors import UserError
from bertjax.ranges import check_fields, number, one_of, ranged, whole

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
    """

    rate: float = ranged(0.15, number(0, 1, above=True))
    mask: float = ranged(0.8, number(0, 1))
    random: float = ranged(0.1, number(0, 1))
    unit: str = ranged('token', one_of(UNITS))
    max_span: int = ranged(3, whole(1, 1000))
    static: bool = False

    def __post_init__(self):
        check_fields(self, 'masking')
        if self.mask + self.random > 1 + 1e-9:
            raise UserError(
                'config.masking.random',
                f'{self.random} with mask={self.mask}',
                'mask + random of at most 1',
                'lower one of them; what is left to 1 stays unchanged',
            )


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
    seq_len = input_ids.shape[1]
    budget = budgets(maskable.sum(1), options, max_predictions)
    scores = hash_bits(seed, Stream.MASK_CHOICE, n[:, None], np.arange(seq_len))  # [B, S]
    if options.unit == 'token':
        positions = _choose_tokens(scores, maskable, budget, max_predictions)
    else:
        longest = options.max_span if options.unit == 'span' else 1
        most = budget if within_budget else np.full_like(budget, max_predictions)
        words = find_words(input_ids, maskable, continues_word)
        chosen = choose_spans(scores, words, budget, most, longest, seed, n)
        positions = _positions_of(chosen, input_ids.shape, max_predictions)
    used = positions < seq_len  # [B, P]
    positions = np.where(used, positions, 0)
    labels = np.take_along_axis(input_ids, positions, 1)

    action = uniform(seed, Stream.MASK_ACTION, n[:, None], positions)
    drawn = uniform(seed, Stream.MASK_TOKEN, n[:, None], positions)
    drawn = allowed_ids[np.minimum((drawn * len(allowed_ids)).astype(np.int64), len(allowed_ids) - 1)]
    masked = np.where(action < options.mask, mask_id, np.where(action < options.mask + options.random, drawn, labels))
    row, slot = np.nonzero(used)
    input_ids[row, positions[row, slot]] = masked[row, slot]
    return {
        'masked_positions': positions.astype(np.int32),
        'masked_ids': np.where(used, labels, 0).astype(np.int32),
        'masked_weights': used.astype(np.float32),
    }


def _choose_tokens(scores: np.ndarray, maskable: np.ndarray, budget: np.ndarray, most: int) -> np.ndarray:
    """Int64 [B, P]: the `budget` maskable positions of least score, ascending, then S."""
    rows, seq_len = scores.shape
    low = np.uint64((1 << seq_len.bit_length()) - 1)
    # The position is packed into the low bits of its score: sorting numbers is several times faster than sorting their
    # indices.
    keys = np.where(maskable, (scores & ~low) | np.arange(seq_len, dtype=np.uint64), ~np.uint64(0))
    keys.sort(axis=1)
    positions = np.full((rows, most), seq_len, np.int64)
    width = min(most, seq_len)
    least = (keys[:, :width] & low).astype(np.int64)
    positions[:, :width] = np.where(np.arange(width) < budget[:, None], least, seq_len)
    positions.sort(axis=1)
    return positions


def _positions_of(chosen: np.ndarray, shape: tuple[int, int], most: int) -> np.ndarray:
    """Int64 [B, P]: the position in its row of each that is chosen of all B·S (ascending), then S; no row has more
    than P."""
    rows, seq_len = shape
    ends = np.searchsorted(chosen, np.arange(rows + 1) * seq_len)
    counts = np.diff(ends)
    positions = np.full((rows, most), seq_len, np.int64)
    positions[np.arange(most) < counts[:, None]] = chosen - np.repeat(np.arange(rows) * seq_len, counts)
    return positions
