"""A trained model as a Hugging Face directory, which transformers loads."""

import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import linen as nn

from bertjax.convert import names
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.card import model_card
from bertjax.convert.huggingface.config import check_exportable, to_json
from bertjax.convert.huggingface.families import BERT, POSITIONS, family_of, family_read
from bertjax.convert.huggingface.read import CONFIG
from bertjax.convert.huggingface.tensors import MODEL
from bertjax.convert.trees import OnHost, shapes_of
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.files.safetensors import Tensor, write_tensors
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.text.special import to_json as to_text

CARD = 'README.md'
_KINDS = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
# Keys of a config.json that are about its directory or its program, and not about the model.
_OWN = {'dtype', 'torch_dtype', 'auto_map', 'quantization_config', '_name_or_path', 'transformers_version'}


class SavedTokenizer(Protocol):
    """What the export needs of a tokenizer (text/tokenizer.py)."""

    vocab_size: int
    pad_id: int
    separators: int

    def save(self, directory: str) -> None:
        """Writes the files that transformers loads."""


def export_huggingface(
    params: Mapping,
    config: BertConfig,
    tokenizer: SavedTokenizer,
    directory: epath.PathLike,
    *,
    card: Mapping[str, Any],
    head: Head | None = None,
    task: Mapping[str, Any] = MappingProxyType({}),
    beside: Mapping[str, str] = MappingProxyType({}),
    about: Mapping[str, str] = MappingProxyType({}),
    figures: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    dtype: str = 'float32',
    values: Mapping[str, Any] = MappingProxyType({}),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Writes a directory that transformers loads: config.json, model.safetensors, tokenizer files, README.md.

    The directory appears whole or not at all, and replaces an earlier export only then. Equal parameters give equal
    bytes.

    Args:
      params: of BertForPreTraining(config) or of a task's model, stacked or unrolled as the config says; may be boxed.
        Heads of a pre-trained model may be missing: the directory is then that of a class without them.
      config: of the model.
      tokenizer: whose files are exported along with the model.
      directory: local or remote.
      card: training facts for the model card; see `card.model_card`.
      head: of a task's model.
      task: fields of the task for config.json (`id2label`, a name for each output; `label2id`, `problem_type`).
      beside: {name: text} of further files.
      about, figures: for the card, too.
      dtype: of the tensors: 'float32', 'float16' or 'bfloat16'.
      values: the config.json of the directory that the model was read from: the same family is written, and keys that
        the export does not set itself are kept.
      files: {relative path: content} of further files of that directory; they replace those that the export would
        write, but for config.json and the tensors.

    Raises:
      UserError: a model that the format cannot represent (`check_exportable`; `check_head_exportable` is for the
        caller, who has the module), a tokenizer of another size, a directory with other files.
      ValueError: parameters that do not fit the config, labels that do not fit the head.
    """
    check_exportable(config, head)
    target = epath.Path(directory)
    if tokenizer.vocab_size > config.vocab_size:  # a model of others may have more rows than its tokenizer has pieces
        expected = f'at most {config.vocab_size}, as config.model.vocab_size'
        raise UserError('tokenizer', f'{tokenizer.vocab_size} pieces', expected, 'export with the tokenizer of the run')
    if target.exists() and not (target / CONFIG).exists() and any(target.iterdir()):
        fix = 'choose another directory: this one would be replaced'
        raise UserError(str(target), 'a directory with other files', 'an earlier export or nothing', fix)
    host = OnHost(params, config)
    shapes = host.shapes
    expected = shapes_of(_exported_module(config, head, task, shapes))
    lacking = _parts(expected) - _parts(shapes)
    there = {path: shape for path, shape in expected.items() if path.partition('/')[0] not in lacking}
    if shapes != there or lacking & {'encoder', 'head'}:
        difference = sorted(shapes.items() ^ expected.items())
        raise ValueError(f'parameters do not fit the config: {difference[:4]}')
    pairs = head is None and config.nsp and 'nsp' not in lacking
    read = values.get('model_type', BERT.name)
    family = family_read(read).variant(read) if values else family_of(config, tokenizer.separators, pairs=pairs)
    described = family.own_values(to_json(config, tokenizer.pad_id, head, task, lacking))
    set_here = described.keys() - {'use_cache'} | _OWN  # which says nothing of an encoder
    described |= {'torch_dtype': dtype, **{key: x for key, x in values.items() if key not in set_here}}
    unused = family.unused_positions(described, CONFIG)
    tensors = {}
    for entry in names.named_entries(config.num_layers, shapes, head.projection if head else ''):
        tensor = _tensor(host, entry, config.vocab_size, unused if entry.theirs == POSITIONS else 0, dtype)
        tensors[family.own_name(entry.theirs, described['architectures'][0])] = tensor
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    pipeline = head.pipeline if head else 'feature-extraction' if 'mlm' in lacking else ''
    with atomic_directory(target) as staging:
        tokenizer.save(staging)
        if family is not BERT:
            _leave_out_segments(epath.Path(staging) / 'tokenizer_config.json')
        path = epath.Path(staging)
        write_tensors(path / MODEL, dict(sorted(tensors.items())), {'format': 'pt'})
        for name, text in beside.items():
            (path / name).write_text(text)
        architecture = described['architectures'][0]
        text = model_card(config, architecture, card, parameters, pipeline=pipeline, about=about, figures=figures)
        (path / CARD).write_text(text)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        (path / CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + '\n')


def _parts(shapes: Mapping[str, object]) -> set[str]:
    """'encoder', 'mlm' ..."""
    return {path.partition('/')[0] for path in shapes}


def _tensor(host: OnHost, entry: names.Entry, vocab_size: int, unused: int, dtype: str) -> Tensor:
    """Theirs, with so many rows of zeros in front."""
    stored = jnp.dtype(dtype)
    ours = host.shapes[entry.ours] if entry.layer is None else host.shapes[entry.ours][1:]
    rows, *others = entry.their_shape(ours, vocab_size)

    def parts() -> Iterator[np.ndarray]:
        yield np.zeros((unused, *others), stored)
        yield entry.kind.give(host.get(entry.ours, entry.layer), vocab_size).astype(stored, copy=False)

    return Tensor(_KINDS[dtype], (unused + rows, *others), parts)


def _leave_out_segments(path: epath.Path) -> None:
    """Has transformers' tokenizer make no `token_type_ids`, which a model without them cannot take."""
    facts = json.loads(path.read_text())
    facts['model_input_names'] = [name for name in facts['model_input_names'] if name != 'token_type_ids']
    path.write_text(to_text(facts))


def _exported_module(
    config: BertConfig, head: Head | None, task: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> nn.Module:
    """The module whose parameters must be there."""
    if head is None:
        return BertForPreTraining(config)
    if not head.architecture:
        raise ValueError(f'transformers has no class for {head.module.__name__}')
    outputs = shapes.get('head/bias', (0,))[0]
    labels = len(task.get('id2label', 'ab'))  # without names transformers assumes two labels
    if head.id2label and labels != outputs:
        raise ValueError(f'{labels} labels for {outputs} outputs')
    return head.module(config, outputs)
