"""BERT's special tokens, and the checks that every vocabulary must pass."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bertjax.config.ranges import format_value
from bertjax.errors import UserError

# The special tokens, in the order of BERT's vocabulary files (google-research/bert, vocab.txt of every release).
PAD, UNK, CLS, SEP, MASK = '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
# The first keys of every tokenizer.json. The tokenizer neither truncates nor pads, because callers do.
TOKENIZER_JSON = MappingProxyType({'version': '1.0', 'truncation': None, 'padding': None})
_UNUSED = re.compile(r'\[unused\d+\]')


def special_layout(unused: int) -> list[str]:
    """Returns the first entries of a vocabulary in BERT's order: [PAD], [unusedN], [UNK], [CLS], [SEP], [MASK]."""
    return [PAD, *(f'[unused{i}]' for i in range(unused)), UNK, CLS, SEP, MASK]


def is_unused(piece: str) -> bool:
    """Returns whether `piece` is one of the reserved pieces [unused0], [unused1], …"""
    return _UNUSED.fullmatch(piece) is not None


def check_pieces(
    pieces: Sequence[str], where: str, names: Mapping[str, str] | None = None, kind: str = ''
) -> dict[str, int]:
    """Checks a vocabulary, index = id, and returns the id of each of SPECIAL_TOKENS.

    `names` is {BERT's name of a special token: a different name in the vocabulary}, e.g. {'[PAD]': '<pad>'}. `where` is
    the file and `kind` the type of the model, such as 'BPE', for messages.

    Raises:
      UserError: An entry is empty or occurs twice, or a special token is missing.
    """
    names = {token: (names or {}).get(token, token) for token in SPECIAL_TOKENS}
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not piece:
            fix = 'delete the blank line'
            raise UserError(f'{where}:{index + 1}', 'an empty entry', 'one piece on every line', fix)
        if ids.setdefault(piece, index) != index:
            found = f'{piece!r} a second time (first as entry {ids[piece] + 1})'
            fix = 'use the original vocabulary, or train one with --config.run=vocab'
            raise UserError(f'{where}:{index + 1}', found, 'every piece once', fix)
    missing = [name for name in names.values() if name not in ids]
    if missing:
        found = f'{len(pieces):,} {kind and f"{kind} "}pieces without {" ".join(missing)}'
        fix = 'give the path of a BERT vocabulary, or train one with --config.run=vocab'
        raise UserError(where, found, f'a BERT vocabulary with {" ".join(names.values())}', fix)
    return {token: ids[name] for token, name in names.items()}


@contextlib.contextmanager
def wrap_tokenizer_errors(where: str) -> Iterator[None]:
    """Converts errors in the block to a UserError that names `where`, the file of the tokenizer.

    A damaged file causes errors of many types, so only UserError, KeyboardInterrupt and SystemExit pass through.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        found = f'settings that cannot be loaded ({type(error).__name__}: {error})'
        raise UserError(where, found, 'the tokenizer of a BERT model', 'use the original file') from error


def piece_ids(settings: Mapping[str, Any]) -> dict[str, int]:
    """Returns {piece: id} for the vocabulary and the added tokens of a tokenizer.json."""
    vocab = settings['model']['vocab']
    ids = vocab if isinstance(vocab, dict) else {row[0]: index for index, row in enumerate(vocab)}
    return {**{token['content']: token['id'] for token in settings.get('added_tokens') or []}, **ids}


def sort_pieces(ids: Mapping[str, int], where: str) -> list[str]:
    """Returns the pieces of a vocabulary, index = id, from {piece: id}.

    Raises:
      UserError: The ids have gaps or repetitions.
    """
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        found = f'{len(pieces):,} pieces with ids up to {max(ids.values(), default=0):,}'
        fix = 'the vocabulary is damaged: use the original file'
        raise UserError(where, found, 'ids from 0 without gaps or repetitions', fix)
    return pieces


def hash_settings(settings: Mapping) -> str:
    """Returns the sha256 (hex) of JSON `settings`, independent of the order of their keys."""
    canonical = json.dumps(settings, sort_keys=True, ensure_ascii=True, separators=(',', ':'))
    return hashlib.sha256(canonical.encode('ascii')).hexdigest()


def check_texts(texts: Sequence[str]) -> None:
    """Raises a UserError for a single text, which is also a sequence of texts: its characters."""
    if isinstance(texts, str):
        raise UserError('texts', format_value(texts), 'a list of texts, not one text', 'pass [text]')


def replace_surrogates(text: str) -> str:
    """Joins surrogate pairs. Replaces lone surrogates, which come from broken JSON escapes, with U+FFFD."""
    return text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')


def make_added_tokens(tokens: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """Returns the `added_tokens` of a tokenizer.json for special tokens (id, name), sorted by id."""
    flags = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
    return [{'id': index, 'content': name, **flags} for index, name in sorted(tokens)]


def pair_template(ids: Mapping[str, int], names: Mapping[str, str], separators: int = 1) -> dict[str, Any]:
    """Returns the `post_processor` of a tokenizer.json. [CLS] A [SEP] are in segment 0, and B [SEP] in segment 1.

    With two `separators`, a pair is [CLS] A [SEP] [SEP] B [SEP], as in RoBERTa.
    """
    cls, sep = names.get(CLS, CLS), names.get(SEP, SEP)

    def part(kind: str, name: str, segment: int) -> dict[str, Any]:
        return {kind: {'id': name, 'type_id': segment}}

    first, sep_after_a = [part('SpecialToken', cls, 0), part('Sequence', 'A', 0)], part('SpecialToken', sep, 0)
    second = [part('Sequence', 'B', 1), part('SpecialToken', sep, 1)]
    return {
        'type': 'TemplateProcessing',
        'single': [*first, sep_after_a],
        'pair': [*first, *[sep_after_a] * separators, *second],
        'special_tokens': {name: {'id': name, 'ids': [ids[name]], 'tokens': [name]} for name in (cls, sep)},
    }


def processor_steps(post_processor: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Returns the steps of the `post_processor` of a tokenizer.json."""
    return post_processor.get('processors', [post_processor]) if post_processor else []


def adds_special_tokens(post_processor: Mapping[str, Any] | None, cls: str, sep: str) -> bool:
    """Returns whether a `post_processor` puts `cls` before a text, and `sep` after it."""
    for step in processor_steps(post_processor):
        if step.get('type') in ('BertProcessing', 'RobertaProcessing'):
            return True
        if step.get('type') == 'TemplateProcessing':
            names = [part['SpecialToken']['id'] if 'SpecialToken' in part else '' for part in step['single']]
            return names[:1] == [cls] and names[-1:] == [sep]
    return False


def count_separators(post_processor: Mapping[str, Any] | None) -> int:
    """Returns the number of [SEP] between the texts of a pair: 2 as in RoBERTa, else 1."""
    for step in processor_steps(post_processor):
        if step.get('type') == 'RobertaProcessing':
            return 2
        kinds = ['A' if 'Sequence' in part else '' for part in step.get('pair') or ()]
        if kinds[1:5] == ['A', '', '', 'A']:
            return 2
    return 1


def to_json(settings: Mapping[str, Any]) -> str:
    """Returns `settings` as the text of a JSON file. The keys keep their order."""
    return json.dumps(settings, ensure_ascii=False, indent=2) + '\n'
