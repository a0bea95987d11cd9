"""Exports a trained model as a Hugging Face directory, which transformers loads."""

import collections
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
from bertjax.convert.huggingface.families import BERT, POSITIONS, choose_family, find_family
from bertjax.convert.huggingface.read import CONFIG
from bertjax.convert.huggingface.tensors import MODEL
from bertjax.convert.trees import HostParams, stacked_shapes
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.files.safetensors import Tensor, write_tensors
from bertjax.files.write_guard import writes_are_disabled
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.text.special import to_json as to_text

CARD = 'README.md'
_KINDS = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
# The keys of config.json that describe the directory or the program that wrote it, not the model.
_DIRECTORY_KEYS = {'dtype', 'torch_dtype', 'auto_map', 'quantization_config', '_name_or_path', 'transformers_version'}


class TokenizerProtocol(Protocol):
    """The part of a tokenizer's interface that the export needs (text/tokenizer.py)."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    separators: int

    def save(self, directory: str) -> None:
        """Writes the files that transformers loads."""


def export_huggingface(
    params: Mapping,
    config: BertConfig,
    tokenizer: TokenizerProtocol,
    directory: epath.PathLike,
    *,
    card: Mapping[str, Any],
    head: Head | None = None,
    task: Mapping[str, Any] = MappingProxyType({}),
    extra_files: Mapping[str, str] = MappingProxyType({}),
    about: Mapping[str, str] = MappingProxyType({}),
    figures: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    dtype: str = 'float32',
    values: Mapping[str, Any] = MappingProxyType({}),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Writes a directory that transformers loads: config.json, model.safetensors, tokenizer files, README.md.

    The directory appears atomically and replaces an earlier export. Equal parameters give equal bytes.

    Args:
      params: The parameters of BertForPreTraining(config) or of a task's model, stacked or not as in the config; may be
        boxed. A pre-trained model may lack heads; its export then has a class of transformers without these heads.
      config: The config of the model.
      tokenizer: The tokenizer, whose files are also written.
      directory: The local or remote directory.
      card: The facts about the training for the model card, see `card.model_card`.
      head: The head of a task's model, which must have passed `check_head_exportable`; None for a pre-trained model.
      task: The fields of the task in config.json (`id2label`, a name for each output; `label2id`, `problem_type`).
      extra_files: Additional files, {name: text}.
      about, figures: See `card.model_card`.
      dtype: The dtype of the tensors: 'float32', 'float16' or 'bfloat16'.
      values: The config.json of the directory from which the model was read; empty for other models. The export has the
        same family, and copies the keys that it does not set.
      files: Additional files of this directory, {relative path: content}. They replace files of the export, except
        config.json and the tensors.

    Raises:
      UserError: The format cannot represent the model (`check_exportable`), the tokenizer has more pieces than the
        model, or the directory has other files.
      ValueError: The parameters do not match the config, or the labels do not match the head.
    """
    check_exportable(config, head)
    target = epath.Path(directory)
    if tokenizer.vocab_size > config.vocab_size:  # Published models may have more rows than pieces.
        expected = f'at most {config.vocab_size}, as config.model.vocab_size'
        raise UserError('tokenizer', f'{tokenizer.vocab_size} pieces', expected, 'export with the tokenizer of the run')
    if target.exists() and not (target / CONFIG).exists() and any(target.iterdir()):
        fix = 'choose another directory: this one would be replaced'
        raise UserError(str(target), 'a directory with other files', 'an earlier export or nothing', fix)
    host = HostParams(params, config)
    shapes = host.shapes
    expected = stacked_shapes(_exported_module(config, head, task, shapes))
    projection = head.projection if head else ''
    # The modules of sentence-transformers have any sizes.
    expected |= {x.ours: shapes[x.ours] for x in names.entries(config, shapes, projection) if '/' in x.theirs}
    missing_parts = _parts(expected) - _parts(shapes)
    required = {path: shape for path, shape in expected.items() if path.partition('/')[0] not in missing_parts}
    if shapes != required or missing_parts & {'encoder', 'head'}:
        difference = sorted(shapes.items() ^ expected.items())
        raise ValueError(f'parameters do not fit the config: {difference[:4]}')
    pairs = head is None and config.nsp and 'nsp' not in missing_parts
    model_type = values.get('model_type', BERT.name)
    family = (
        find_family(model_type).variant(model_type)
        if values
        else choose_family(config, tokenizer.separators, pairs=pairs)
    )
    config_json = family.to_family_values(to_json(config, tokenizer.pad_id, head, task, missing_parts))
    config_json |= family.write_values(config) if family.write_values else {}
    export_keys = config_json.keys() - {'use_cache'} | _DIRECTORY_KEYS  # Encoders do not use `use_cache`.
    config_json |= {'torch_dtype': dtype, **{key: getattr(tokenizer, name) for key, name in family.token_ids}}
    config_json |= {key: x for key, x in values.items() if key not in export_keys}
    unused = family.unused_positions(config_json, CONFIG)
    parts: dict[str, list[Tensor]] = collections.defaultdict(list)  # in the order of names.TABLE
    for entry in names.named_entries(config, shapes, projection):
        tensor = _tensor(host, entry, config.vocab_size, unused if entry.theirs == POSITIONS else 0, dtype)
        parts[family.to_family_name(entry.theirs, config_json['architectures'][0])].append(tensor)
    tensors = {name: _concatenate(tensors) for name, tensors in parts.items()}
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    modules: dict[str, dict[str, Tensor]] = collections.defaultdict(dict)  # {folder: its tensors}
    for name in [name for name in tensors if '/' in name]:
        folder, _, key = name.partition('/')
        modules[folder][key] = tensors.pop(name)
    pipeline = head.pipeline if head else 'feature-extraction' if 'mlm' in missing_parts else ''
    with atomic_directory(target) as staging:
        tokenizer.save(staging)
        if family is not BERT and not writes_are_disabled():  # the tokenizer writes nothing if writes are disabled
            _adapt_tokenizer(epath.Path(staging) / 'tokenizer_config.json', config)
        path = epath.Path(staging)
        write_tensors(path / MODEL, dict(sorted(tensors.items())), {'format': 'pt'})
        for name, text in extra_files.items():
            (path / name).write_text(text)
        architecture = config_json['architectures'][0]
        text = model_card(config, architecture, card, parameters, pipeline=pipeline, about=about, figures=figures)
        (path / CARD).write_text(text)
        replaced = {f'{folder}/pytorch_model.bin' for folder in modules}
        for name, content in files.items():
            if name in replaced:
                continue
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        for folder, its_tensors in modules.items():
            (path / folder).mkdir(exist_ok=True)
            write_tensors(path / folder / MODEL, its_tensors, {'format': 'pt'})
        (path / CONFIG).write_text(json.dumps(config_json, indent=2, sort_keys=True) + '\n')


