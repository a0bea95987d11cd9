"""Exports a trained model as a checkpoint that the scripts of google-research/bert can load."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from etils import epath

from bertjax.convert import names
from bertjax.convert.google.bundle import write_bundle
from bertjax.convert.google.names import HEADS, to_google, transpose_kernel
from bertjax.convert.google.read import CONFIG, GELU, NAME
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.config import FIELDS
from bertjax.convert.trees import flat_stacked
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.model.config import BertConfig
from bertjax.text.tokenizer import Tokenizer

_KEY = 'config.export_formats'
_FIX = 'remove google from config.export_formats'
_ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu', 'relu': 'relu'}
# The fields without a key in bert_config.json, and their only possible values.
_FIXED = {'causal': False, 'layer_norm_eps': 1e-12, 'pooler': 'tanh'}


def check_google(config: BertConfig, head: Head | None = None) -> None:
    """Checks that google-research/bert can compute a model. The check is cheap and runs before training starts.

    Args:
      config: The config of the model.
      head: The head of a task's model, which must have passed `check_head_exportable`; None for a pre-trained model.

    Raises:
      UserError: The model is left-to-right or has other features that BERT lacks, its epsilon, pooler or segments
        differ from BERT's, or google-research/bert lacks its head.
    """
    for name in config.modern_fields:
        found = f'{getattr(config, name)} with google in {_KEY}'
        raise UserError(f'config.model.{name}', found, "BERT's choice, because google-research/bert has no other", _FIX)
    for name, theirs in _FIXED.items():
        value = getattr(config, name)
        if value != theirs:
            expected = f'{theirs}, the only value in google-research/bert'
            raise UserError(f'config.model.{name}', f'{value} with google in {_KEY}', expected, _FIX)
    if not config.num_segments:
        raise UserError('config.model.num_segments', f'0 with google in {_KEY}', 'at least 1', _FIX)
    if head is not None and head.architecture not in _architectures():
        expected = 'a model for classification or question answering, as in run_classifier.py and run_squad.py'
        raise UserError(_KEY, f'google for {head.module.__name__}', expected, _FIX)


def check_google_vocabulary(family: str) -> None:
    """Checks that a vocabulary can be written as vocab.txt.

    Raises:
      UserError: The vocabulary is not WordPiece.
    """
    if family != 'wordpiece':
        expected = 'a WordPiece vocabulary, because google-research/bert reads a vocab.txt'
        raise UserError(_KEY, f'google with a {family} vocabulary', expected, _FIX)


def export_google(
    params: Mapping,
    config: BertConfig,
    tokenizer: Tokenizer,
    directory: epath.PathLike,
    *,
    head: Head | None = None,
    extra_files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001 and vocab.txt.

    The directory appears atomically. Equal parameters give equal bytes.

    Args:
      params: The parameters of BertForPreTraining(config) or of a task's model, stacked or not as in the config; may be
        boxed. A pre-trained model may lack heads.
      config: The config of the model.
      tokenizer: The tokenizer. All its files are written, although google-research/bert reads only vocab.txt.
      directory: The local or remote directory.
      head: The head of a task's model; None for a pre-trained model.
      extra_files: Additional files, {name: text}.

    Raises:
      UserError: See `check_google` and `check_google_vocabulary`.
    """
    check_google(config, head)
    check_google_vocabulary(tokenizer.family)
    flat = flat_stacked(params, config)
    tensors = names.to_huggingface(flat, config, head.projection if head else '')
    with atomic_directory(directory) as staging:
        tokenizer.save(staging)
        path = epath.Path(staging)
        theirs = {to_google(name): x for name, x in tensors.items()}
        write_bundle(path / NAME, {name: transpose_kernel(name, x) for name, x in theirs.items()})
        for name, text in extra_files.items():
            (path / name).write_text(text)
        (path / CONFIG).write_text(json.dumps(_bert_config(config), indent=2, sort_keys=True) + '\n')


def _architectures() -> list[str]:
    return [architecture for architecture, _ in HEADS.values()]


def _bert_config(config: BertConfig) -> dict[str, Any]:
    """Returns the content of bert_config.json.

    `hidden_act` 'gelu' is the tanh form of GELU. The additional key GELU marks the exact form; google-research/bert
    ignores this key.
    """
    values = {theirs: getattr(config, ours) for ours, theirs in FIELDS if ours != 'layer_norm_eps'}
    values['hidden_act'] = _ACTIVATIONS[config.mlp]
    return {**values, **({GELU: 'erf'} if config.mlp == 'gelu' else {})}
