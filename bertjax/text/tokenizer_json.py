"""The tokenizer of a tokenizer.json with a unigram, BPE or WordLevel model, and the settings of a byte-level BPE."""

import copy
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from tokenizers import decoders

from bertjax.errors import UserError
from bertjax.text.offsets import PieceOffsets
from bertjax.text.sentencepiece_proto import SPACE
from bertjax.text.special import (
    CLS,
    MASK,
    PAD,
    SEP,
    TOKENIZER_JSON,
    UNK,
    hash_settings,
    make_added_tokens,
    pair_template,
    piece_ids,
    processor_steps,
)
from bertjax.text.tokenizer_base import Tokenizer, is_unspaced

# The names of BERT's special tokens in RoBERTa and models based on it.
ROBERTA_NAMES = MappingProxyType({PAD: '<pad>', UNK: '<unk>', CLS: '<s>', SEP: '</s>', MASK: '<mask>'})
# A key of tokenizer_config.json: the `word_prefix` of a tokenizer, if only the tokenizer.json of an exported tagger
# adds it. transformers keeps this key when it saves the tokenizer with another model.
WORD_PREFIX = 'word_prefix'
_BYTE_SPACE = 'Ġ'  # the character for a space in byte-level BPE


class JsonTokenizer(Tokenizer):
    """Converts text to ids with a tokenizer.json that has a unigram, BPE or WordLevel model.

    SentencePiece and similar models (XLM-RoBERTa's, Gemma's) mark the start of a word with U+2581. Byte-level BPE
    (RoBERTa's, ModernBERT's) marks it with Ġ. Other models may mark the pieces that continue a word with a prefix.
    Without any of these marks, each piece counts as a word. The pieces of a WordLevel model are symbols, separated by
    white space (symbols.py). The ids equal those of transformers. If the vocabulary has no unknown token, [MASK] serves
    as one. The arguments are those of `Tokenizer`; RoBERTa's names of special tokens replace absent names of BERT.

    Raises:
      UserError: The model is of another type, its ids are damaged, `tokenizers` cannot load it, or BERT's special
        tokens are missing. Or a WordLevel tokenizer does more than split at white space.
    """

    def __init__(
        self, settings: Mapping[str, Any], where: str = 'tokenizer.json', names: Mapping[str, str] | None = None
    ):
        model = settings['model']
        kind = model.get('type', 'BPE')
        steps = json.dumps([settings.get(step) for step in ('normalizer', 'pre_tokenizer')], ensure_ascii=False)
        byte_level, marks_words = '"ByteLevel"' in steps, SPACE in steps
        if kind not in ('Unigram', 'BPE', 'WordLevel'):
            raise UserError(
                where, f'a model of the type {kind!r}', 'WordPiece, WordLevel, Unigram or BPE',
                'use the tokenizer of a BERT model, or train one with --config.run=vocab',
            )  # fmt: skip
        has_symbols = kind == 'WordLevel'
        splits = (settings.get('pre_tokenizer') or {}).get('type')
        if has_symbols and (settings.get('normalizer') or splits != 'WhitespaceSplit'):
            found = 'a WordLevel tokenizer that does more than split at white space'
            raise UserError(where, found, 'a table of symbols', 'use a vocabulary that bertjax wrote')
        is_bpe = byte_level or (kind == 'BPE' and not marks_words)
        self.family = 'symbols' if has_symbols else 'bpe' if is_bpe else 'sentencepiece'
        self._space = SPACE if self.family == 'sentencepiece' else ' '
        ids = piece_ids(settings)
        names = with_roberta_names(names or {}, ids)
        mask = names.get(MASK, MASK)
        has_unk = UNK in names.keys() | ids or model.get('unk_token') or model.get('unk_id') is not None
        if mask in ids and not has_unk:
            names[UNK] = mask
        super().__init__(settings, where, names, kind)
        pieces = self.pieces
        if byte_level or marks_words:
            # In ModernBERT and Gemma, added tokens of spaces or line ends begin a word, although they lack the mark.
            begins = (_BYTE_SPACE if is_bpe else SPACE, ' ', '\n', '\t')
            # If a byte-level piece ends inside its first character, ¿ (the UTF-8 continuation byte BF) completes it.
            read = (lambda piece: decoders.ByteLevel().decode([f'{piece}¿¿'])) if byte_level else str
            continues = [not (piece.startswith(begins) or is_unspaced(read(piece))) for piece in pieces]
            self.word_prefix = '' if self.family == 'sentencepiece' and self._prepare('a').startswith(SPACE) else ' '
        else:
            prefix = model.get('continuing_subword_prefix')
            continues = [bool(prefix) and piece.startswith(prefix) for piece in pieces]
            self.word_prefix = ' ' if ' ' in self._prepare('a a') else ''
        self.continues_word = np.array(continues, dtype=bool)
        self.continues_word[self.special_ids] = False
        normalizer = self._library.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str('ABC') == normalizer.normalize_str('abc')
        parts = ('added_tokens', 'normalizer', 'pre_tokenizer', 'model')
        hashed = {'pieces': pieces} if has_symbols else {part: settings.get(part) for part in parts}
        self.fingerprint = hash_settings({'family': self.family, **hashed})

    def _prepare(self, word: str) -> str:
        """Returns the word after normalization and pre-tokenization."""
        normalizer, splitter = self._library.normalizer, self._library.pre_tokenizer
        text = word if normalizer is None else normalizer.normalize_str(word)
        return text if splitter is None else ''.join(part for part, _ in splitter.pre_tokenize_str(text))

    @functools.cached_property
    def without_prefix_space(self) -> Tokenizer:
        steps = {step: copy.deepcopy(self._settings.get(step)) for step in ('pre_tokenizer', 'post_processor')}
        if not self.word_prefix or not set_prefix_space(steps, False):
            return self
        return JsonTokenizer({**self._settings, **steps}, self._where, self._names)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[PieceOffsets]:
        located = super().encode_with_offsets(texts)
        if self.family == 'symbols':
            return located
        # `tokenizers` may add a space with the span of the text's first character. This space gets an empty span here.
        space = self._library.token_to_id(SPACE if self.family == 'sentencepiece' else _BYTE_SPACE)
        return [(ids, starts, np.where(ids == space, starts, ends)) for ids, starts, ends in located]

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        if self.family == 'symbols':  # symbols are never lower-cased
            del config['do_lower_case']
        if self.unk_id == self.mask_id:
            del config['unk_token']
        return config


