"""Words of one's own in a WordPiece vocabulary: into [unusedN] slots while there are some, then behind the last piece.

WordPiece takes the longest piece first, so a word that is a piece is never split, in transformers no more than here.
Words that begin with it may be split otherwise than before; what an id meant that is not a slot, it means still.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from tokenizers import pre_tokenizers

from bertjax.errors import UserError
from bertjax.files.small_files import read_lines
from bertjax.text.bert_settings import MAX_CHARACTERS
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer

KEY = 'config.vocab.add'
_FIX = 'give a text file with a word a line'


def read_words(path: epath.PathLike) -> list[tuple[int, str]]:
    """The words of a file with their lines; of a line up to the first tab, as `candidates` are written.

    Raises:
      UserError: no such file, one that is no text, or without a word.
    """
    lines = [line.partition('\t')[0].strip() for line in read_lines(path, 'words', KEY, _FIX)]
    words = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not words:
        raise UserError(str(path), 'no word', 'a word a line', 'leave config.vocab.add empty, or fill the file')
    return words


def with_words(tokenizer: Tokenizer, words: Sequence[tuple[int, str]], where: str) -> tuple[WordPieceTokenizer, int]:
    """The tokenizer with these words as pieces, and how many of them are new; others are pieces already.

    Args:
      tokenizer: of the family 'wordpiece', with BERT's normaliser.
      words: with their lines in the file `where`.
      where: for messages.

    Raises:
      UserError: a vocabulary of another family; a word that BERT splits before it asks the vocabulary.
    """
    if not isinstance(tokenizer, WordPieceTokenizer) or not tokenizer.is_bert:
        found = f"words for a vocabulary of the family {tokenizer.family!r} that is not BERT's own"
        raise UserError(KEY, found, "BERT's WordPiece", 'leave it empty, or train a vocabulary on the new text')
    cutter = pre_tokenizers.BertPreTokenizer()
    pieces, known = list(tokenizer.pieces), set(tokenizer.pieces)
    slots = [i for i in tokenizer.special_ids.tolist() if is_unused(pieces[i]) and i not in tokenizer.added_ids]
    slots.reverse()
    added = 0
    for line, given in words:
        word = tokenizer.normalize(given).strip()
        parts = [part for part, _ in cutter.pre_tokenize_str(word)]
        if len(parts) != 1 or len(word) > MAX_CHARACTERS:
            found = f'{given!r}, which BERT reads as {" ".join(map(repr, parts[:6])) or "nothing"}'
            expected = f'one word of up to {MAX_CHARACTERS} characters'
            raise UserError(f'{where}:{line}', found, expected, 'remove the line')
        if word in known:
            continue
        known.add(word)
        added += 1
        if slots:
            pieces[slots.pop()] = word
        else:
            pieces.append(word)
    return tokenizer.with_pieces(pieces), added


def origins(before: Tokenizer, after: Tokenizer) -> dict[int, list[int]]:
    """{id of a piece that `with_words` added: the ids that the word had before}."""
    new = [i for i, piece in enumerate(after.pieces) if i >= before.vocab_size or before.pieces[i] != piece]
    ids = before.encode([after.pieces[i] for i in new])
    return {i: pieces.tolist() for i, pieces in zip(new, ids, strict=True)}


def candidates(counts: Mapping[str, int], tokenizer: Tokenizer, most: int) -> list[tuple[str, int, list[str]]]:
    """The words that would save the most pieces: (word, how often it occurs, its pieces now), the best first.

    One that is [UNK] now, for lack of a letter, counts as one piece more than it has.

    Args:
      counts: of the words of a text, as `vocabulary.count_words` counts them.
      tokenizer: that splits them.
      most: words.
    """
    words = [word for word, count in counts.items() if count > 1]
    found: list[tuple[int, str, int, Any]] = []
    for word, ids in zip(words, tokenizer.encode(words), strict=True):
        lost = tokenizer.unk_id in ids  # a whole word for which there are no pieces at all
        saved = counts[word] * (len(ids) - (not lost))
        if saved:
            found.append((-saved, word, counts[word], ids))
    best = heapq.nsmallest(most, found, key=lambda item: item[:2])
    return [(word, count, [tokenizer.pieces[i] for i in ids]) for _, word, count, ids in best]
