"""Trains a byte-level BPE. The same texts always give the same vocabulary."""

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertjax.errors import UserError
from bertjax.text.byte_bpe import byte_bpe_settings
from bertjax.text.long_words import shorten_runs
from bertjax.text.special import CLS, MASK, PAD, SEP, UNK, replace_surrogates
from bertjax.text.tokenizer_json import ROBERTA_NAMES, JsonTokenizer
from bertjax.text.vocabulary import no_text_error, warn_when_small

_BYTES = 256
# Longer words are cut into parts of this many bytes, because training time grows with the square of a word's length.
_MAX_WORD_BYTES = 1_000


def train_byte_bpe(
    texts: Iterable[str], *, vocab_size: int, lowercase: bool, unused: int = 0, min_frequency: int = 2
) -> JsonTokenizer:
    """Trains a byte-level BPE with the trainer of `tokenizers`.

    The pieces are <s> <pad> </s> <unk> <mask>, [unusedN], the 256 bytes, then the merges. If the text is too small,
    there are fewer than `vocab_size` pieces, and a warning is logged. A space is put before each text, and pairs have
    two separators, as in RoBERTa.

    Args:
      texts, vocab_size, unused, min_frequency: See vocabulary.py:train_wordpiece.
      lowercase: Whether text is lower-cased.

    Raises:
      UserError: The texts are empty, or `vocab_size` is too small for the bytes.
    """
    special = [ROBERTA_NAMES[token] for token in (CLS, PAD, SEP, UNK, MASK)]
    slots = [f'[unused{i}]' for i in range(unused)]
    min_size = len(special) + len(slots) + _BYTES
    if vocab_size < min_size:
        found = f'{vocab_size:,}, which is too small for the {_BYTES} bytes'
        raise UserError(
            'config.vocab.size',
            found,
            f'at least {min_size:,}',
            'raise it (8,192 for a small corpus, 50,265 for RoBERTa)',
        )
    model = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        model.normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=True)
    model.pre_tokenizer = pre_tokenizers.Sequence([splitter, pre_tokenizers.FixedLength(_MAX_WORD_BYTES)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*special, *slots],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(shorten_runs(map(replace_surrogates, texts)), trainer)
    learned = json.loads(model.to_str())['model']
    if not learned['merges']:
        raise no_text_error()
    warn_when_small(len(learned['vocab']), vocab_size)
    settings = byte_bpe_settings(
        learned['vocab'], learned['merges'], lowercase=lowercase, prefix_space=True, unused=slots
    )
    return JsonTokenizer(settings)
