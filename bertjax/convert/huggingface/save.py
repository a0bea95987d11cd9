"""Exports a trained model as a Hugging Face directory, which transformers loads."""

import collections
import json
import math
from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.convert import names
from bertjax.convert.content import ExportContent, write_files
from bertjax.convert.huggingface.card import model_card
from bertjax.convert.huggingface.config import check_exportable, to_json
from bertjax.convert.huggingface.families import BERT, POSITIONS, choose_family, find_family
from bertjax.convert.huggingface.read import CONFIG, gives_segments
from bertjax.convert.huggingface.tensors import MODEL
from bertjax.convert.trees import HostParams, stacked_shapes
from bertjax.errors import UserError
from bertjax.files.atomic import writes_are_disabled
from bertjax.files.safetensors import Tensor, write_tensors
from bertjax.text.special import to_json as to_text
from bertjax.text.tokenizer_base import Tokenizer

CARD = 'README.md'
_KINDS = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
# The keys of config.json that describe the directory or the program that wrote it, not the model.
_DIRECTORY_KEYS = {'dtype', 'torch_dtype', 'auto_map', 'quantization_config', '_name_or_path', 'transformers_version'}
_OTHER_RATES = ('embedding_dropout', 'classifier_dropout')


def export_huggingface(content: ExportContent, directory: epath.PathLike) -> None:
    """Writes a directory that transformers loads: config.json, model.safetensors, tokenizer files, README.md.

    The local directory appears atomically and replaces an earlier export. Equal content gives equal bytes. The class of
    transformers has only the heads that the parameters have. A task's model must have passed `check_head_exportable`.

    Raises:
      UserError: The format cannot represent the model (`check_exportable`), the tokenizer has more pieces than the
        config's `vocab_size`, or the directory has other files.
      ValueError: The parameters do not match the module, or the labels do not match its outputs.
    """
    config, tokenizer, head = content.config, content.tokenizer, content.head
    check_exportable(config, head)
    target = epath.Path(directory)
    if tokenizer.vocab_size > config.vocab_size:  # Published models may have more rows than pieces.
        expected = f'at most {config.vocab_size}, as config.model.vocab_size'
        raise UserError('tokenizer', f'{tokenizer.vocab_size} pieces', expected, 'export with the tokenizer of the run')
    if target.exists() and not (target / CONFIG).exists() and any(target.iterdir()):
        fix = 'choose another directory: this one would be replaced'
        raise UserError(str(target), 'a directory with other files', 'an earlier export or nothing', fix)
    labels = len(content.task.get('id2label', 'ab'))  # transformers assumes two labels if there are no names.
    if head and head.id2label and labels != content.module.outputs:
        raise ValueError(f'{labels} labels for {content.module.outputs} outputs')
    host = HostParams(content.params, config)
    shapes, expected = host.shapes, stacked_shapes(content.module)
    missing_parts = _parts(expected) - _parts(shapes)
    required = {path: shape for path, shape in expected.items() if path.partition('/')[0] not in missing_parts}
    if shapes != required or missing_parts & {'encoder', 'head'}:
        difference = sorted(shapes.items() ^ expected.items())
        raise ValueError(f'parameters do not fit the config: {difference[:4]}')
    pairs = head is None and config.nsp and 'nsp' not in missing_parts
    if content.values:
        family = find_family(content.values.get('model_type', BERT.name))
    else:
        family = choose_family(config, tokenizer.separators, pairs=pairs)
    config_json = to_json(config, family, tokenizer.pad_id, head, content.task, missing_parts)
    # BertConfig.dropout is ModernBERT's `mlp_dropout`. If this rate is unchanged, other dropout rates are kept too.
    if content.values and config_json.get('mlp_dropout') == content.values.get('mlp_dropout', 0.0):
        config_json = {key: value for key, value in config_json.items() if key not in _OTHER_RATES}
    # `use_cache` keeps its old value, because encoders ignore this key.
    export_keys = config_json.keys() - {'use_cache'} | _DIRECTORY_KEYS
    config_json |= {'torch_dtype': content.dtype, **{key: getattr(tokenizer, name) for key, name in family.token_ids}}
    config_json |= {key: x for key, x in content.values.items() if key not in export_keys}
    unused = family.unused_positions(config_json, CONFIG)
    architecture = config_json['architectures'][0]
    parts: dict[str, list[names.Entry]] = collections.defaultdict(list)  # in the order of names.TABLE
    for entry in names.entries(config, shapes, content.projection):
        parts[family.to_family_name(entry.theirs, architecture)].append(entry)
    tensors = {}
    for name, entries in parts.items():
        unused_rows = unused if entries[0].theirs == POSITIONS else 0
        tensors[name] = _tensor(host, entries, config.vocab_size, unused_rows, content.dtype)
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    modules: dict[str, dict[str, Tensor]] = collections.defaultdict(dict)  # {folder: its tensors}
    for name in [name for name in tensors if '/' in name]:
        folder, _, key = name.partition('/')
        modules[folder][key] = tensors.pop(name)
    pipeline = head.pipeline if head else 'feature-extraction' if 'mlm' in missing_parts else ''
    with content.stage(target) as path:
        if not writes_are_disabled():  # with disabled writes, there are no tokenizer files to adapt
            segments = family is BERT and config.num_segments > 1
            _adapt_tokenizer(path, tokenizer, segments=segments)
        write_tensors(path / MODEL, dict(sorted(tensors.items())), {'format': 'pt'})
        (path / CARD).write_text(model_card(content, architecture, parameters, pipeline))
        replaced = {f'{folder}/pytorch_model.bin' for folder in modules}
        write_files(path, {name: data for name, data in content.files.items() if name not in replaced})
        for folder, arrays in modules.items():
            (path / folder).mkdir(exist_ok=True)
            write_tensors(path / folder / MODEL, arrays, {'format': 'pt'})
        (path / CONFIG).write_text(json.dumps(config_json, indent=2, sort_keys=True) + '\n')


def _parts(shapes: Mapping[str, object]) -> set[str]:
    """Returns the first components of the paths: 'encoder', 'mlm' ..."""
    return {path.partition('/')[0] for path in shapes}


def _tensor(host: HostParams, entries: Sequence[names.Entry], vocab_size: int, unused: int, dtype: str) -> Tensor:
    """Returns a tensor in the layout of transformers: `unused` rows of zeros, then the tensors of `entries`."""
    stored = jnp.dtype(dtype)
    shapes = [entry.their_shape(host.shapes[entry.ours], vocab_size) for entry in entries]
    rows, others = unused + sum(shape[0] for shape in shapes), shapes[0][1:]

    def parts() -> Iterator[np.ndarray]:
        yield np.zeros((unused, *others), stored)
        for entry in entries:
            yield entry.to_theirs(host.get(entry.ours, entry.layer), vocab_size).astype(stored, copy=False)

    return Tensor(_KINDS[dtype], (rows, *others), parts)


def _adapt_tokenizer(directory: epath.Path, tokenizer: Tokenizer, *, segments: bool) -> None:
    """Adapts the saved tokenizer to the segments of the model."""
    path = directory / 'tokenizer_config.json'
    facts = json.loads(path.read_text())
    facts['model_input_names'] = [name for name in facts['model_input_names'] if segments or name != 'token_type_ids']
    path.write_text(to_text(facts))
    path = directory / 'tokenizer.json'
    if segments and path.exists() and not gives_segments(settings := json.loads(path.read_text())):
        settings['post_processor'] = tokenizer.pair_template()
        path.write_text(to_text(settings))
