"""Splits words into pieces, and sentences into the windows that become rows for tagging."""

from collections.abc import Sequence

import numpy as np

from bertjax.tasks.squad.windows import choose_windows
from bertjax.text.tokenizer import Tokenizer

WORDS = 'token_words'  # name of a token array, see TaggingTask.features


def word_pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes each of W words separately. A word without pieces, such as a control character, becomes [UNK].

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

    A sentence of up to `max_pieces` pieces is a single window. Words of `document` before and after the sentence fill
    the rest of the window, equally on both sides if there are enough words.

    A longer sentence is split into overlapping windows. A word is tagged in the window that `choose_windows` selects
    for its first piece. A window starts at the start of a word, except inside a word that is longer than `stride`.

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
    starts = np.array(begins)
    stops = np.minimum(starts + max_pieces, end)
    best = choose_windows(starts - start, stops - start, end - start, length_weight=0)[first[words] - start]
    tagged = [words[best == window] for window in range(len(starts))]
    return [window for window in zip(starts.tolist(), stops.tolist(), tagged, strict=True) if len(window[2])]
