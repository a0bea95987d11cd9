"""WordPiece: BERT's own tokenizer, encoded by `nanotoken`, with `tokenizers` as its reference and its stand-in."""

import copy
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import nanotoken
import numpy as np
import tokenizers
from etils import epath

from bertjax.errors import UserError
from bertjax.files import write_atomic
from bertjax.text.special import (
    SPECIAL_TOKENS,
    UNK,
    added_tokens,
    check_pieces,
    fingerprint_of,
    is_unused,
    pair_template,
    special_ids_of,
    to_json,
    tokenizer_config,
    well_formed,
)

PREFIX = '##'
# Words longer than this become one [UNK] (google-research/bert, tokenization.py has 200; Hugging Face's fast
# tokenizer, whose ids are the ones to equal, has 100).
MAX_CHARACTERS = 100
# Share of the pieces with an upper-case letter from which a vocabulary is taken as cased. bert-base-cased has 0.29,
# bert-base-uncased 0.
_CASED_SHARE = 0.005


class WordPieceTokenizer:
    """Text to ids by greedy longest match on words, as BERT does it.

    A text that contains the letters of a special token, such as '[MASK]' or '[SEP]', gets that token's id: so do
    transformers' `BertTokenizerFast`, whose ids these equal, and every checkpoint that was fine-tuned with it.

    Args:
      settings: the parsed content of a `tokenizer.json` whose model is WordPiece (see `bert_settings`).
      where: where it came from, for messages.
      names: what the vocabulary calls a special token, where that is not BERT's name.

    Attributes: see `bertjax.text.tokenizer.Tokenizer`.

    Raises:
      UserError: for a vocabulary that cannot be BERT's, or settings that no library can load.
    """

    family = 'wordpiece'

    def __init__(self, settings: Mapping[str, Any], where: str = 'tokenizer', names: Mapping[str, str] | None = None):
        # Truncation and padding belong to a model's input, never to a corpus.
        settings = {**settings, 'truncation': None, 'padding': None}
        self._settings, self._where, self._names = settings, where, dict(names or {})
        self.pieces = _pieces_of(settings, where)
        self.vocab_size = len(self.pieces)
        ids = check_pieces(self.pieces, where, names)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        added = settings.get('added_tokens') or []
        self.special_ids = special_ids_of(self.pieces, ids, [token['id'] for token in added if token.get('special')])
        prefix = settings['model'].get('continuing_subword_prefix', PREFIX)
        self.continues_word = np.array([p.startswith(prefix) and len(p) > len(prefix) for p in self.pieces], dtype=bool)
        self.lowercase = _lowercases(settings.get('normalizer'))
        self.fingerprint = fingerprint_of({'family': self.family, **_what_makes_ids(settings)})
        self._fast, self._reference = _load_libraries(json.dumps(settings, ensure_ascii=False), where)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (int32, one array a text), without [CLS] or [SEP] around them."""
        try:
            return self._encode(list(texts))
        except UnicodeEncodeError:
            return self._encode([well_formed(text) for text in texts])

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        if self._fast is None:
            encodings = self._reference.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        rows = self._fast.encode_batch(texts, add_special_tokens=False)
        ids, bounds = rows.ids.astype(np.int32), rows.offsets.tolist()
        return [ids[start:end] for start, end in itertools.pairwise(bounds)]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text for reading: pieces joined to words, special tokens kept."""
        return (self._fast or self._reference).decode([int(index) for index in ids], skip_special_tokens=False)

    def save(self, directory: epath.PathLike) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer loads."""
        directory = epath.Path(directory)
        normalizer = self._settings.get('normalizer') or {}
        config = tokenizer_config(
            self._names,
            # BertTokenizer rebuilds its settings from this file, not from tokenizer.json: it must be able to have them.
            tokenizer_class='BertTokenizer' if _is_bert(self._settings) else 'PreTrainedTokenizerFast',
            do_lower_case=self.lowercase,
            strip_accents=normalizer.get('strip_accents'),
            tokenize_chinese_chars=normalizer.get('handle_chinese_chars', True),
        )
        write_atomic(directory / 'vocab.txt', ''.join(f'{piece}\n' for piece in self.pieces))
        write_atomic(directory / 'tokenizer.json', to_json(self._settings))
        write_atomic(directory / 'tokenizer_config.json', to_json(config))

    def __reduce__(self):
        return WordPieceTokenizer, (self._settings, self._where, self._names)


def bert_settings(
    pieces: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The `tokenizer.json` that Hugging Face's BertTokenizer makes of a vocab.txt.

    Args:
      pieces: the vocabulary, index = id.
      lowercase: whether text is lower-cased first.
      strip_accents: whether accents are taken off; None does as BERT: when `lowercase`.
      handle_chinese_chars: whether each CJK ideograph is a word.
      names: what the vocabulary calls a special token, where that is not BERT's name.
    """
    names = {token: (names or {}).get(token, token) for token in SPECIAL_TOKENS}
    ids = {piece: index for index, piece in enumerate(pieces)}
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': added_tokens((ids[name], name) for name in names.values()),
        'normalizer': {
            'type': 'BertNormalizer',
            'clean_text': True,
            'handle_chinese_chars': handle_chinese_chars,
            'strip_accents': strip_accents,
            'lowercase': lowercase,
        },
        'pre_tokenizer': {'type': 'BertPreTokenizer'},
        'post_processor': pair_template(ids, names),
        'decoder': {'type': 'WordPiece', 'prefix': PREFIX, 'cleanup': True},
        'model': {
            'type': 'WordPiece',
            'unk_token': names[UNK],
            'continuing_subword_prefix': PREFIX,
            'max_input_chars_per_word': MAX_CHARACTERS,
            'vocab': ids,
        },
    }


