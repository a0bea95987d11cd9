"""Loads a tokenizer of any family from a file or directory."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import existing_files
from bertjax.files.small_files import MAX_SETTINGS_BYTES, read_bytes, read_json_object, read_text
from bertjax.remote.paths import user_path
from bertjax.text.bert_settings import PREFIX, bert_settings, looks_lowercase, override_normalizer
from bertjax.text.sentencepiece import SentencePieceTokenizer
from bertjax.text.special import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    check_pieces,
    piece_ids,
    wrap_tokenizer_errors,
)
from bertjax.text.tokenizer_base import Tokenizer as Tokenizer
from bertjax.text.tokenizer_json import (
    ROBERTA_NAMES,
    WORD_PREFIX,
    JsonTokenizer,
    byte_bpe_settings,
    read_merges,
    set_prefix_space,
    with_roberta_names,
)
from bertjax.text.wordpiece import WordPieceTokenizer


def load_tokenizer(path: epath.PathLike) -> Tokenizer:
    """Loads a tokenizer.

    The tokenizer_config.json beside a WordPiece vocabulary determines whether text is lower-cased. If this file has no
    such setting, a tokenizer.json keeps its own, and a vocab.txt counts as uncased if almost none of its pieces has an
    upper-case letter.

    Args:
      path: A vocab.txt, a tokenizer.json, a SentencePiece *.model, a vocab.json with a merges.txt beside it, a
        directory with one of these files, or the path of a TensorFlow checkpoint. In a directory, the first of
        tokenizer.model, spiece.model, tokenizer.json, vocab.txt and vocab.json is used. A *.model without [CLS] is
        skipped if the directory also has a later file of this list.

    Raises:
      UserError: The path does not exist, or has no vocabulary for BERT.
    """
    file = _find_vocabulary(user_path(path, str(path), _COMPANION_FILES))
    config = _read_config(file.parent)
    with wrap_tokenizer_errors(str(file)):
        if file.suffix == '.model':
            tokenizer = SentencePieceTokenizer(_read_bytes(file), str(file))
            if config.get('do_lower_case') is True and not tokenizer.lowercase:  # as in ALBERT
                expected = 'do_lower_case=false in the tokenizer_config.json beside it'
                fix = 'give the path of its tokenizer.json, or correct or remove do_lower_case'
                raise UserError(str(file), 'a model that keeps case', expected, fix)
        elif file.name == 'vocab.json':
            tokenizer = _from_merges(file, config)
        elif file.suffix == '.json':
            tokenizer = _from_json(file, config)
        else:
            tokenizer = _from_vocab(file, config)
        tokenizer.encode(_TRIAL)
    return tokenizer


def _find_vocabulary(path: epath.Path) -> epath.Path:
    """Returns the vocabulary file at or in `path`; see `load_tokenizer`."""
    if not path.exists() and (path.parent / f'{path.name}.index').exists():  # the path of a TensorFlow checkpoint
        path = path.parent
    names = ('tokenizer.model', 'spiece.model', 'tokenizer.json', 'vocab.txt', 'vocab.json')
    if path.is_dir():
        files = list(existing_files(path, names))
        # The SentencePiece models of Gemma and LLaMA lack the special tokens that their tokenizer.json may have.
        without_cls = [f for f in files[:-1] if f.suffix == '.model' and CLS.encode() not in _read_bytes(f)]
        file = next((f for f in files if f not in without_cls), None)
        if file:
            return file
        fix = 'give the directory or file of a tokenizer, or train one with --config.run=vocab'
        if (path / 'sentencepiece.bpe.model').exists():
            fix = (
                "convert its sentencepiece.bpe.model: transformers' AutoTokenizer and save_pretrained write both files"
            )
        raise UserError(str(path), 'a directory without a vocabulary', f'one of {", ".join(names)} in it', fix)
    if not path.exists():
        raise UserError(
            str(path), 'nothing', 'a vocab.txt, a tokenizer.json, a *.model or a directory with one',
            'check the path (to use a tokenizer of the hub, download its files first), or train a '
            'vocabulary with --config.run=vocab',
        )  # fmt: skip
    return path


def _from_vocab(file: epath.Path, config: dict[str, Any]) -> Tokenizer:
    kinds = [config.get(f'{part}_tokenizer_type', kind) for part, kind in _BASIC_KINDS.items()]
    if kinds != [*_BASIC_KINDS.values()]:
        fix = 'use a model with a tokenizer.json'
        raise UserError(str(file), f'the word and subword tokenizers {", ".join(map(str, kinds))}', "BERT's", fix)
    # As in transformers, only \n, \r\n and \r end a line, and white space after a piece, also U+0085 and U+2028, is not
    # part of it. A piece of white space alone, which no text contains, stays, because the ids count the lines.
    lines = _read_text(file).replace('\r\n', '\n').replace('\r', '\n').split('\n')
    pieces = [line.rstrip(_WHITE_SPACE) or line for line in (lines[:-1] if lines[-1] == '' else lines)]
    names = _special_names(config, pieces)
    check_pieces(pieces, str(file), names)  # checked before bert_settings, whose dictionary removes repetitions
    lowercase = config.get('do_lower_case')
    settings = bert_settings(
        pieces,
        lowercase=looks_lowercase(pieces) if lowercase is None else lowercase,
        strip_accents=config.get('strip_accents'),
        handle_chinese_chars=config.get('tokenize_chinese_chars', True),
        names=names,
    )
    return WordPieceTokenizer({**settings, 'added_tokens': _added_tokens(settings, config)}, str(file), names)


def _from_json(file: epath.Path, config: dict[str, Any]) -> Tokenizer:
    settings = read_json_object(file, _ORIGINAL)
    model = settings.get('model')
    if not isinstance(model, dict) or not isinstance(model.get('vocab'), dict | list):
        raise UserError(
            str(file), 'JSON without a model and its vocabulary', "Hugging Face's tokenizer.json",
            'give the path of the tokenizer.json, not of the configuration beside it',
        )  # fmt: skip
    # bertjax's tagging adds the space itself, and its other texts have none.
    if config.get(WORD_PREFIX) and _has_tagger(file.with_name('config.json')):
        set_prefix_space(settings, False)
    settings = {
        **settings,
        'added_tokens': _added_tokens(settings, config),
        'decoder': settings.get('decoder') or _default_decoder(settings),
    }
    where, names = str(file), _special_names(config, piece_ids(settings))
    if model.get('type', 'WordPiece') != 'WordPiece' or 'merges' in model:
        return JsonTokenizer(settings, where, names)
    return WordPieceTokenizer(override_normalizer(settings, config, where), where, names)


def _has_tagger(file: epath.Path) -> bool:
    """Returns whether a config.json, if it exists, describes a tagger of transformers."""
    return file.exists() and 'ForTokenClassification' in str(read_json_object(file, _ORIGINAL).get('architectures'))


def _default_decoder(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a decoder for a file without one. Without a decoder, `tokenizers` separates pieces with spaces."""
    model = settings['model']
    if model.get('type', 'WordPiece') == 'WordPiece' and 'merges' not in model:
        return {'type': 'WordPiece', 'prefix': model.get('continuing_subword_prefix', PREFIX), 'cleanup': True}
    if model.get('end_of_word_suffix'):
        return {'type': 'BPEDecoder', 'suffix': model['end_of_word_suffix']}
    splitter, kinds = settings.get('pre_tokenizer') or {}, ('ByteLevel', 'Metaspace')
    # For these types, the settings of the pre-tokenizer are also valid for the decoder.
    return next((step for step in splitter.get('pretokenizers', [splitter]) if step.get('type') in kinds), None)


