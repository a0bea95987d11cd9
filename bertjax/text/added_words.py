"""Adds words to a WordPiece vocabulary: first in place of its [unusedN] pieces, then after the last piece.

An added word is never split, because WordPiece takes the longest piece first. Words that begin with an added word may
be split differently than before. Apart from the replaced pieces, all old pieces keep their ids.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from tokenizers import pre_tokenizers

from bertjax.errors import UserError
from bertjax.files.small_files import read_lines
from bertjax.text.bert_settings import MAX_CHARACTERS, PREFIX
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer

KEY = 'config.vocab.add'
_FIX = 'give a text file with one word on each line'


def read_words(path: epath.PathLike) -> list[tuple[int, str]]:
    """Reads the words of a file and their line numbers.

    A word is the text of a line up to the first tab, so the file may have the columns of `rank_candidates`.

    Raises:
      UserError: The file does not exist, is not text, or has no word.
    """
    lines = [line.partition('\t')[0].strip() for line in read_lines(path, 'words', KEY, _FIX)]
    words = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not words:
        fix = 'leave config.vocab.add empty, or fill the file'
        raise UserError(str(path), found='no word', expected='one word on each line', fix=fix)
    return words


def check_extensible(tokenizer: Tokenizer, key: str, fix: str) -> None:
    """Raises a UserError for `key` unless the tokenizer is WordPiece with BERT's settings and no other added token."""
    if not isinstance(tokenizer, WordPieceTokenizer) or not tokenizer.is_bert:
        found = f'a {tokenizer.family} vocabulary with other settings or added tokens'
        raise UserError(key, found, "a WordPiece vocabulary with BERT's settings", fix)


def insert_words(tokenizer: Tokenizer, words: Sequence[tuple[int, str]], where: str) -> tuple[WordPieceTokenizer, int]:
    """Adds the words of the file `where`, pairs of line number and word, to a tokenizer as pieces.

    Returns:
      The new tokenizer, and the number of words that were not pieces before.

    Raises:
      UserError: `check_extensible` rejects the tokenizer, a word is too long, or BERT's pre-tokenizer splits a word.
    """
    check_extensible(tokenizer, KEY, 'leave config.vocab.add empty, or train a vocabulary on the new text')
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces, known = list(tokenizer.pieces), set(tokenizer.pieces)
    slots = [i for i in tokenizer.special_ids.tolist() if is_unused(pieces[i]) and i not in tokenizer.added_ids]
    added = 0
    for line, raw_word in words:
        word = tokenizer.normalize(raw_word).strip()
        parts = [part for part, _ in pre_tokenizer.pre_tokenize_str(word)]
        if len(parts) != 1 or len(word) > MAX_CHARACTERS:
            found = f'{raw_word!r}, which BERT reads as {" ".join(map(repr, parts[:6])) or "nothing"}'
            expected = f'one word of up to {MAX_CHARACTERS} characters'
            raise UserError(f'{where}:{line}', found, expected, 'remove the line')
        if word in known:
            continue
        known.add(word)
        added += 1
        if slots:
            pieces[slots.pop()] = word  # the last slot, because some models use the first slots as markers
        else:
            pieces.append(word)
    return tokenizer.with_pieces(pieces), added


def load_model_tokenizer(directory: str, tokenizer: Tokenizer, rows: int) -> Tokenizer:
    """Returns the tokenizer of the model in `directory`, or `tokenizer` if the directory has none.

    Raises:
      UserError: `tokenizer`, from config.tokenizer, lacks a piece of the model or gives it another id. Only [unusedN]
        pieces may be replaced. Without the model's tokenizer, the number of pieces is compared with `rows`, the number
        of token embeddings.
    """
    try:
        model_tokenizer = load_tokenizer(directory)
    except UserError:
        if tokenizer.vocab_size == rows:
            return tokenizer
        found, expected = f'{tokenizer.vocab_size:,} pieces', f'{rows:,}, as in {directory}'
        fix = 'give the vocabulary with which the model was trained'
        raise UserError('config.tokenizer', found, expected, fix) from None
    for i, piece in enumerate(model_tokenizer.pieces):
        if tokenizer.pieces[i : i + 1] != [piece] and not is_unused(piece):
            found, fix = f'no {piece!r} with id {i}', 'leave config.tokenizer empty to use it'
            raise UserError('config.tokenizer', found, f'the vocabulary of {directory}', fix)
    return model_tokenizer


def find_previous_ids(old_tokenizer: Tokenizer, new_tokenizer: Tokenizer) -> dict[int, list[int]]:
    """Returns {id of a piece that the new tokenizer adds: the ids of its text in the old tokenizer}."""
    new = [
        i
        for i, piece in enumerate(new_tokenizer.pieces)
        if i >= old_tokenizer.vocab_size or old_tokenizer.pieces[i] != piece
    ]
    # Decoding removes the marks of a tokenizer, such as 'Ġ', except PREFIX at the start of a text.
    ids = old_tokenizer.encode([new_tokenizer.decode([i]).removeprefix(PREFIX) for i in new])
    # A piece that normalization removes, such as a combining accent, has no previous pieces.
    return {i: pieces.tolist() or [old_tokenizer.unk_id] for i, pieces in zip(new, ids, strict=True)}


def rank_candidates(
    counts: Mapping[str, int], tokenizer: Tokenizer, max_words: int
) -> list[tuple[str, int, list[str]]]:
    """Returns (word, count, current pieces) of the words whose addition would save the most pieces, the best first.

    Words that occur once are left out. If a word is now [UNK], each occurrence counts as one saved piece.
    """
    words = [word for word, count in counts.items() if count > 1]
    ranked: list[tuple[int, str, int, Any]] = []
    for word, ids in zip(words, tokenizer.encode(words), strict=True):
        unknown = tokenizer.unk_id in ids  # the whole word is one [UNK]
        savings = counts[word] * (len(ids) - (not unknown))
        if savings:
            ranked.append((-savings, word, counts[word], ids))
    best = heapq.nsmallest(max_words, ranked, key=lambda item: item[:2])
    return [(word, count, [tokenizer.pieces[i] for i in ids]) for _, word, count, ids in best]
