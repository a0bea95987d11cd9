"""The special tokens of BERT, and the checks that every vocabulary passes before it is used."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.errors import UserError

# The order in which BERT's own vocabulary files have them (google-research/bert, vocab.txt of every release).
PAD, UNK, CLS, SEP, MASK = '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
_UNUSED = re.compile(r'\[unused\d+\]')


def special_layout(unused: int) -> list[str]:
    """The first entries of a vocabulary as BERT lays them out: [PAD], the [unusedN] slots, [UNK] [CLS] [SEP] [MASK]."""
    return [PAD, *(f'[unused{i}]' for i in range(unused)), UNK, CLS, SEP, MASK]


def is_unused(piece: str) -> bool:
    """Whether `piece` is one of the reserved slots [unused0], [unused1], ..."""
    return _UNUSED.fullmatch(piece) is not None


def check_pieces(pieces: Sequence[str], where: str, names: Mapping[str, str] | None = None) -> dict[str, int]:
    """Finds the five special tokens among `pieces` (index = id).

    Args:
      pieces: the vocabulary.
      where: the file, for messages.
      names: what this vocabulary calls a special token, where it is not BERT's name, e.g. {'[PAD]': '<pad>'}.

    Returns:
      The id of each of SPECIAL_TOKENS.

    Raises:
      UserError: when an entry is empty or occurs twice, or a special token is missing.
    """
    names = {token: (names or {}).get(token, token) for token in SPECIAL_TOKENS}
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not piece:
            raise UserError(
                f'{where}:{index + 1}', 'an empty entry', 'one piece on every line', 'delete the blank line'
            )
        if ids.setdefault(piece, index) != index:
            raise UserError(
                f'{where}:{index + 1}',
                f'{piece!r} a second time (first as entry {ids[piece] + 1})',
                'every piece once',
                'the file is damaged or was put together by hand: take the original vocabulary, or train one with '
                '--config.run=vocab',
            )
    missing = [name for name in names.values() if name not in ids]
    if missing:
        raise UserError(
            where,
            f'{len(pieces):,} pieces without {" ".join(missing)}',
            f'a BERT vocabulary with {" ".join(names.values())}',
            'is this the file of another model? Name a BERT vocabulary, or train one with --config.run=vocab',
        )
    return {token: ids[name] for token, name in names.items()}


def special_ids_of(pieces: Sequence[str], ids: Mapping[str, int], more: Sequence[int] = ()) -> np.ndarray:
    """Sorted int32 ids of the special tokens `ids`, of the [unusedN] slots among `pieces`, and of `more`."""
    unused = (index for index, piece in enumerate(pieces) if is_unused(piece))
    return np.array(sorted({*ids.values(), *unused, *more}), dtype=np.int32)


def fingerprint_of(settings: Mapping) -> str:
    """sha256 (hex) of JSON `settings`, whatever the order of their keys."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=True, separators=(',', ':'))
    return hashlib.sha256(canonical.encode('ascii')).hexdigest()


def well_formed(text: str) -> str:
    """`text` with surrogates paired, and those left alone (broken JSON escapes) replaced by U+FFFD."""
    return text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')