def _parts(shapes: Mapping[str, object]) -> set[str]:
    """Returns the first components of the paths: 'encoder', 'mlm' ..."""
    return {path.partition('/')[0] for path in shapes}


def _tensor(host: HostParams, entry: names.Entry, vocab_size: int, unused: int, dtype: str) -> Tensor:
    """Returns a tensor in the layout of transformers, with `unused` rows of zeros at the start."""
    stored = jnp.dtype(dtype)
    ours = host.shapes[entry.ours] if entry.layer is None else host.shapes[entry.ours][1:]
    rows, *others = entry.their_shape(ours, vocab_size)

    def parts() -> Iterator[np.ndarray]:
        yield np.zeros((unused, *others), stored)
        yield entry.kind.to_theirs(host.get(entry.ours, entry.layer), vocab_size).astype(stored, copy=False)

    return Tensor(_KINDS[dtype], (unused + rows, *others), parts)


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors along the first axis."""
    rows, others = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1:]
    return Tensor(tensors[0].kind, (rows, *others), lambda: itertools.chain.from_iterable(x.parts() for x in tensors))


def _adapt_tokenizer(path: epath.Path, config: BertConfig) -> None:
    """Adapts a tokenizer_config.json to a model without segments: removes `token_type_ids`, sets the length."""
    facts = json.loads(path.read_text())
    facts['model_input_names'] = [name for name in facts['model_input_names'] if name != 'token_type_ids']
    facts['model_max_length'] = config.max_positions
    path.write_text(to_text(facts))


def _exported_module(
    config: BertConfig, head: Head | None, task: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> nn.Module:
    """Returns the module whose parameters the export must have."""
    if head is None:
        return BertForPreTraining(config)
    if not head.architecture:
        raise ValueError(f'transformers has no class for {head.module.__name__}')
    outputs = shapes.get('head/kernel', (0,))[-1]
    labels = len(task.get('id2label', 'ab'))  # transformers assumes two labels if there are no names.
    if head.id2label and labels != outputs:
        raise ValueError(f'{labels} labels for {outputs} outputs')
    return head.module(config, outputs)