def looks_lowercase(pieces: Sequence[str]) -> bool:
    """Whether a vocabulary is uncased, by its pieces: next to none has an upper-case letter."""
    ordinary = [piece for piece in pieces if piece not in SPECIAL_TOKENS and not is_unused(piece)]
    upper = sum(piece != piece.lower() for piece in ordinary)
    return upper <= _CASED_SHARE * len(ordinary)


def with_normalizer(
    settings: Mapping[str, Any],
    where: str,
    *,
    lowercase: bool | None,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool | None = None,
) -> dict[str, Any]:
    """`settings` with the given options in their BertNormalizer; None leaves what is there.

    Raises:
      UserError: when `lowercase` differs from what a normaliser of another kind does.
    """
    settings = dict(settings)
    nodes = [node for node in _nodes(settings.get('normalizer')) if node['type'] == 'BertNormalizer']
    if nodes:
        settings['normalizer'] = copy.deepcopy(settings['normalizer'])
        given = {'lowercase': lowercase, 'strip_accents': strip_accents, 'handle_chinese_chars': handle_chinese_chars}
        for node in _nodes(settings['normalizer']):
            if node['type'] == 'BertNormalizer':
                node.update({name: value for name, value in given.items() if value is not None})
    elif lowercase is not None and lowercase != _lowercases(settings.get('normalizer')):
        raise UserError(
            where,
            f'a normaliser of its own that {"keeps" if lowercase else "lowers"} case',
            f'lowercase={not lowercase}',
            'leave lowercase unset to take the tokenizer as it is',
        )
    return settings


def _nodes(node: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Every normaliser or pre-tokenizer in a tree of Sequences, the root too."""
    if node:
        yield node
        for child in node.get('normalizers', node.get('pretokenizers', ())):
            yield from _nodes(child)


def _lowercases(normalizer: Mapping[str, Any] | None) -> bool:
    return any(
        n['type'] == 'Lowercase' or (n['type'] == 'BertNormalizer' and n['lowercase']) for n in _nodes(normalizer)
    )


def _is_bert(settings: Mapping[str, Any]) -> bool:
    """Whether these are settings that Hugging Face's BertTokenizer would make of the vocabulary alone."""
    model, normalizer = settings['model'], settings.get('normalizer') or {}
    special = [token for token in settings.get('added_tokens') or [] if token.get('special')]
    return (
        normalizer.get('type') == 'BertNormalizer'
        and normalizer.get('clean_text', True)
        and (settings.get('pre_tokenizer') or {}).get('type') == 'BertPreTokenizer'
        and model.get('continuing_subword_prefix', PREFIX) == PREFIX
        and model.get('max_input_chars_per_word', MAX_CHARACTERS) == MAX_CHARACTERS
        and len(special) == len(settings.get('added_tokens') or []) == len(SPECIAL_TOKENS)
    )


def _pieces_of(settings: Mapping[str, Any], where: str) -> list[str]:
    """The vocabulary with added tokens, index = id."""
    ids = {**settings['model']['vocab'], **{t['content']: t['id'] for t in settings.get('added_tokens') or []}}
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise UserError(
            where,
            f'{len(pieces):,} pieces with ids up to {max(ids.values(), default=0):,}',
            'ids from 0 without gaps or repetitions',
            'the vocabulary is damaged: take the original file',
        )
    return pieces


def _what_makes_ids(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `settings` on which ids depend, in one spelling: vocab.txt and tokenizer.json give the same."""
    normalizer = copy.deepcopy(settings.get('normalizer'))
    for node in _nodes(normalizer):
        if node['type'] == 'BertNormalizer' and node.get('strip_accents') is None:
            node['strip_accents'] = node['lowercase']
    added = sorted(settings.get('added_tokens') or [], key=lambda token: token['id'])
    model = {'continuing_subword_prefix': PREFIX, 'max_input_chars_per_word': MAX_CHARACTERS, **settings['model']}
    return {
        'added_tokens': added,
        'normalizer': normalizer,
        'pre_tokenizer': settings.get('pre_tokenizer'),
        'model': {**model, 'type': 'WordPiece'},
    }


def _load_libraries(text: str, where: str) -> tuple[nanotoken.Tokenizer | None, tokenizers.Tokenizer | None]:
    """nanotoken, or where it cannot express the settings, `tokenizers` (some thirty times slower), said aloud."""
    try:
        return nanotoken.Tokenizer.from_json(text), None
    except (nanotoken.UnsupportedTokenizerError, ValueError) as error:
        reason = str(error)
    try:
        reference = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # `tokenizers` raises bare Exception
        raise UserError(
            where, f'settings that cannot be loaded ({error})', 'a tokenizer.json with a WordPiece model',
            'take the original file, or the vocab.txt beside it',
        ) from error  # fmt: skip
    logging.getLogger(__name__).warning(
        '%s: encoding with the slower `tokenizers` because nanotoken cannot: %s', where, reason
    )
    return None, reference
