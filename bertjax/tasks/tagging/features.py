"""Rows of pieces for tagging: the part of a document that a row shows, and the words that it tags."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.tagging.columns import Sentence
from bertjax.text.tokenizer import Tokenizer

WORDS = 'token_words'


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The concatenated pieces of words.

    Attributes:
      ids: the ids of the pieces, int32 [T].
      first: the index of the first piece of each word, and T, int64 [W + 1].
    """

    ids: np.ndarray
    first: np.ndarray


def word_pieces(words: Sequence[str], tokenizer: Tokenizer) -> Pieces:
    """Tokenises each word separately.

    A word without pieces, such as a control character, becomes [UNK], so that every word has a piece for its tag.
    """
    distinct = list(dict.fromkeys(words))
    unknown = np.array([tokenizer.unk_id], np.int32)
    texts = [_space(tokenizer) + word for word in distinct]
    encoded = [ids if len(ids) else unknown for ids in tokenizer.encode(texts)]
    pieces = dict(zip(distinct, encoded, strict=True))
    parts = [pieces[word] for word in words]
    return Pieces(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]))


def piece_offsets(words: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Returns the (first character, end) of each word's pieces, relative to the word, int [P, 2]; see `word_pieces`."""
    distinct = list(dict.fromkeys(words))
    space = _space(tokenizer)
    located = tokenizer.encode_with_offsets([space + word for word in distinct])
    places = {
        word: np.stack([starts, ends], axis=1) - len(space) if len(ids) else np.array([[0, len(word)]])
        for word, (ids, starts, ends) in zip(distinct, located, strict=True)
    }
    return [places[word] for word in words]


def _space(tokenizer: Tokenizer) -> str:
    """Returns the prefix of a word: pieces of byte-level BPE include the space in front of a word."""
    return ' ' if tokenizer.family == 'bpe' else ''


def windows(
    first: np.ndarray, sentence: tuple[int, int], document: tuple[int, int], *, room: int, stride: int
) -> list[tuple[int, int, np.ndarray]]:
    """Splits a sentence into windows such that each word is tagged in exactly one.

    A sentence that fits is one window. The remaining room is filled with the surrounding words of the document, evenly
    on both sides if there are enough words. A longer sentence is cut into overlapping windows; a word is tagged in the
    window with the most context on its shorter side (the rule of google-research/bert for answers,
    run_squad.py:_check_is_max_context). Windows start at the start of a word, except inside a word that is longer than
    `stride`.

    Args:
      first: The index of the first piece of each word of the document, and the end, int64 [W + 1] (see Pieces).
      sentence: The numbers of the first word of the sentence and of the word after its last.
      document: The same two numbers for all words that a window may include; equal to `sentence` for no context.
      room: The maximum number of pieces in a window.
      stride: The distance between the starts of two windows, in pieces; at most `room`.

    Returns:
      (first piece, piece after the last, int64 numbers of the words to tag) for each window.
    """
    words = np.arange(*sentence)
    start, end = int(first[sentence[0]]), int(first[sentence[1]])
    if end - start <= room:
        low, high = int(first[document[0]]), int(first[document[1]])
        spare, before, after = room - (end - start), start - low, high - end
        before = min(before, max(spare // 2, spare - after))
        after = min(after, spare - before)
        begin = first[np.searchsorted(first, start - before)]  # whole words only
        stop = first[np.searchsorted(first, end + after, side='right') - 1]
        return [(int(begin), int(stop), words)]
    begins = [start]
    while begins[-1] + room < end:
        begins.append(
            min(_last_word_start(first, begins[-1] + stride, above=begins[-1]), _first_word_start(first, end - room))
        )
    bounds = np.array([(begin, min(begin + room, end)) for begin in begins])  # [N, 2]
    positions = first[words][:, None]  # [W', 1]
    context = np.minimum(positions - bounds[:, 0], bounds[:, 1] - 1 - positions)  # [W', N], below 0 outside
    best = context.argmax(1)
    all_windows = [(int(begin), int(stop), words[best == i]) for i, (begin, stop) in enumerate(bounds)]
    return [window for window in all_windows if len(window[2])]


def tagging_features(
    records: Sequence[Sentence],
    numbers: Mapping[str, int],
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    stride: int,
    context: bool,
) -> Features:
    """Builds rows `[CLS] pieces [SEP]`, one for each window.

    Args:
      records: The sentences; those of one document are consecutive.
      numbers: The number of each tag.
      tokenizer: The tokenizer of the model.
      seq_len: The maximum sequence length S, at least 3.
      stride: See `windows`.
      context: Whether to fill rows with the surrounding sentences of the same document.

    Returns:
      Features with three arrays for the tokens: `token_words`, int32, is the number of the word in the record, from 1,
      at the first piece of a word to tag, and 0 elsewhere; `token_labels`, int32, is the number of its tag;
      `token_weights`, float32, is 1 for words to tag whose tag is in `numbers`.
    """
    builder = FeatureBuilder()
    for _, group in itertools.groupby(enumerate(records), key=lambda item: item[1].document):
        document = list(group)
        pieces = word_pieces([word for _, record in document for word in record.words], tokenizer)
        bounds = np.cumsum([0, *(len(record.words) for _, record in document)]).tolist()
        for (i, record), sentence in zip(document, itertools.pairwise(bounds), strict=True):
            labels = np.array([numbers.get(tag, -1) for tag in record.tags or [''] * len(record.words)])
            visible = (0, bounds[-1]) if context else sentence
            for start, stop, words in windows(pieces.first, sentence, visible, room=seq_len - 2, stride=stride):
                tokens = np.concatenate([[tokenizer.cls_id], pieces.ids[start:stop], [tokenizer.sep_id]])
                positions, numbers_in_record = pieces.first[words] - start + 1, words - sentence[0]
                token = {name: np.zeros(len(tokens), np.int32) for name in ('token_labels', WORDS)}
                token['token_weights'] = np.zeros(len(tokens), np.float32)
                token['token_labels'][positions] = np.maximum(labels[numbers_in_record], 0)
                token['token_weights'][positions] = labels[numbers_in_record] >= 0
                token[WORDS][positions] = numbers_in_record + 1
                builder.add_sequence(tokens, **token)
                builder.add_row(i)
    return builder.build()


def _last_word_start(first: np.ndarray, position: int, *, above: int) -> int:
    """Returns the last start of a word in (`above`, `position`]; `position` if there is none."""
    begin = int(first[np.searchsorted(first, position, side='right') - 1])
    return begin if begin > above else position


def _first_word_start(first: np.ndarray, position: int) -> int:
    """Returns the first start of a word at or after `position`."""
    return int(first[np.searchsorted(first, position)])
