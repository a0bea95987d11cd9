"""Exports a trained model as a checkpoint that the scripts of google-research/bert can load."""

import json

import jax
from etils import epath

from bertjax.convert import names
from bertjax.convert.content import ExportContent
from bertjax.convert.google.bundle import write_bundle
from bertjax.convert.google.names import HEADS, MNLI_LABELS, to_google, transpose_kernel
from bertjax.convert.google.read import CONFIG, GELU, NAME
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.config import label_names
from bertjax.convert.huggingface.families import FIELDS
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.text.tokenizer import Tokenizer

_KEY = 'config.export_formats'
_FIX = 'remove google from config.export_formats'
# bert_config.json has no keys for these fields, because google-research/bert always uses these values.
_FIXED = {'causal': False, 'layer_norm_eps': 1e-12, 'pooler': 'tanh'}


def check_google(
    config: BertConfig,
    head: Head | None = None,
    vocabulary: str = 'wordpiece',
    tokenizer: Tokenizer | None = None,
) -> None:
    """Raises a UserError if google-research/bert cannot compute a model or does not read its tokenizer.

    `vocabulary` is the family of the tokenizer, and `tokenizer` is None if it does not exist yet. A task's model has a
    `head`, and must have passed `check_head_exportable`.
    """
    fixed = dict.fromkeys(config.modern_fields, "BERT's choice") | _FIXED
    for name, theirs in fixed.items():
        value = getattr(config, name)
        if value != theirs:
            expected = f'{theirs}, because google-research/bert has no other'
            raise UserError(f'config.model.{name}', f'{value} with google in {_KEY}', expected, _FIX)
    if config.num_segments < 2:  # with one segment, google-research/bert adds zeros to the tokens of a second text
        raise UserError('config.model.num_segments', f'{config.num_segments} with google in {_KEY}', 'at least 2', _FIX)
    if head is not None and head.architecture not in dict(HEADS.values()):
        expected = 'a model for classification or question answering, as in run_classifier.py and run_squad.py'
        raise UserError(_KEY, f'google for {head.module.__name__}', expected, _FIX)
    if vocabulary != 'wordpiece':
        expected = 'a WordPiece vocabulary, because google-research/bert reads a vocab.txt'
        raise UserError(_KEY, f'google with a {vocabulary} vocabulary', expected, _FIX)
    if tokenizer is not None and not tokenizer.is_google:
        found = 'google with added or other special tokens, or other rules for accents or Chinese'
        raise UserError(_KEY, found, "BERT's tokenizer, because google-research/bert reads only a vocab.txt", _FIX)


def export_google(content: ExportContent, directory: epath.PathLike) -> None:
    """Writes bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001 and vocab.txt.

    The directory appears atomically. Equal parameters give equal bytes. Other files of the tokenizer are written too,
    although google-research/bert does not read them. For the errors, see `check_google`.
    """
    config = content.config
    check_google(config, content.head, content.tokenizer.family, content.tokenizer)
    params = content.params
    ours = label_names(content.task.get('id2label'))
    if sorted(ours) == [*MNLI_LABELS]:
        order = [ours.index(label) for label in MNLI_LABELS]
        params = params | {'head': jax.tree.map(lambda x: x[..., order], params['head'])}
    tensors = names.to_huggingface(params, config, content.projection)
    with content.stage(directory) as path:
        theirs = {to_google(name): x for name, x in tensors.items()}
        write_bundle(path / NAME, {name: transpose_kernel(name, x) for name, x in theirs.items()})
        values = {theirs: getattr(config, ours) for ours, theirs in FIELDS.items() if ours not in _FIXED}
        # 'gelu' means the tanh form of GELU. The key GELU, which google-research/bert ignores, marks the exact form.
        values |= {'hidden_act': 'relu' if config.mlp == 'relu' else 'gelu'}
        values |= {GELU: 'erf'} if config.mlp == 'gelu' else {}
        (path / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + '\n')