def _added_tokens(settings: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the added tokens of `settings` and of the files beside the vocabulary.

    As in transformers, added_tokens.json is used only if `config` has no `added_tokens_decoder`. A token from either
    source that is not in the vocabulary gets the next free id. BERT's special tokens, and others that `config` names,
    are added only if they are pieces.
    """
    tokens = {token['content']: token for token in settings.get('added_tokens') or []}
    ids = piece_ids(settings)
    further = {int(index): token for index, token in (config.get('added_tokens_decoder') or {}).items()}
    names = with_roberta_names(_special_names(config, ids), ids)
    special = {names.get(token, token): {} for token in SPECIAL_TOKENS} | dict(_special_tokens(config))
    for content, flags in special.items():
        if content in ids and content not in tokens:
            token = {**_FLAGS, 'content': content, 'normalized': False, **flags, 'special': True}
            tokens[content] = {**token, 'id': ids[content]}
    for content, index in config.get(_ADDED, {}).items() if 'added_tokens_decoder' not in config else ():
        further[index] = {'content': content, 'special': content in special, 'normalized': content not in special}
    free = itertools.count(max(ids.values(), default=-1) + 1)
    for _, token in sorted(further.items()):
        content = token['content']
        if content not in ids:
            ids[content] = next(free)
        tokens[content] = {**_FLAGS, **tokens.get(content, {}), **token, 'id': ids[content]}
    return sorted(tokens.values(), key=lambda token: token['id'])


def _special_tokens(config: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the special tokens that a tokenizer_config.json names, and the flags that it gives to each."""
    values = [value for key, value in config.items() if key.endswith('_token')]
    for key in ('additional_special_tokens', 'extra_special_tokens'):
        more = config.get(key) or ()
        values += more.values() if isinstance(more, dict) else more
    for value in values:
        token = value if isinstance(value, dict) else {'content': value}
        yield token.get('content'), {name: token[name] for name in _FLAGS.keys() & token.keys()}


def _from_merges(file: epath.Path, config: dict[str, Any]) -> Tokenizer:
    """Reads a byte-level BPE from vocab.json and merges.txt, as transformers does for RoBERTa."""
    merges = file.parent / 'merges.txt'
    if not merges.exists():
        raise UserError(str(merges), 'no such file', 'the merges of the vocab.json beside it', _ORIGINAL)
    vocab = read_json_object(file, _ORIGINAL)
    if any(piece.endswith('</w>') for piece in vocab):
        fix = "use its tokenizer.json, which transformers' AutoTokenizer and save_pretrained write"
        raise UserError(str(file), "pieces that end in '</w>'", 'a byte-level BPE', fix)
    names = {**ROBERTA_NAMES, **_special_names(config, vocab)}
    check_pieces(sorted(vocab, key=vocab.__getitem__), str(file), names)
    mask = config.get('mask_token')
    settings = byte_bpe_settings(
        vocab,
        read_merges(_read_text(merges), str(merges)),
        names=names,
        prefix_space=config.get('add_prefix_space') is True,
        mask_takes_space=mask.get('lstrip') is True if isinstance(mask, dict) else True,
    )
    return JsonTokenizer({**settings, 'added_tokens': _added_tokens(settings, config)}, str(file), names)


def _special_names(config: dict[str, Any], pieces: Collection[Any]) -> dict[str, str]:
    """Returns the names that a tokenizer_config.json gives to BERT's special tokens.

    In a vocabulary without [CLS], such as a decoder's, `bos_token` names [CLS] if `cls_token` is not set. In the same
    way, `eos_token` names [SEP] if `sep_token` is not set.
    """
    names = {}
    for token, *keys in (
        (PAD, 'pad'), (UNK, 'unk'), (CLS, 'cls', 'bos'), (SEP, 'sep', 'eos'), (MASK, 'mask')
    ):  # fmt: skip
        for key in keys[:1] if token in pieces else keys:
            value = config.get(f'{key}_token')
            value = value.get('content') if isinstance(value, dict) else value
            if isinstance(value, str):
                names.setdefault(token, value)
    return names


# The word and subword tokenizers of transformers' BertJapaneseTokenizer that agree with BERT's. Others are rejected.
_BASIC_KINDS = {'word': 'basic', 'subword': 'wordpiece'}


def _read_config(directory: epath.Path) -> dict[str, Any]:
    """Reads tokenizer_config.json and added_tokens.json, with special_tokens_map.json for missing keys."""
    config = {}
    if (added := directory / _ADDED).exists():
        config[_ADDED] = read_json_object(added, _ORIGINAL)
    for file in (directory / 'special_tokens_map.json', directory / 'tokenizer_config.json'):
        values = read_json_object(file, _ORIGINAL) if file.exists() else {}
        for key in ('do_lower_case', 'strip_accents', 'tokenize_chinese_chars'):
            if not isinstance(values.get(key), bool | None):
                raise UserError(str(file), f'{key} {values[key]!r}', 'true, false or null', _ORIGINAL)
        config |= {key: value for key, value in values.items() if value is not None}
    return config


def _read_text(file: epath.Path) -> str:
    text = read_text(file, 'a vocabulary as text', _FIX)
    if '\0' in text:
        raise UserError(str(file), 'a binary file', 'a vocabulary as text', _FIX)
    return text


def _read_bytes(file: epath.Path) -> bytes:
    return read_bytes(file, 'a vocabulary', _FIX, max_bytes=MAX_SETTINGS_BYTES)


# The white space of Unicode; Python's `str.rstrip` also removes U+001C to U+001F.
_WHITE_SPACE = '\t\n\v\f\r \x85\xa0\u1680' + ''.join(map(chr, range(0x2000, 0x200B))) + '\u2028\u2029\u202f\u205f\u3000'
_ADDED = 'added_tokens.json'  # {token: id}
# The default flags of an added token.
_FLAGS = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'special'), False) | {'normalized': True}
# These files are downloaded together with a single vocabulary file in a bucket.
_COMPANION_FILES = ('tokenizer_config.json', 'special_tokens_map.json', _ADDED, 'merges.txt', 'config.json')
_TRIAL = ['A word, 1. \u4f60 \U0001fae0']  # unusual characters, for which most vocabularies produce [UNK]
_ORIGINAL = 'use the original file'
_FIX = 'give a vocab.txt, a tokenizer.json or a SentencePiece *.model, or train one with --config.run=vocab'
