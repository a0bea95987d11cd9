"""Makes the tokenizer.json settings of byte-level BPE, RoBERTa's tokenizer.

Every byte has a piece, so no text is unknown. A space belongs to the word after it and is written as Ġ (Radford et al.
2019, "Language Models are Unsupervised Multitask Learners", section 2.2; RoBERTa, arXiv 1907.11692, section 4.4).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.text.special import CLS, MASK, PAD, SEP, UNK, make_added_tokens, pair_template
from bertjax.text.tokenizer_json import ROBERTA_NAMES

SEPARATORS = 2  # the number of [SEP] between the texts of a pair


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
    """Makes the settings of a `tokenizer.json` with byte-level BPE.

    Args:
      vocab: The ids of the pieces, including special tokens.
      merges: Pairs of pieces, by descending priority.
      names: The vocabulary's names of BERT's special tokens.
      lowercase: Whether text is lower-cased first.
      prefix_space: Whether a space is put before the text, so that a word has the same pieces at the start of a text as
        inside it.
      mask_takes_space: Whether a mask token in a text includes the space before it, as in RoBERTa.
      unused: The reserved pieces, which no text produces.
    """
    space = {'add_prefix_space': prefix_space, 'trim_offsets': True, 'use_regex': True}
    special = [*(names[token] for token in (CLS, PAD, SEP, UNK, MASK)), *unused]
    added = make_added_tokens((vocab[name], name) for name in special)
    for token in added:
        token['lstrip'] = mask_takes_space and token['content'] == names[MASK]
    template = pair_template(vocab, names, SEPARATORS)
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
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
