"""Sentences to tag as rows of pieces: which part of a document the model sees, and which words of it are tagged."""

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
      ids: int32 [T].
      first: int64 [W + 1], where each word begins; the last entry is T.
    """

    ids: np.ndarray
    first: np.ndarray


def word_pieces(words: Sequence[str], tokenizer: Tokenizer) -> Pieces:
    """Tokenises each word by itself. A word without any piece, such as a control character, becomes [UNK]: every word
    has a piece to carry its tag."""
    different = list(dict.fromkeys(words))
    unknown = np.array([tokenizer.unk_id], np.int32)
    texts = [_space(tokenizer) + word for word in different]
    encoded = [ids if len(ids) else unknown for ids in tokenizer.encode(texts)]
    pieces = dict(zip(different, encoded, strict=True))
    parts = [pieces[word] for word in words]
    return Pieces(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]))


def piece_offsets(words: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Where the pieces of each word stand in it, as of `word_pieces`: int [P, 2], the first character and the one
    behind the last."""
    different = list(dict.fromkeys(words))
    space = _space(tokenizer)
    located = tokenizer.encode_with_offsets([space + word for word in different])
    places = {
        word: np.stack([starts, ends], axis=1) - len(space) if len(ids) else np.array([[0, len(word)]])
        for word, (ids, starts, ends) in zip(different, located, strict=True)
    }
    return [places[word] for word in words]


def _space(tokenizer: Tokenizer) -> str:
    """What is put before a word: byte-level BPE's pieces have the space in front of a word in them."""
    return ' ' if tokenizer.family == 'bpe' else ''


def windows(
    first: np.ndarray, sentence: tuple[int, int], document: tuple[int, int], *, room: int, stride: int
) -> list[tuple[int, int, np.ndarray]]:
    """The windows of a sentence; each word is tagged in one of them.

    A sentence that fits is one window; the room left goes to the surrounding words of the document, shared evenly
    between both sides as far as there are any. A longer one is cut into overlapping windows, and a word is tagged in
    the window with the most context on the word's shorter side (google-research/bert's rule for answers,
    run_squad.py:_check_is_max_context). Windows begin at the beginning of words, except inside a word that is longer
    than `stride`.

    Args:
      first: int64 [W + 1], where each word of the document begins, and the end (see Pieces).
      sentence: numbers of its first word and of the word after its last.
      document: the same for all words that may be seen; equal to `sentence` for no context.
      room: pieces in a window.
      stride: pieces from the beginning of a window to that of the next, at most `room`.

    Returns:
      (first piece, piece after the last, int64 numbers of the words to tag) of each window.
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
        begins.append(min(_word_at(first, begins[-1] + stride, above=begins[-1]), _tail(first, end - room)))
    bounds = np.array([(begin, min(begin + room, end)) for begin in begins])  # [N, 2]
    at = first[words]  # [W']
    context = np.minimum(at[:, None] - bounds[:, 0], bounds[:, 1] - 1 - at[:, None])  # [W', N], below 0 outside
    best = context.argmax(1)
    found = [(int(begin), int(stop), words[best == i]) for i, (begin, stop) in enumerate(bounds)]
    return [window for window in found if len(window[2])]


def tagging_features(
    records: Sequence[Sentence],
    numbers: Mapping[str, int],
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    stride: int,
    context: bool,
) -> Features:
    """Rows `[CLS] pieces [SEP]`, one for each window.

    Args:
      records: the sentences, those of a document consecutive.
      numbers: of the tags.
      tokenizer: of the model.
      seq_len: S, at least 3.
      stride: see `windows`.
      context: whether rows are filled with the surrounding sentences of the same document.

    Returns:
      features with `token_words`, int32: at the first piece of a word to tag its number in the record, from 1, and 0
      elsewhere; `token_labels`, int32; `token_weights`, float32, 1 where such a word has a tag among `numbers`.
    """
    builder = FeatureBuilder()
    for _, group in itertools.groupby(enumerate(records), key=lambda item: item[1].document):
        document = list(group)
        pieces = word_pieces([word for _, record in document for word in record.words], tokenizer)
        bounds = np.cumsum([0, *(len(record.words) for _, record in document)]).tolist()
        for (i, record), sentence in zip(document, itertools.pairwise(bounds), strict=True):
            labels = np.array([numbers.get(tag, -1) for tag in record.tags or [''] * len(record.words)])
            seen = (0, bounds[-1]) if context else sentence
            for start, stop, words in windows(pieces.first, sentence, seen, room=seq_len - 2, stride=stride):
                tokens = np.concatenate([[tokenizer.cls_id], pieces.ids[start:stop], [tokenizer.sep_id]])
                at, own = pieces.first[words] - start + 1, words - sentence[0]
                token = {name: np.zeros(len(tokens), np.int32) for name in ('token_labels', WORDS)}
                token['token_weights'] = np.zeros(len(tokens), np.float32)
                token['token_labels'][at] = np.maximum(labels[own], 0)
                token['token_weights'][at] = labels[own] >= 0
                token[WORDS][at] = own + 1
                builder.add_sequence(tokens, **token)
                builder.add_row(i)
    return builder.build()


def _word_at(first: np.ndarray, position: int, *, above: int) -> int:
    """The last beginning of a word in (`above`, `position`]; `position` where there is none."""
    begin = int(first[np.searchsorted(first, position, side='right') - 1])
    return begin if begin > above else position


def _tail(first: np.ndarray, position: int) -> int:
    """The first beginning of a word from `position` on."""
    return int(first[np.searchsorted(first, position)])
