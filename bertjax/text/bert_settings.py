"""BERT's WordPiece as the settings of Hugging Face's tokenizer.json: made, read, changed and compared."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.text.special import SPECIAL_TOKENS, UNK, added_tokens, is_unused, pair_template

PREFIX = '##'
# Longer words become one [UNK]. Hugging Face's fast tokenizer, whose ids ours equal, has 100 (google-research/bert,
# tokenization.py: 200).
MAX_CHARACTERS = 100
# A vocabulary counts as cased when more than this share of its pieces has an upper-case letter. bert-base-cased has
# 0.29, bert-base-uncased 0.
_CASED_SHARE = 0.005


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
      strip_accents: whether accents are removed; None does as BERT: when `lowercase`.
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
    """Whether a vocabulary is uncased, by its pieces: almost none has an upper-case letter."""
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
    """`settings` with the given options in their BertNormalizer; None keeps what is there.

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
    elif lowercase is not None and lowercase != lowercases(settings.get('normalizer')):
        raise UserError(
            where,
            f'a normaliser of its own that {"keeps" if lowercase else "lowers"} case',
            f'lowercase={not lowercase}',
            'leave lowercase unset to take the tokenizer as it is',
        )
    return settings


def _nodes(node: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Every normaliser or pre-tokenizer in a tree of Sequences, including the root."""
    if node:
        yield node
        for child in node.get('normalizers', node.get('pretokenizers', ())):
            yield from _nodes(child)


def lowercases(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether a `normalizer` lower-cases."""
    return any(
        n['type'] == 'Lowercase' or (n['type'] == 'BertNormalizer' and n.get('lowercase')) for n in _nodes(normalizer)
    )


def is_bert(settings: Mapping[str, Any]) -> bool:
    """Whether Hugging Face's BertTokenizer would make these settings of the vocabulary alone."""
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


def what_makes_ids(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `settings` that determines ids, in canonical form: equal for a vocab.txt and its tokenizer.json."""
    normalizer = copy.deepcopy(settings.get('normalizer'))
    for node in _nodes(normalizer):
        if node['type'] == 'BertNormalizer' and node.get('strip_accents') is None:
            node['strip_accents'] = node.get('lowercase')
    added = sorted(settings.get('added_tokens') or [], key=lambda token: token['id'])
    model = {'continuing_subword_prefix': PREFIX, 'max_input_chars_per_word': MAX_CHARACTERS, **settings['model']}
    return {
        'added_tokens': added,
        'normalizer': normalizer,
        'pre_tokenizer': settings.get('pre_tokenizer'),
        'model': {**model, 'type': 'WordPiece'},
    }
