"""Texts with masks: what a masked language model would fill in, one by one, all together, or at the end."""

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.inference.masked import expected
from bertjax.inference.runner import Runner
from bertjax.progress import Advance, in_proportion, telling
from bertjax.text.sentencepiece_proto import SPACE
from bertjax.text.special import MASK
from bertjax.text.tokenizer import Tokenizer

_SPACES = {'sentencepiece': SPACE, 'bpe': 'Ġ'}  # how pieces show the space before them


class MaskedText:
    """A text with masks, cut at them: written [MASK], <mask>, or as the tokenizer has it.

    Attributes:
      ids: int32 [S], [CLS] and [SEP] around them.
      positions: of the masks.

    Args:
      text: with at least one mask.
      where: its place, for messages.
      tokenizer: of the model.
      max_length: its longest sequence; what is longer loses its end.

    Raises:
      UserError: no mask, or one behind the end.
    """

    def __init__(self, text: str, where: str, tokenizer: Tokenizer, max_length: int):
        own = tokenizer.pieces[tokenizer.mask_id]
        written = '|'.join(map(re.escape, dict.fromkeys((MASK, '<mask>', own))))
        self._parts, self._written = re.split(written, text), re.findall(written, text)
        if len(self._parts) == 1:
            found = repr(text if len(text) < 60 else text[:59] + '…')
            raise UserError(
                where, f'{found}, without a mask', f'a text with {MASK}', f'write {MASK} for what is missing'
            )
        self._tokenizer = tokenizer
        # A mask takes the space before it along, as transformers has it.
        *before, last = self._parts
        encoded = tokenizer.encode([*(part.rstrip() for part in before), last])
        ids = [tokenizer.cls_id, *encoded[0].tolist()]
        self.positions: list[int] = []
        for part, behind in zip(encoded[1:], self._parts[1:], strict=True):
            self.positions.append(len(ids))
            ids += [tokenizer.mask_id, *_going_on(tokenizer, behind, part.tolist())]
        self.ids = np.array([*ids[: max_length - 1], tokenizer.sep_id], np.int32)
        if self.positions[-1] >= max_length - 1:
            found = f'a mask behind {self.positions[-1]} tokens'
            fix = 'shorten the text before it'
            raise UserError(where, found, f'all masks among the first {max_length - 1}, which the model reads', fix)

    def filled(self, pieces: Sequence[int | None]) -> str:
        """The text with a piece for each mask; None leaves it as it is written."""
        text = self._parts[0]
        for piece, written, after in zip(pieces, self._written, self._parts[1:], strict=True):
            if piece is None:
                text += written + after
                continue
            word = word_of(self._tokenizer, piece)
            if self._tokenizer.continues_word[piece]:
                text = text.rstrip()
            elif text[-1:].isalnum() and word[:1].isalnum():
                text += ' '
            text += word + (' ' if word[-1:].isalnum() and after[:1].isalnum() else '') + after
        return text


def _going_on(tokenizer: Tokenizer, part: str, ids: list[int]) -> list[int]:
    """The pieces of what stands behind a mask, without the space that SentencePiece and some byte-level BPE put before
    whatever they encode, where the text has none: `, it` of `the [MASK], it`."""
    first = tokenizer.pieces[ids[0]] if ids else ''
    if part[:1].isspace() or tokenizer.family not in _SPACES or not first.startswith(_SPACES[tokenizer.family]):
        return ids
    bare = first.removeprefix(_SPACES[tokenizer.family])
    if not bare:
        return ids[1:]
    return [tokenizer.pieces.index(bare), *ids[1:]] if bare in tokenizer.pieces else ids


def word_of(tokenizer: Tokenizer, piece: int) -> str:
    """A piece as it stands in a text: 'ing' of '##ing'."""
    text = tokenizer.decode([piece]).strip()
    return text.removeprefix('##') if tokenizer.continues_word[piece] else text


def fill_each(
    runner: Runner, texts: Sequence[MaskedText], top_k: int, advance: Advance | None = None
) -> list[list[list[dict[str, Any]]]]:
    """The most probable pieces for each mask of each text, with all other masks as they are.

    `advance` see `Runner.run`.

    Returns:
      Of each text, of each mask: `{'token': piece, 'probability': …, 'text': …}`, the most probable first.
    """
    ids, positions = [text.ids for text in texts], [text.positions for text in texts]
    found = expected(runner, ids, positions, top_k, title='filling', advance=advance)
    pieces = runner.model.tokenizer.pieces
    results = []
    for text, (ids, scores) in zip(texts, found, strict=True):
        masks = []
        for number, (row, probabilities) in enumerate(zip(ids.tolist(), np.exp(scores).tolist(), strict=True)):
            others = [None] * len(ids)
            masks.append(
                [
                    {
                        'token': pieces[id],
                        'probability': p,
                        'text': text.filled([*others[:number], id, *others[number + 1 :]]),
                    }
                    for id, p in zip(row, probabilities, strict=True)
                ]
            )
        results.append(masks)
    return results


