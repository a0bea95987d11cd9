"""Byte-level BPE, RoBERTa's tokenizer, as the settings of Hugging Face's tokenizer.json.

Every byte has a piece, so that nothing is unknown; a space belongs to the word behind it and shows as Ġ (Radford et al.
2019, "Language Models are Unsupervised Multitask Learners", section 2.2; RoBERTa, arXiv 1907.11692, section 4.4).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.text.special import CLS, MASK, PAD, SEP, UNK, added_tokens, pair_template
from bertjax.text.tokenizer_json import ROBERTA_NAMES

SEPARATORS = 2  # between the texts of a pair


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
    """The `tokenizer.json` of a byte-level BPE.

    Args:
      vocab: ids of the pieces, special tokens among them.
      merges: pairs of pieces, by descending priority.
      names: what the vocabulary calls BERT's special tokens.
      lowercase: whether text is lower-cased first.
      prefix_space: whether the first word of a text is written as any other, as if a space stood before it.
      mask_takes_space: whether the name of the mask in a text takes the space before it along, as RoBERTa's does.
      unused: reserved pieces, which no text produces.
    """
    space = {'add_prefix_space': prefix_space, 'trim_offsets': True, 'use_regex': True}
    special = [*(names[token] for token in (CLS, PAD, SEP, UNK, MASK)), *unused]
    added = added_tokens((vocab[name], name) for name in special)
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
    """The pairs of a merges.txt: one a line, after a line `#version`.

    Raises:
      UserError: a line of another form.
    """
    pairs = []
    for number, line in enumerate(text.replace('\r\n', '\n').split('\n'), 1):
        if not line or (number == 1 and line.startswith('#version')):
            continue
        pair = line.split(' ')
        if len(pair) != 2 or not all(pair):
            raise UserError(
                f'{where}:{number}', repr(line), 'two pieces with a space between', 'take the original file'
            )
        pairs.append(pair)
    return pairs
