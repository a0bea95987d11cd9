"""Tests masking: budgets, rates and units, against a plain loop or a confidence bound."""

import numpy as np
import pytest
from data_fakes import FakeVocabulary

from bertjax.data.hashing import Stream, hash_bits, uniform
from bertjax.data.masking import MaskOptions, mask_batch
from bertjax.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = 500
SPECIAL = np.arange(10, dtype=np.int32)


def continues(vocab_size=VOCABULARY, every=3):
    return (np.arange(vocab_size) % every == 0) & (np.arange(vocab_size) >= 10)


def rows_of_words(rows=512, seq_len=128, seed=0, full=False):
    """Returns rows [CLS] A [SEP] B [SEP] of random ids and lengths, with some [UNK], and the maskable positions.

    Both arrays have the shape [rows, seq_len].
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(9, VOCABULARY, (rows, seq_len)).astype(np.int32)
    ids[ids == 9] = UNK
    last = np.full(rows, seq_len - 1) if full else rng.integers(4, seq_len, rows)
    middle = rng.integers(2, last - 1)
    column = np.arange(seq_len)
    special = (column == 0) | (column == middle[:, None]) | (column == last[:, None])
    real = column <= last[:, None]
    ids[:, 0], ids[np.arange(rows), middle], ids[np.arange(rows), last] = CLS, SEP, SEP
    ids[~real] = PAD
    return ids, real & ~special


def mask(ids, maskable, most=20, continues_word=None, seed=1, n=None, **options):
    masked, vocabulary = np.copy(ids), FakeVocabulary(VOCABULARY)  # keeps the memory layout
    vocabulary.continues_word = continues() if continues_word is None else continues_word
    predictions = mask_batch(
        masked,
        maskable,
        options=MaskOptions(**options),
        max_predictions=most,
        tokenizer=vocabulary,
        allowed_ids=np.setdiff1d(np.arange(VOCABULARY), SPECIAL),
        seed=seed,
        n=np.arange(len(ids)) if n is None else n,
    )
    return masked, predictions


def chosen_of(predictions, seq_len):
    """Returns bool [B, S]: whether a position is predicted."""
    used = predictions['masked_weights'] > 0
    chosen = np.zeros((len(used), seq_len), bool)
    row, slot = np.nonzero(used)
    chosen[row, predictions['masked_positions'][row, slot]] = True
    return chosen


UNITS = [{'unit': 'token'}, {'unit': 'word'}, {'unit': 'span'}, {'unit': 'span', 'max_span': 5}]


@pytest.mark.parametrize('options', UNITS, ids=str)
@pytest.mark.parametrize('most', [1, 20, 128])
def test_masked_ids_and_positions_match_the_batch(options, most):
    ids, maskable = rows_of_words()
    masked, predictions = mask(ids, maskable, most, **options)
    used = predictions['masked_weights'] > 0
    positions, labels = predictions['masked_positions'], predictions['masked_ids']
    assert positions.shape == labels.shape == used.shape == (512, most)
    assert (positions.dtype, labels.dtype, predictions['masked_weights'].dtype) == (np.int32, np.int32, np.float32)
    # Used slots come first, with ascending positions. The other slots are 0.
    assert (used[:, 1:] <= used[:, :-1]).all()
    assert (positions[:, 1:] > positions[:, :-1])[used[:, 1:]].all()
    assert not positions[~used].any() and not labels[~used].any()
    chosen = chosen_of(predictions, 128)
    assert chosen.sum() == used.sum()
    assert not (chosen & ~maskable).any()
    assert np.array_equal(labels[used], ids[chosen])
    assert np.array_equal(masked[~chosen], ids[~chosen])
    assert used.sum(1).min() >= 1 and used.sum(1).max() <= most
    np.testing.assert_equal(mask(np.asfortranarray(ids), maskable, most, **options), (masked, predictions))


@pytest.mark.parametrize('rate', [0.05, 0.15, 0.4])
def test_single_tokens_use_the_budget_exactly(rate):
    ids, maskable = rows_of_words()
    _, predictions = mask(ids, maskable, 30, rate=rate)
    budget = [min(30, max(1, round(rate * int(count)))) for count in maskable.sum(1)]
    assert predictions['masked_weights'].sum(1).tolist() == budget


@pytest.mark.parametrize('unit', ['word', 'span'])
def test_words_and_spans_nearly_use_the_budget_and_never_exceed_it(unit):
    ids, maskable = rows_of_words(rows=2000, full=True)
    _, predictions = mask(ids, maskable, unit=unit)
    counts = predictions['masked_weights'].sum(1)
    assert counts.max() == 19  # 0.15 x 125
    assert counts.mean() > 18.9
    ids, maskable = rows_of_words(rows=2000)
    _, predictions = mask(ids, maskable, 128, unit=unit)
    assert abs(predictions['masked_weights'].sum() / maskable.sum() - 0.15) < 0.005


def test_all_positions_are_equally_likely():
    ids, maskable = rows_of_words(rows=1, full=True)
    ids, maskable = np.repeat(ids, 40_000, 0), np.repeat(maskable, 40_000, 0)
    counts = chosen_of(mask(ids, maskable)[1], 128).sum(0)
    share = 19 / 125
    assert not counts[~maskable[0]].any()
    deviation = (counts[maskable[0]] - 40_000 * share) / np.sqrt(40_000 * share * (1 - share))
    assert np.abs(deviation).max() < 5
    # Neighbors are independent: if 19 of 125 are drawn, two given positions are both drawn with the probability
    # 19 x 18 / (125 x 124).
    chosen = chosen_of(mask(ids, maskable)[1], 128)
    both = (chosen[:, 10:40] & chosen[:, 11:41]).mean()
    assert abs(both - 19 * 18 / (125 * 124)) < 0.001


@pytest.mark.parametrize(
    'unit, mask_share, random_share',
    [
        ('token', 0.8, 0.1), ('word', 0.8, 0.1), ('span', 0.8, 0.1), ('token', 1.0, 0.0), ('word', 0.0, 1.0),
        ('span', 0.0, 0.2), ('token', 0.5, 0.5),
    ],
)  # fmt: skip
def test_the_shares_of_mask_random_and_unchanged_tokens(unit, mask_share, random_share):
    ids, maskable = rows_of_words(rows=4000, full=True)
    masked, predictions = mask(ids, maskable, unit=unit, mask=mask_share, random=random_share)
    chosen = chosen_of(predictions, 128)
    before, after = ids[chosen], masked[chosen]
    total = len(before)
    allowed = VOCABULARY - len(SPECIAL)
    changed = (after != MASK) & (after != before)
    visible_random = random_share * (1 - np.isin(before, np.arange(10, VOCABULARY)).mean() / allowed)
    for actual, share in [((after == MASK).mean(), mask_share), (changed.mean(), visible_random)]:
        assert abs(actual - share) <= 5 * np.sqrt(share * (1 - share) / total)
    replaced = after[changed]
    assert not np.isin(replaced, SPECIAL).any()
    if random_share == 1.0:
        counts = np.bincount(replaced, minlength=VOCABULARY)[10:]
        expected = len(replaced) / allowed
        assert ((counts - expected) ** 2).sum() / expected < allowed + 5 * np.sqrt(2 * allowed)


def words_of(ids, maskable, continues_word):
    """Returns a list of positions for each word, and None for each position that is not maskable."""
    words, inside = [], False
    for position in range(len(ids)):
        if not maskable[position]:
            words.append(None)
            inside = False
        elif inside and continues_word[ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
            inside = True
    return words


def plain_spans(ids, maskable, continues_word, budget, longest, seed, n):
    """Returns the positions to mask in one row, by the rules of Google (longest=1) or ALBERT, in a plain loop.

    The loop uses the random numbers of `mask_batch`.
    """
    words = words_of(ids, maskable, continues_word)
    order = [w for w, word in enumerate(words) if word]
    order.sort(key=lambda w: int(hash_bits(seed, Stream.MASK_CHOICE, n, words[w][0])))
    covered: set[int] = set()
    for rank, w in enumerate(order):
        if len(covered) >= budget:
            break
        available = 1
        while available < longest and w + available < len(words) and words[w + available]:
            available += 1
        chances = np.array([1 / (k + 1) for k in range(available)])
        draw = float(uniform(seed, Stream.MASK_SPAN, n, rank))
        length = 1 + int((np.cumsum(chances) / chances.sum() <= draw).sum()) if longest > 1 else 1
        while length and len(covered) + sum(map(len, words[w : w + length])) > budget:
            length -= 1
        span = {position for word in words[w : w + length] for position in word}
        if not span & covered:
            covered |= span
    return covered


@pytest.mark.parametrize(
    'every, longest, rate',
    [(2, 1, 0.15), (3, 1, 0.5), (1000, 1, 0.15), (2, 3, 0.5), (3, 3, 0.15), (1000, 3, 0.5), (3, 2, 0.15), (2, 5, 0.5)],
)
def test_words_and_spans_equal_those_of_the_plain_loop(every, longest, rate):
    ids, maskable = rows_of_words(rows=60)
    table = continues(every=every)
    unit = {'unit': 'span', 'max_span': longest} if longest > 1 else {'unit': 'word'}
    _, predictions = mask(ids, maskable, 40, table, seed=3, n=np.arange(60) + 5, rate=rate, **unit)
    chosen = chosen_of(predictions, 128)
    compared = 0
    for i in range(60):
        budget = min(40, max(1, round(rate * int(maskable[i].sum()))))
        expected = plain_spans(ids[i], maskable[i], table, budget, longest, 3, i + 5)
        if expected:
            assert set(np.nonzero(chosen[i])[0].tolist()) == expected
            compared += 1
    assert compared > 50


@pytest.mark.parametrize('longest', [1, 3])
def test_all_words_are_considered_if_most_are_too_long(longest):
    # Most words have at least 7 pieces, and the budget is 6. Few of the words with the lowest scores are short.
    ids, maskable = rows_of_words(rows=80, full=True)
    ids[:] = np.where(maskable, 20, ids)
    starts = np.arange(128) % 8 == 1
    starts[[60, 62, 63, 101]] = True
    ids[:, starts] = np.where(maskable[:, starts], 30, ids[:, starts])
    table = np.arange(VOCABULARY) == 20
    _, predictions = mask(ids, maskable, 20, table, seed=3, rate=0.05, unit='span', max_span=longest)
    chosen = chosen_of(predictions, 128)
    for i in range(80):
        expected = plain_spans(ids[i], maskable[i], table, 6, longest, 3, i)
        assert set(np.nonzero(chosen[i])[0].tolist()) == expected
        assert expected


@pytest.mark.parametrize('unit', ['word', 'span'])
def test_a_word_is_masked_completely_or_not_at_all(unit):
    ids, maskable = rows_of_words(rows=300)
    _, predictions = mask(ids, maskable, 128, unit=unit)
    chosen = chosen_of(predictions, 128)
    several = 0
    for i in range(300):
        for word in filter(None, words_of(ids[i], maskable[i], continues())):
            assert chosen[i, word].all() or not chosen[i, word].any()
            several += len(word) > 1 and chosen[i, word[0]]
    assert several > 100


def test_a_row_of_long_words_still_has_predictions():
    table = continues(every=1)  # Every piece continues a word, so each segment is one word.
    ids = np.full((2, 12), 20, np.int32)
    maskable = np.zeros((2, 12), bool)
    maskable[0, 1:8] = maskable[0, 9:11] = maskable[1, 1:11] = True
    for most, expected in [(20, [[9, 10], list(range(1, 11))]), (4, [[9, 10], [1, 2, 3, 4]])]:
        chosen = chosen_of(mask(ids, maskable, most, table, unit='word')[1], 12)
        assert [np.nonzero(row)[0].tolist() for row in chosen] == expected


def test_the_probability_of_a_span_length_is_proportional_to_one_over_the_length():
    # With a budget of 3 among 498 one-piece words, p(n) = 6/11, 3/11, 2/11 determines the number of runs.
    ids = np.full((8_000, 500), 20, np.int32)
    maskable = np.ones((8_000, 500), bool)
    maskable[:, [0, -1]] = False
    _, predictions = mask(ids, maskable, 3, np.zeros(VOCABULARY, bool), unit='span')
    positions = predictions['masked_positions']
    assert (predictions['masked_weights'] == 1).all()
    runs = 1 + (np.diff(positions) > 1).sum(1)
    for number, chance in [(1, 2 / 11), (2, 6 / 11 * 5 / 11 + 3 / 11), (3, (6 / 11) ** 2)]:
        assert abs((runs == number).mean() - chance) < 0.02


@pytest.mark.parametrize('options', UNITS, ids=str)
def test_masks_depend_only_on_the_row_and_its_number(options):
    ids, maskable = rows_of_words(rows=64)
    n = np.arange(64) * 10**9
    together = mask(ids, maskable, n=n, **options)
    order = np.random.default_rng(0).permutation(64)
    for some in (order, order[:5], order[:1]):
        alone = mask(ids[some], maskable[some], n=n[some], **options)
        assert np.array_equal(alone[0], together[0][some])
        assert all(np.array_equal(alone[1][name], together[1][name][some]) for name in together[1])
    again = mask(ids, maskable, n=n + 1, **options)
    assert not np.array_equal(again[1]['masked_positions'], together[1]['masked_positions'])


def test_a_row_without_words_has_no_predictions():
    ids, maskable = np.full((3, 8), PAD, np.int32), np.zeros((3, 8), bool)
    for unit in ('token', 'word', 'span'):
        masked, predictions = mask(ids, maskable, unit=unit)
        assert not predictions['masked_weights'].any()
        assert np.array_equal(masked, ids)


@pytest.mark.parametrize(
    'key, options',
    [
        ('rate', {'rate': 0.0}),
        ('rate', {'rate': 1.5}),
        ('mask', {'mask': -0.1}),
        ('random', {'random': 2.0}),
        ('random', {'mask': 0.9, 'random': 0.2}),
        ('unit', {'unit': 'letter'}),
        ('max_span', {'max_span': 0}),
    ],
)
def test_invalid_options_raise_an_error_that_names_their_key(key, options):
    with pytest.raises(UserError) as error:
        MaskOptions(**options)
    assert error.value.where == f'config.masking.{key}'
