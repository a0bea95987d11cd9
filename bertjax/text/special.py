"""The special tokens of BERT, and the checks that every vocabulary must pass."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import format_value
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
      names: what this vocabulary calls a special token, where that is not BERT's name, e.g. {'[PAD]': '<pad>'}.

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


@contextlib.contextmanager
def odd_settings_refused(where: str) -> Iterator[None]:
    """Turns what a tokenizer's file raises, here and in libraries, into a UserError that names it.

    A tokenizer.json is a tree of any form, of which each library looks at another part, at another time.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # A panic in Rust is no Exception.
        found = f'settings that cannot be used ({type(error).__name__}: {error})'
        raise UserError(where, found, 'the tokenizer of a BERT', 'take the original file') from error


def check_ids(settings: Mapping[str, Any], where: str) -> None:
    """Refuses a tokenizer.json with an id that none of its pieces can have: `tokenizers` allocates as many as it says.

    Raises:
      UserError: an id that is no number from 0 to the number of pieces.
    """
    vocab, added = settings['model']['vocab'], settings.get('added_tokens') or []
    count = len(vocab) + len(added)
    for number in (*(vocab.values() if isinstance(vocab, dict) else ()), *(token['id'] for token in added)):
        if type(number) is not int or not 0 <= number < count:
            found = f'the id {format_value(number)} for one of {count:,} pieces'
            expected = f'0 to {count - 1:,}, without gaps or repetitions'
            raise UserError(where, found, expected, 'the vocabulary is damaged: take the original file')


def special_ids_of(pieces: Sequence[str], ids: Mapping[str, int], more: Sequence[int] = ()) -> np.ndarray:
    """Sorted int32 ids of the special tokens `ids`, of the [unusedN] slots among `pieces`, and of `more`."""
    unused = (index for index, piece in enumerate(pieces) if is_unused(piece))
    return np.array(sorted({*ids.values(), *unused, *more}), dtype=np.int32)


def fingerprint_of(settings: Mapping) -> str:
    """sha256 (hex) of JSON `settings`, whatever the order of their keys."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=True, separators=(',', ':'))
    return hashlib.sha256(canonical.encode('ascii')).hexdigest()


def well_formed(text: str) -> str:
    """`text` with surrogate pairs joined, and lone surrogates (broken JSON escapes) replaced by U+FFFD."""
    return text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')


def added_tokens(tokens: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """The `added_tokens` of a tokenizer.json for special tokens (id, name), by id."""
    flags = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
    return [{'id': index, 'content': name, **flags} for index, name in sorted(tokens)]


def pair_template(ids: Mapping[str, int], names: Mapping[str, str], separators: int = 1) -> dict[str, Any]:
    """The `post_processor` of a tokenizer.json: [CLS] A [SEP] in segment 0, B [SEP] in segment 1.

    With two `separators` it is RoBERTa's, [CLS] A [SEP] [SEP] B [SEP].
    """
    cls, sep = names.get(CLS, CLS), names.get(SEP, SEP)

    def token(name: str, segment: int) -> dict[str, Any]:
        return {'SpecialToken': {'id': name, 'type_id': segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {'Sequence': {'id': name, 'type_id': segment}}

    return {
        'type': 'TemplateProcessing',
        'single': [token(cls, 0), text('A', 0), token(sep, 0)],
        'pair': [token(cls, 0), text('A', 0), *[token(sep, 0)] * separators, text('B', 1), token(sep, 1)],
        'special_tokens': {name: {'id': name, 'ids': [ids[name]], 'tokens': [name]} for name in (cls, sep)},
    }


def separators_of(post_processor: Mapping[str, Any] | None) -> int:
    """How many [SEP] a tokenizer.json puts between the texts of a pair: 2 as RoBERTa, 1 as BERT and by default."""
    steps = post_processor or {}
    for step in steps.get('processors') or [steps]:
        if step.get('type') == 'RobertaProcessing':
            return 2
        kinds = ['A' if 'Sequence' in part else '' for part in step.get('pair') or ()]
        if kinds[1:5] == ['A', '', '', 'A']:
            return 2
    return 1


def tokenizer_config(names: Mapping[str, str], **settings: Any) -> dict[str, Any]:
    """A tokenizer_config.json with the special tokens and BERT's inputs, and `settings`."""
    keys = {'pad': PAD, 'unk': UNK, 'cls': CLS, 'sep': SEP, 'mask': MASK}
    config = {f'{key}_token': names.get(token, token) for key, token in keys.items()}
    inputs = ['input_ids', 'token_type_ids', 'attention_mask']
    return {**config, 'model_input_names': inputs, 'model_max_length': 512, **settings}


def to_json(settings: Mapping[str, Any]) -> str:
    """`settings` as the text of a file; the order of keys is kept."""
    return json.dumps(settings, ensure_ascii=False, indent=2) + '\n'
