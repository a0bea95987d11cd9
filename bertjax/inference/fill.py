"""Fills masks with a masked language model: each mask alone, all masks jointly, or masks appended to a text."""

import functools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.features import INPUTS, FeatureBuilder
from bertjax.errors import UserError
from bertjax.inference.runner import Forward, Runner
from bertjax.progress import Advance, ensure_progress, scale_progress
from bertjax.text.sentencepiece_proto import SPACE
from bertjax.text.special import MASK
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.tokenizer_base import is_unspaced

_SPACES = {'sentencepiece': SPACE, 'bpe': 'Ġ'}  # {tokenizer family: the character in pieces that represents a space}


class MaskedText:
    """A tokenized text with masks. A mask is written as [MASK], <mask> or the tokenizer's mask token.

    Attributes:
      ids: int32 [S], including [CLS] and [SEP], truncated at the end to `max_length`.
      positions: The positions of the masks in `ids`.

    Raises:
      UserError: The text, which messages call `where`, has no mask, or truncation would remove a mask.
    """

    def __init__(self, text: str, where: str, tokenizer: Tokenizer, max_length: int):
        mask_token = tokenizer.pieces[tokenizer.mask_id]
        pattern = '|'.join(map(re.escape, dict.fromkeys((MASK, '<mask>', mask_token))))
        self._parts, self._written_masks = re.split(pattern, text), re.findall(pattern, text)
        if len(self._parts) == 1:
            start = repr(text if len(text) < 60 else text[:59] + '…')
            fix = f'write {MASK} for the missing word'
            raise UserError(where, found=f'{start}, without a mask', expected=f'a text with {MASK}', fix=fix)
        self._tokenizer = tokenizer
        # Remove the space before a mask, as transformers does.
        *before, last = self._parts
        encoded = tokenizer.encode([*(part.rstrip() for part in before), last])
        ids = [tokenizer.cls_id, *encoded[0].tolist()]
        self.positions: list[int] = []
        self._attached: list[bool] = []  # whether the model reads the text after each mask without a space
        space = _SPACES.get(tokenizer.family)
        for part_ids, part in zip(encoded[1:], self._parts[1:], strict=True):
            self.positions.append(len(ids))
            stripped = _strip_added_space(tokenizer, part, part_ids.tolist())
            first = tokenizer.pieces[stripped[0]] if stripped else ''
            self._attached.append(space is not None and not first.startswith(space))
            ids += [tokenizer.mask_id, *stripped]
        self.ids = np.array([*ids[: max_length - 1], tokenizer.sep_id], np.int32)
        if self.positions[-1] >= max_length - 1:
            expected = f'all masks among the first {max_length - 1} tokens, which the model reads'
            found = f'a mask after {self.positions[-1]} tokens'
            raise UserError(where, found, expected, 'shorten the text before the mask')

    def fill(self, pieces: Mapping[int, int]) -> str:
        """Returns the text with masks replaced by pieces. `pieces` is {index of a mask: piece id}; other masks stay."""
        text = self._parts[0]
        for number, (written_mask, after) in enumerate(zip(self._written_masks, self._parts[1:], strict=True)):
            if number not in pieces:
                text += written_mask + after
                continue
            word = self._tokenizer.decode([pieces[number]]).strip()
            if self._tokenizer.continues_word[pieces[number]]:
                text, word = text.rstrip(), word.removeprefix('##')
            elif _needs_space(text, word):
                text += ' '
            has_space = _needs_space(word, after) and not self._attached[number]
            text += word + (' ' if has_space else '') + after
        return text


def _needs_space(before: str, after: str) -> bool:
    """Returns whether two words need a space between them."""
    ends = before[-1:], after[:1]
    return all(map(str.isalnum, ends)) and not any(map(is_unspaced, ends))


def _strip_added_space(tokenizer: Tokenizer, part: str, ids: list[int]) -> list[int]:
    """Removes the space that SentencePiece and some byte-level BPE tokenizers add before a text that has none."""
    first = tokenizer.pieces[ids[0]] if ids else ''
    if part[:1].isspace() or tokenizer.family not in _SPACES or not first.startswith(_SPACES[tokenizer.family]):
        return ids
    bare = first.removeprefix(_SPACES[tokenizer.family])
    if not bare:
        return ids[1:]
    return [tokenizer.pieces.index(bare), *ids[1:]] if bare in tokenizer.pieces else ids