def with_roberta_names(names: Mapping[str, str], pieces: Collection[str]) -> dict[str, str]:
    """Adds RoBERTa's names of special tokens to `names` if they are pieces of the vocabulary and [CLS] is not."""
    is_roberta = CLS not in pieces and all(name in pieces for name in ROBERTA_NAMES.values())
    return {**ROBERTA_NAMES, **names} if is_roberta else dict(names)


def byte_bpe_settings(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    names: Mapping[str, str] = ROBERTA_NAMES,
    lowercase: bool = False,
    prefix_space: bool = False,
    mask_takes_space: bool = True,
    unused: Sequence[str] = (),
) -> dict[str, Any]:
    """Makes the settings of a `tokenizer.json` with byte-level BPE, as in RoBERTa (arXiv 1907.11692, section 4.4).

    Every byte has a piece, so no text is unknown. A space belongs to the word after it and is written as Ġ. Source:
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.

    Args:
      vocab: The ids of the pieces, including special tokens.
      merges: Pairs of pieces, by descending priority.
      names: {BERT's name of a special token: its name in the vocabulary}.
      prefix_space: Whether a space is put before the text, so that its first word has the same pieces as elsewhere.
      mask_takes_space: Whether a mask token in a text includes the space before it, as in RoBERTa.
      unused: The reserved pieces, such as '[unused0]'.
    """
    space = {'add_prefix_space': prefix_space, 'trim_offsets': True, 'use_regex': True}
    special = [*(names[token] for token in (CLS, PAD, SEP, UNK, MASK)), *unused]
    added = make_added_tokens((vocab[name], name) for name in special)
    for token in added:
        token['lstrip'] = mask_takes_space and token['content'] == names[MASK]
    template = pair_template(vocab, names, separators=2)
    return {
        **TOKENIZER_JSON,
        'added_tokens': added,
        'normalizer': {'type': 'Lowercase'} if lowercase else None,
        'pre_tokenizer': {'type': 'ByteLevel', **space},
        'post_processor': {'type': 'Sequence', 'processors': [{'type': 'ByteLevel', **space}, template]},
        'decoder': {'type': 'ByteLevel', **space},
        'model': {
            'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None,
            'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
            'vocab': dict(vocab), 'merges': [list(pair) for pair in merges],
        },
    }  # fmt: skip


def set_prefix_space(settings: dict[str, Any], prefix_space: bool) -> bool:
    """Changes in place whether the settings of a tokenizer.json put a space before a text.

    Returns whether the pre-tokenizer had the opposite setting. If not, or if it has no such setting, nothing changes.
    """
    splitter = settings.get('pre_tokenizer') or {}
    # Only the first step of a sequence sees the whole text. A later step adds a space to each part of it.
    first = splitter
    while 'pretokenizers' in first:
        first = next(iter(first['pretokenizers']), {})
    has_opposite = first.get('add_prefix_space') is (not prefix_space)
    if not has_opposite or first.get('prepend_scheme') == 'never':  # the scheme overrides the setting
        return False
    for step in (first, *processor_steps(settings.get('post_processor'))):  # the latter correct the offsets
        if 'add_prefix_space' in step:
            step['add_prefix_space'] = prefix_space
    return True


def read_merges(text: str, where: str) -> list[list[str]]:
    """Parses a merges.txt: an optional first line `#version`, then one pair of pieces on each line.

    Raises:
      UserError: A line is not a pair.
    """
    pairs = []
    for number, line in enumerate(text.replace('\r\n', '\n').split('\n'), 1):
        if not line or (number == 1 and line.startswith('#version')):
            continue
        pair = line.split(' ')
        if len(pair) != 2 or not all(pair):
            raise UserError(f'{where}:{number}', repr(line), 'two pieces separated by a space', 'use the original file')
        pairs.append(pair)
    return pairs