def fill_jointly(runner: Runner, texts: Sequence[MaskedText], advance: Advance | None = None) -> list[dict[str, Any]]:
    """Fills all masks of each text: again and again the one of whose piece the model is most sure, given those before.

    Special tokens are never filled in. `advance` see `Runner.run`.

    Returns:
      Of each text `text`, `tokens`, a piece a mask, `order`, the numbers of the masks as they were filled, and
      `log_probability`: the sum of those that the pieces had when they were filled in, which by the chain rule is that
      of all of them in this order.
    """
    ids = [text.ids.copy() for text in texts]
    chosen: list[dict[int, int]] = [{} for _ in texts]  # of each text {number of the mask: piece}, as they were filled
    total = [0.0] * len(texts)
    with telling(advance, 'filling', len(texts)) as tell:
        step = in_proportion(tell, len(texts), sum(len(text.positions) for text in texts))
        while open := [row for row, text in enumerate(texts) if len(chosen[row]) < len(text.positions)]:
            left = [[n for n in range(len(texts[row].positions)) if n not in chosen[row]] for row in open]
            places = [[texts[row].positions[n] for n in own] for row, own in zip(open, left, strict=True)]
            found = expected(runner, [ids[row] for row in open], places, 1, words=True, advance=step)
            for row, own, where, (best, scores) in zip(open, left, places, found, strict=True):
                surest = int(scores[:, 0].argmax())
                chosen[row][own[surest]] = ids[row][where[surest]] = int(best[surest, 0])
                total[row] += float(scores[surest, 0])
    pieces = runner.model.tokenizer.pieces
    results = []
    for text, own, score in zip(texts, chosen, total, strict=True):
        ordered = [own[n] for n in range(len(text.positions))]
        facts = {'tokens': [pieces[id] for id in ordered], 'order': list(own), 'log_probability': score}
        results.append({'text': text.filled(ordered), **facts})
    return results


def extend(
    runner: Runner,
    texts: Sequence[str],
    *,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    max_length: int,
    advance: Advance | None = None,
) -> list[str]:
    """Appends so many masks to each text and fills them from left to right, one for each run of the model.

    A masked language model was never trained for this: it is slow, and what comes is weak (Wang and Cho 2019, "BERT has
    a Mouth, and It Must Speak", arXiv 1902.04094). A text that is too long loses its beginning on the way in.

    Args:
      runner: of a model with an MLM head.
      texts: to be continued.
      tokens: pieces to append.
      temperature: of the distribution that is drawn from; 0 for always the most probable piece.
      top_k: it is cut to so many pieces.
      seed: the same seed continues the same text in the same way, whatever texts stand beside it.
      max_length: tokens of the longest sequence.
      advance: see `Runner.run`.

    Returns:
      The texts with their continuations.

    Raises:
      UserError: more tokens than a sequence has room for.
    """
    tokenizer = runner.model.tokenizer
    room = max_length - 2 - tokens
    if room < 0:
        raise UserError('tokens', str(tokens), f'at most {max_length - 2}, beside [CLS] and [SEP]', 'ask for fewer')
    begin = [ids[max(len(ids) - room, 0) :] for ids in tokenizer.encode([text.rstrip() for text in texts])]
    tail = [*[tokenizer.mask_id] * tokens, tokenizer.sep_id]
    rows = [np.array([tokenizer.cls_id, *ids.tolist(), *tail], np.int32) for ids in begin]
    random = [np.random.default_rng((seed, zlib.crc32(text.encode()))) for text in texts]
    count = 1 if temperature == 0 else top_k
    added: list[list[int]] = [[] for _ in texts]
    with telling(advance, 'continuing', len(texts)) as tell:
        step = in_proportion(tell, len(texts), len(texts) * tokens)
        for number in range(tokens):
            places = [[1 + len(ids) + number] for ids in begin]
            for row, (ids, scores) in enumerate(expected(runner, rows, places, count, words=True, advance=step)):
                piece = int(ids[0, _drawn(scores[0], temperature, random[row])])
                rows[row][places[row][0]] = piece
                added[row].append(piece)
    return [_appended(tokenizer, text, pieces) for text, pieces in zip(texts, added, strict=True)]


def _drawn(scores: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    if temperature == 0:
        return 0
    weights = np.exp((scores.astype(np.float64) - scores[0]) / temperature)
    return int(np.searchsorted(np.cumsum(weights / weights.sum()), random.random()).clip(0, len(weights) - 1))


def _appended(tokenizer: Tokenizer, text: str, pieces: Sequence[int]) -> str:
    """The text as it was, and the pieces behind it as they are read."""
    if not pieces:
        return text
    joined = tokenizer.decode(pieces).strip()
    if tokenizer.continues_word[pieces[0]]:
        return text.rstrip() + joined.removeprefix('##')
    return (
        text
        if not joined
        else text.rstrip() + ('' if not text.strip() or re.match(r'[^\w\s]', joined) else ' ') + joined
    )