def predict_pieces(
    runner: Runner,
    sequences: Sequence[np.ndarray],
    positions: Sequence[Sequence[int]],
    top_k: int,
    *,
    words_only: bool = False,
    title: str = '',
    advance: Advance | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predicts the most probable pieces at given positions of sequences.

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP].
      positions: The positions in each sequence, at least one per sequence.
      top_k: The number K of pieces per position, reduced if there are fewer candidates.
      words_only: Whether to exclude special tokens. The probabilities of the other pieces do not change.
      title, advance: See `Runner.run`.

    Returns:
      For each sequence with M positions, the ids of the pieces, int32 [M, K], and their log-probabilities,
      float32 [M, K], the most probable first.
    """
    tokenizer = runner.model.tokenizer
    # The embedding table may have more rows than the tokenizer has pieces.
    banned = np.arange(tokenizer.vocab_size, runner.model.config.vocab_size)
    banned = np.concatenate([banned, tokenizer.special_ids]) if words_only else banned
    top_k = min(top_k, runner.model.config.vocab_size - len(banned))
    make_forward = functools.partial(_make_predict_pieces, top_k=top_k, banned=banned)
    # All rows of a batch need equally many positions, so rows are grouped by this number, rounded up to a power of two.
    size = np.array([1 << (len(row) - 1).bit_length() for row in positions])
    results: list = [None] * len(sequences)
    inputs = (*INPUTS, 'masked_positions')
    with ensure_progress(advance, title, len(sequences)) as report:
        for count_limit in np.unique(size).tolist():
            builder, rows = FeatureBuilder(), np.flatnonzero(size == count_limit).tolist()
            for number, row in enumerate(rows):
                builder.add_sequence(sequences[row])
                padding = (0, count_limit - len(positions[row]))
                builder.add_row(number, masked_positions=np.pad(np.int32(positions[row]), padding))
            outputs = runner.run(
                ('predict_pieces', top_k, words_only), make_forward, builder.build(), inputs=inputs, advance=report
            )
            for row, ids, scores in zip(rows, outputs['ids'], outputs['log_probabilities'], strict=True):
                count = len(positions[row])
                results[row] = ids[:count], scores[:count]
    return results


def _make_predict_pieces(module: nn.Module, top_k: int, banned: np.ndarray) -> Forward:
    def forward(params, batch):
        inputs = [batch[name] for name in (*INPUTS, 'masked_positions')]
        logits = module.apply({'params': params}, *inputs)['mlm_logits']
        scores = jax.nn.log_softmax(logits[..., : module.config.vocab_size], axis=-1)  # [B, P, V]
        scores, ids = jax.lax.top_k(scores.at[..., banned].set(-jnp.inf), top_k)
        return {'ids': ids, 'log_probabilities': scores}

    return forward


def fill_each(
    runner: Runner, texts: Sequence[MaskedText], top_k: int, advance: Advance | None = None
) -> list[list[list[dict[str, Any]]]]:
    """Predicts the most probable pieces for each mask of each text. The other masks of the text stay masked.

    Returns:
      For each text and each mask, a list of `{'token': piece, 'probability': …, 'text': …}`, the most probable first.
    """
    ids, positions = [text.ids for text in texts], [text.positions for text in texts]
    predictions = predict_pieces(runner, ids, positions, top_k, title='filling', advance=advance)
    pieces = runner.model.tokenizer.pieces
    results = []
    for text, (ids, scores) in zip(texts, predictions, strict=True):
        masks = []
        for number, candidates in enumerate(zip(ids.tolist(), np.exp(scores).tolist(), strict=True)):
            masks.append(
                [
                    {'token': pieces[id], 'probability': probability, 'text': text.fill({number: id})}
                    for id, probability in zip(*candidates, strict=True)
                ]
            )
        results.append(masks)
    return results


def fill_jointly(runner: Runner, texts: Sequence[MaskedText], advance: Advance | None = None) -> list[dict[str, Any]]:
    """Fills the masks of each text one at a time. Each step fills the mask whose best piece is the most probable.

    Each prediction is conditioned on the pieces that are already filled in. Special tokens are never filled in. A
    result has the filled `text`, the pieces of the masks (`tokens`), the indices of the masks in the order of filling
    (`order`), and the sum of the conditional log-probabilities of the pieces (`log_probability`).
    """
    ids = [text.ids.copy() for text in texts]
    unfilled = [dict(enumerate(text.positions)) for text in texts]  # {mask index: position} of each text
    chosen: list[dict[int, int]] = [{} for _ in texts]  # {mask index: piece id} of each text, in the order of filling
    total = [0.0] * len(texts)
    with ensure_progress(advance, 'filling', len(texts)) as report:
        step = scale_progress(report, len(texts), sum(len(text.positions) for text in texts))
        while rows := [row for row, masks in enumerate(unfilled) if masks]:
            positions = [[*unfilled[row].values()] for row in rows]
            sequences = [ids[row] for row in rows]
            predictions = predict_pieces(runner, sequences, positions, 1, words_only=True, advance=step)
            for row, (best, scores) in zip(rows, predictions, strict=True):
                most_probable = int(scores[:, 0].argmax())
                mask, position = [*unfilled[row].items()][most_probable]
                del unfilled[row][mask]
                chosen[row][mask] = ids[row][position] = int(best[most_probable, 0])
                total[row] += float(scores[most_probable, 0])
    pieces = runner.model.tokenizer.pieces
    results = []
    for text, filling, score in zip(texts, chosen, total, strict=True):
        tokens = [pieces[filling[mask]] for mask in sorted(filling)]
        filled = {'text': text.fill(filling), 'tokens': tokens, 'order': list(filling)}
        results.append({**filled, 'log_probability': score})
    return results


def extend(
    runner: Runner,
    texts: Sequence[str],
    *,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    advance: Advance | None = None,
) -> list[str]:
    """Appends masks to each text and fills them from left to right (Wang and Cho 2019, arXiv 1902.04094).

    If a text is too long, the model does not read its beginning. The continuation of a text does not depend on the
    other texts. See `masked_methods.MaskedMethods.extend` for the options. Raises a UserError if `runner.max_length` is
    below `tokens` + 2, for [CLS] and [SEP].
    """
    tokenizer = runner.model.tokenizer
    max_context = runner.max_length - 2 - tokens
    if max_context < 0:
        expected = f'at most {runner.max_length - 2}, without [CLS] and [SEP]'
        raise UserError('tokens', str(tokens), expected, 'give a smaller number')
    contexts = [ids[max(len(ids) - max_context, 0) :] for ids in tokenizer.encode([text.rstrip() for text in texts])]
    tail = [*[tokenizer.mask_id] * tokens, tokenizer.sep_id]
    rows = [np.array([tokenizer.cls_id, *ids.tolist(), *tail], np.int32) for ids in contexts]
    random = [np.random.default_rng((seed, zlib.crc32(text.encode()))) for text in texts]
    count = 1 if temperature == 0 else top_k
    new_pieces: list[list[int]] = [[] for _ in texts]
    with ensure_progress(advance, 'continuing', len(texts)) as report:
        step = scale_progress(report, len(texts), len(texts) * tokens)
        for number in range(tokens):
            positions = [[1 + len(ids) + number] for ids in contexts]
            predictions = predict_pieces(runner, rows, positions, count, words_only=True, advance=step)
            for row, (ids, scores) in enumerate(predictions):
                piece = int(ids[0, _sample(scores[0], temperature, random[row])])
                rows[row][positions[row][0]] = piece
                new_pieces[row].append(piece)
    return [_append(tokenizer, text, pieces) for text, pieces in zip(texts, new_pieces, strict=True)]


def _sample(scores: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    if temperature == 0:
        return 0
    weights = np.exp((scores.astype(np.float64) - scores[0]) / temperature)
    return int(np.searchsorted(np.cumsum(weights / weights.sum()), random.random()).clip(0, len(weights) - 1))


def _append(tokenizer: Tokenizer, text: str, pieces: Sequence[int]) -> str:
    """Appends the decoded pieces to the text."""
    if not pieces:
        return text
    joined = tokenizer.decode(pieces).strip()
    if tokenizer.continues_word[pieces[0]]:
        return text.rstrip() + joined.removeprefix('##')
    if not joined:
        return text
    is_attached = not text.strip() or re.match(r'[^\w\s]', joined) or is_unspaced(joined)
    return text.rstrip() + ('' if is_attached else ' ') + joined
