"""Builds the rows for tagging. A row has consecutive pieces of a document. Some of its words are tagged in this row."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.tagging.columns import Sentence
from bertjax.text.tokenizer import Tokenizer

WORDS = 'token_words'  # name of a token array, see `tagging_features`


def word_pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokenises each of W words separately.

    A word without pieces, such as a control character, becomes [UNK], so that every word has a piece.

    Returns:
      The ids of the T pieces, int32 [T]; and the index of the first piece of each word, followed by T, int64 [W + 1].
    """
    distinct = list(dict.fromkeys(words))
    unknown = np.array([tokenizer.unk_id], np.int32)
    texts = [tokenizer.word_prefix + word for word in distinct]
    encoded = [ids if len(ids) else unknown for ids in tokenizer.encode(texts)]
    pieces = dict(zip(distinct, encoded, strict=True))
    parts = [pieces[word] for word in words]
    return np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])])


def piece_offsets(words: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Returns an int [P, 2] array for each word with P pieces: (first character, end) of each piece within the word."""
    distinct = list(dict.fromkeys(words))
    space = tokenizer.word_prefix
    located = tokenizer.encode_with_offsets([space + word for word in distinct])
    offsets = {
        word: np.stack([starts, ends], axis=1) - len(space) if len(ids) else np.array([[0, len(word)]])
        for word, (ids, starts, ends) in zip(distinct, located, strict=True)
    }
    return [offsets[word] for word in words]


def windows(
    first: np.ndarray, sentence: tuple[int, int], document: tuple[int, int], *, max_pieces: int, stride: int
) -> list[tuple[int, int, np.ndarray]]:
    """Splits a sentence into windows. Each word is tagged in exactly one window.

    A sentence of up to `max_pieces` pieces is a single window. Words before and after the sentence fill the rest of the
    window, equally on both sides if `document` has enough words.

    A longer sentence is split into overlapping windows. A word is tagged in the window that maximises the smaller of
    its left and right contexts, similar to run_squad.py:_check_is_max_context of google-research/bert.
    A window starts at the start of a word, except inside a word that is longer than `stride`.

    Args:
      first: The index of the first piece of each word of the document, followed by the number of pieces, int64 [W + 1].
      sentence: (start, end), the range of the sentence's words in the document; `end` is exclusive.
      document: (start, end), the range of the words that a window may include; equal to `sentence` for no context.
      max_pieces: The maximum number of pieces in a window.
      stride: The maximum distance between the starts of consecutive windows, in pieces; at most `max_pieces`.

    Returns:
      (index of the first piece, index after the last piece, int64 indices of the words to tag) for each window.
    """
    words = np.arange(*sentence)
    start, end = int(first[sentence[0]]), int(first[sentence[1]])
    if end - start <= max_pieces:
        low, high = int(first[document[0]]), int(first[document[1]])
        spare, before, after = max_pieces - (end - start), start - low, high - end
        before = min(before, max(spare // 2, spare - after))
        after = min(after, spare - before)
        begin = first[np.searchsorted(first, start - before)]  # the start of a word
        stop = first[np.searchsorted(first, end + after, side='right') - 1]
        return [(int(begin), int(stop), words)]
    begins, last_begin = [start], int(first[np.searchsorted(first, end - max_pieces)])
    while begins[-1] + max_pieces < end:
        begin = begins[-1] + stride
        word_start = int(first[np.searchsorted(first, begin, side='right') - 1])
        begins.append(min(word_start if word_start > begins[-1] else begin, last_begin))
    bounds = np.array([(begin, min(begin + max_pieces, end)) for begin in begins])  # [N, 2] for N windows
    positions = first[words][:, None]  # [words, 1]
    context = np.minimum(positions - bounds[:, 0], bounds[:, 1] - 1 - positions)  # [words, N], < 0 outside a window
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
    """Builds a row `[CLS] pieces [SEP]` for each window of the sentences.

    Args:
      records: The sentences; the sentences of a document must be consecutive.
      numbers: The class index of each tag.
      seq_len: The maximum sequence length, at least 3.
      stride: See `windows`.
      context: Whether to fill rows with the surrounding sentences of the same document.

    Returns:
      Features with three token arrays. They are 0 except at the first piece of each word that the row tags. There,
        token_words, int32, is 1 + the index of the word in its record;
        token_labels, int32, is the class index of the word's tag, or 0 if `numbers` lacks the tag;
        token_weights, float32, is 1 if `numbers` has the tag, else 0.
    """
    builder = FeatureBuilder()
    for _, group in itertools.groupby(enumerate(records), key=lambda item: item[1].document):
        document = list(group)
        ids, first = word_pieces([word for _, record in document for word in record.words], tokenizer)
        bounds = np.cumsum([0, *(len(record.words) for _, record in document)]).tolist()
        for (i, record), sentence in zip(document, itertools.pairwise(bounds), strict=True):
            labels = np.array([numbers.get(tag, -1) for tag in record.tags or [''] * len(record.words)])
            visible = (0, bounds[-1]) if context else sentence
            for start, stop, words in windows(first, sentence, visible, max_pieces=seq_len - 2, stride=stride):
                tokens = add_special_tokens(ids[start:stop], tokenizer)
                positions, numbers_in_record = first[words] - start + 1, words - sentence[0]
                token = {name: np.zeros(len(tokens), np.int32) for name in ('token_labels', WORDS)}
                token['token_weights'] = np.zeros(len(tokens), np.float32)
                token['token_labels'][positions] = np.maximum(labels[numbers_in_record], 0)
                token['token_weights'][positions] = labels[numbers_in_record] >= 0
                token[WORDS][positions] = numbers_in_record + 1
                builder.add_sequence(tokens, **token)
                builder.add_row(i)
    return builder.build()
