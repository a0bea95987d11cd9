"""Makes, changes and compares the tokenizer.json settings of BERT's WordPiece."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.text.special import SPECIAL_TOKENS, TOKENIZER_JSON, UNK, is_unused, make_added_tokens, pair_template

PREFIX = '##'
# The maximum length of a word, as in transformers, so that ids are equal. A longer word becomes one [UNK]. In
# google-research/bert, tokenization.py, the maximum is 200.
MAX_CHARACTERS = 100
# A vocabulary is cased if more than this share of its pieces has an upper-case letter (0.29 in bert-base-cased, 0 in
# bert-base-uncased).
_CASED_SHARE = 0.005
# transformers' classes of BERT's tokenizer.
BERT_CLASSES = [f'{name}Tokenizer{fast}' for name in ('Bert', 'DistilBert', 'Electra') for fast in ('', 'Fast')]


def bert_settings(
    pieces: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Makes the settings that Hugging Face's BertTokenizer writes to `tokenizer.json` for a vocab.txt.

    Args:
      pieces: The vocabulary, index = id.
      lowercase: Whether text is lower-cased first.
      strip_accents: Whether accents are removed; None takes the value of `lowercase`, as in BERT.
      handle_chinese_chars: Whether each CJK ideograph is a word.
      names: {BERT's name of a special token: a different name in the vocabulary}.
    """
    names = {token: (names or {}).get(token, token) for token in SPECIAL_TOKENS}
    ids = {piece: index for index, piece in enumerate(pieces)}
    return {
        **TOKENIZER_JSON,
        'added_tokens': make_added_tokens((ids[name], name) for name in names.values()),
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
    """Returns whether a vocabulary is uncased: almost no piece has an upper-case letter."""
    ordinary = [piece for piece in pieces if piece not in SPECIAL_TOKENS and not is_unused(piece)]
    upper = sum(piece != piece.lower() for piece in ordinary)
    return upper <= _CASED_SHARE * len(ordinary)


def override_normalizer(settings: Mapping[str, Any], config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a copy of `settings` whose BertNormalizer has the options of `config`, a tokenizer_config.json.

    As in transformers, if `config` names one of BERT_CLASSES, options that `config` lacks get the class's defaults.
    Unlike in transformers, a missing `do_lower_case` keeps the value of the normalizer.

    Raises:
      UserError: `settings` has no BertNormalizer, and its normalizer contradicts `do_lower_case` in `config`.
    """
    lowercase, normalizer = config.get('do_lower_case'), copy.deepcopy(settings.get('normalizer'))
    options = {
        'lowercase': lowercase,
        'strip_accents': config.get('strip_accents'),
        'handle_chinese_chars': config.get('tokenize_chinese_chars'),
    }
    if (normalizer or {}).get('type') == 'BertNormalizer' and config.get('tokenizer_class') in BERT_CLASSES:
        normalizer['strip_accents'] = None  # means the value of `lowercase`
        normalizer['handle_chinese_chars'] = True
    nodes = [node for node in _nodes(normalizer) if node['type'] == 'BertNormalizer']
    for node in nodes:
        node.update({name: value for name, value in options.items() if value is not None})
    if not nodes and lowercase is not None and lowercase != lowercases(normalizer):
        found = f'a custom normalizer that {"keeps" if lowercase else "lowers"} case'
        fix = 'correct or remove do_lower_case'
        raise UserError(where, found, f'do_lower_case={not lowercase} in the tokenizer_config.json beside it', fix)
    return {**settings, 'normalizer': normalizer}


def _nodes(node: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields `node`, a normalizer or pre-tokenizer, and all nodes below it if it is a Sequence."""
    if node:
        yield node
        for child in node.get('normalizers', node.get('pretokenizers', ())):
            yield from _nodes(child)


def lowercases(normalizer: Mapping[str, Any] | None) -> bool:
    """Returns whether a `normalizer` lower-cases text."""
    return any(
        n['type'] == 'Lowercase' or (n['type'] == 'BertNormalizer' and n.get('lowercase')) for n in _nodes(normalizer)
    )


def is_bert(settings: Mapping[str, Any]) -> bool:
    """Returns whether Hugging Face's BertTokenizer can make these settings from a vocabulary and options."""
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


def canonical_id_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of `settings` that determines ids. A vocab.txt and its tokenizer.json have an equal part."""
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
