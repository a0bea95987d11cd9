"""Reads and writes the modules of a sentence-transformers model, which compute the vector of a text.

modules.json lists the modules and their folders. The formats are those of sentence-transformers 2 to 6
(base/modules/transformer.py, sentence_transformer/modules/pooling.py, base/model.py).
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from safetensors.numpy import save

from bertjax.config.ranges import format_value
from bertjax.convert.huggingface.dense import Dense, DenseConfig, dense_settings, read_dense
from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.names import DENSE_FOLDERS
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_list, read_json_object
from bertjax.model.pooling import SENTENCE_POOL

MODULES = 'modules.json'
_ENCODERS = tuple(f'sentence_{x}_config.json' for x in ('bert', 'roberta', 'distilbert', 'camembert', 'xlm-roberta'))
ENCODER = _ENCODERS[0]
SETTINGS = 'config_sentence_transformers.json'
FILES = (MODULES, *_ENCODERS, SETTINGS)  # The folders that modules.json names are not included.
_PACKAGES = ('sentence_transformers.', 'pylate.models.')  # the packages of the types in modules.json
_AGAIN = 'copy the directory again'
_NAME_POOL = "encode the texts with a pooling such as pool='mean'"
# {flag of a pooling mode in versions before 6: name of the mode}.
_FLAGS = {
    'pooling_mode_cls_token': 'cls',
    'pooling_mode_max_tokens': 'max',
    'pooling_mode_mean_tokens': 'mean',
    'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
    'pooling_mode_weightedmean_tokens': 'weightedmean',
    'pooling_mode_lasttoken': 'lasttoken',
}
_LAYERS, _WEIGHTS = 'WeightedLayerPooling', 'layer_weights'


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """The steps in which a sentence-transformers model computes the vector of a text.

    Attributes:
      max_length: The number of tokens to which longer texts are truncated; 0 if the model does not define it.
      lowercase: Whether texts are lowercased before tokenization.
      prompt: The default prefix of texts; '' if there is none.
      prompts: All named prefixes, {name: prefix}. Typical names are 'query' and 'document'.
      include_prompt: Whether the tokens of a prompt are pooled.
      layers: The layers whose hidden states are pooled; -1 is the last layer.
      weights: The weight of each of these layers; () for their mean.
      pool: The pooling, one of `model.pooling.SENTENCE_POOL`.
      dense: The Dense modules that are applied to the pooled vector.
      dense_layers: The same modules with their tensors; () if the tensors are parameters of the model.
      normalize: Whether the result is scaled to length 1.
      truncate_dim: The number of leading dimensions of the result to keep; 0 for all.
      refusal: The error if the modules are damaged or not supported, else None. If set, only `max_length` is valid.
    """

    max_length: int = 0
    lowercase: bool = False
    prompt: str = ''
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    include_prompt: bool = True
    layers: tuple[int, ...] = (-1,)
    weights: tuple[float, ...] = ()
    pool: str = 'mean'
    dense: tuple[DenseConfig, ...] = ()
    dense_layers: tuple[Dense, ...] = ()
    normalize: bool = False
    truncate_dim: int = 0
    refusal: UserError | None = None

    def describe(self) -> str:
        """Returns a description of the steps for a log line."""
        parts = [f'up to {self.max_length:,} tokens'] if self.max_length else []
        if self.refusal:
            return ', '.join([*parts, f'with unsupported modules ({self.refusal.found})'])
        parts += [f'the prompt {format_value(self.prompt)}'] if self.prompt else []
        parts += [f'the layers {", ".join(map(str, self.layers))}'] if len(self.layers) > 1 else []
        parts += [f'pool={self.pool!r}', *(f'Dense to {layer.width:,}' for layer in self.dense)]
        parts += ['length 1'] if self.normalize else []
        return ', '.join(parts + ([f'the first {self.truncate_dim:,} dimensions'] if self.truncate_dim else []))


def read_sentence_modules(directory: epath.PathLike) -> SentenceModules | None:
    """Reads the modules of a directory. Returns None if it has no modules.json, or is a CrossEncoder or ColBERT.

    Raises a UserError if config_sentence_transformers.json is damaged, and stores other errors as `refusal`.
    """
    folder = epath.Path(directory)
    others = ('CrossEncoder', 'MultiVectorEncoder', 'ColBERT')  # cross_encoder.py and multi_vector.py read them
    if not (folder / MODULES).exists() or read_settings(folder / SETTINGS).get('model_type') in others:
        return None
    max_length = 0
    try:
        encoder = read_settings(_encoder_file(folder))
        max_length = read_max_length(folder)
        return SentenceModules(max_length, encoder.get('do_lower_case') is True, **_read_pooling(folder, encoder))
    except UserError as error:
        return SentenceModules(max_length, refusal=error)


def module_files(modules: SentenceModules, width: int, num_layers: int) -> dict[str, bytes]:
    """Returns the files that sentence-transformers needs beside a model's files for transformers: {path: content}.

    The files have the form of versions before 6, which all versions read. If several layers of the encoder are pooled,
    they must be the last layers, with equal weights. The tensors of Dense modules are not written.
    """
    pooling = {'word_embedding_dimension': width, **{flag: mode == modules.pool for flag, mode in _FLAGS.items()}}
    count, parts = len(modules.layers), [('', 'Transformer', {})]  # (folder, kind, settings)
    if count > 1:
        first = num_layers + 1 - count  # an index of hidden states; 0 is the embeddings
        sizes = {'word_embedding_dimension': width, 'layer_start': first, 'num_hidden_layers': num_layers}
        parts.append((f'1_{_LAYERS}', _LAYERS, sizes))
    parts.append((f'{len(parts)}_Pooling', 'Pooling', pooling))
    for folder, dense in zip(DENSE_FOLDERS, modules.dense, strict=False):
        parts += [(f'{len(parts)}_Normalize', 'Normalize', {})] if dense.normalize_input else []
        parts.append((folder, 'Dense', dense_settings(dense, width)))
        width = dense.width
    parts += [(f'{len(parts)}_Normalize', 'Normalize', {})] if modules.normalize else []
    contents = {
        ENCODER: {'max_seq_length': modules.max_length, 'do_lower_case': modules.lowercase},
        SETTINGS: {
            'prompts': dict(modules.prompts),
            'default_prompt_name': None,
            'similarity_fn_name': 'cosine',
            **({'truncate_dim': modules.truncate_dim} if modules.truncate_dim else {}),
        },
        **{f'{path}/config.json': settings for path, _, settings in parts if path},
    }
    files = json_files([(path, f'models.{kind}') for path, kind, _ in parts], contents)
    if count > 1:
        files[f'1_{_LAYERS}/model.safetensors'] = save({_WEIGHTS: np.ones(count, np.float32)})
    return files


def json_files(modules: Sequence[tuple[str, str]], contents: Mapping[str, Any]) -> dict[str, bytes]:
    """Encodes `contents`, {path: value}, as JSON files. Adds modules.json, which lists `modules`, (folder, kind)."""
    listed = [
        {'idx': i, 'name': str(i), 'path': folder, 'type': f'sentence_transformers.{kind}'}
        for i, (folder, kind) in enumerate(modules)
    ]
    values = {MODULES: listed, **contents}
    return {name: (json.dumps(value, indent=2) + '\n').encode() for name, value in values.items()}


def read_settings(path: epath.Path) -> dict[str, Any]:
    """Reads a JSON object; returns {} if the file does not exist."""
    return read_json_object(path, _AGAIN) if path.exists() else {}


def _encoder_file(folder: epath.Path) -> epath.Path:
    """Returns the path of the first file of _ENCODERS that exists, or of ENCODER if none exists."""
    return next((path for name in _ENCODERS if (path := folder / name).exists()), folder / ENCODER)


def read_max_length(folder: epath.Path) -> int:
    """Returns the maximum number of tokens of a text; 0 if the files of a folder do not define it.

    Raises a UserError if the number is invalid.
    """
    file = _encoder_file(folder)
    where, length = f'{file}: max_seq_length', read_settings(file).get('max_seq_length')
    if length is None:
        file = folder / 'tokenizer_config.json'
        where, length = f'{file}: model_max_length', read_settings(file).get('model_max_length') or 0
    if not isinstance(length, int | float) or not (length == 0 or length >= 4):
        raise UserError(where, format_value(length), 'a number of tokens, at least 4', _AGAIN)
    return int(min(length, 2**31 - 1))


def _read_pooling(folder: epath.Path, encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of SentenceModules from `prompt` to `truncate_dim`."""
    modules = read_modules(folder)
    where, layers = str(folder / MODULES), {}
    if [module.kind for module in modules[1:2]] == [_LAYERS]:
        layers = _pooled_layers(folder, modules.pop(1).folder)
    kinds = [module.kind for module in modules]
    if kinds[:2] != ['Transformer', 'Pooling']:
        raise UserError(where, f'the modules {", ".join(kinds)}', 'Transformer, then Pooling', _NAME_POOL)
    pooling = modules[1].settings
    task, output = encoder.get('transformer_task'), encoder.get('module_output_name')
    if task not in (None, 'feature-extraction') or output not in (None, 'token_embeddings'):
        found = f'transformer_task {task} and module_output_name {output}'
        raise UserError(where, found, 'feature-extraction and token_embeddings', _NAME_POOL)
    dense, is_unit = [], False  # is_unit: whether the vectors have length 1
    for kind, path, settings in modules[2:]:
        if kind not in ('Dense', 'Normalize', 'Dropout'):
            module = f'{where}: the module in {path.name}'
            raise UserError(module, kind, 'Dense, Normalize or Dropout', _NAME_POOL)
        for name in ('module_input_name', 'module_output_name'):
            if (value := settings.get(name)) not in (None, 'sentence_embedding'):
                found = f'{name} {format_value(value)}'
                raise UserError(str(path / 'config.json'), found, 'sentence_embedding', _NAME_POOL)
        if kind == 'Dense':
            layer = read_dense(path, settings, _NAME_POOL)
            dense.append(dataclasses.replace(layer, config=layer.config._replace(normalize_input=is_unit)))
        if kind != 'Dropout':
            is_unit = kind == 'Normalize'
    if len(dense) > len(DENSE_FOLDERS):
        raise UserError(where, f'{len(dense)} Dense modules', f'at most {len(DENSE_FOLDERS)}', _NAME_POOL)
    given = read_settings(folder / SETTINGS)
    prompts, name = given.get('prompts'), given.get('default_prompt_name')
    prompts = {key: x for key, x in prompts.items() if isinstance(x, str)} if isinstance(prompts, dict) else {}
    prompt = prompts.get(name, '') if isinstance(name, str) else ''
    truncate_dim = given.get('truncate_dim') or 0
    if type(truncate_dim) is not int or truncate_dim < 0:
        found = f'truncate_dim {format_value(truncate_dim)}'
        raise UserError(str(folder / SETTINGS), found, 'a number of dimensions', _NAME_POOL)
    return {
        'prompt': prompt,
        'prompts': prompts,
        'include_prompt': pooling.get('include_prompt') is not False,
        **layers,
        'pool': _pool(where, pooling),
        'dense': tuple(layer.config for layer in dense),
        'dense_layers': tuple(dense),
        'normalize': is_unit,
        'truncate_dim': truncate_dim,
    }


class Module(NamedTuple):
    """A module of modules.json, with its kind such as 'Dense' and the content of its config.json."""

    kind: str
    folder: epath.Path
    settings: dict[str, Any]


def read_modules(folder: epath.Path) -> list[Module]:
    """Reads the modules of a folder. Raises a UserError if one has no type or no valid path, or if a file is damaged.

    The settings of the first module, which has no folder of its own, are empty.
    """
    modules = []
    for number, module in enumerate(read_json_list(folder / MODULES, _AGAIN)):
        facts = module if isinstance(module, dict) else {}
        kind, path = facts.get('type'), facts.get('path')
        is_valid = isinstance(path, str) and re.fullmatch(r'[\w-]+' if number else '', path)
        if not isinstance(kind, str) or not is_valid:
            expected = 'a type, and the name of a folder' if number else "a type, and the path ''"
            raise UserError(f'{folder / MODULES}: module {number}', format_value(module), expected, _NAME_POOL)
        if kind.startswith(_PACKAGES):  # the type of another package keeps its full name, which callers refuse
            kind = kind.rpartition('.')[2]
        file = folder / path / 'config.json'
        if kind in ('Pooling', 'Dense', _LAYERS) and not file.exists():
            raise UserError(str(file), 'nothing', f'the settings of module {number}', _AGAIN)
        modules.append(Module(kind, folder / path, read_settings(file) if path else {}))
    return modules


def _pooled_layers(folder: epath.Path, module: epath.Path) -> dict[str, tuple]:
    """Returns the fields `layers` and `weights` of SentenceModules."""
    if read_settings(folder / 'config.json').get('output_hidden_states') is not True:
        return {}  # sentence-transformers pools the last layer, because the encoder returns no other
    tensors = read_tensors(module)
    weights = tensors[_WEIGHTS].values.astype(np.float64) if _WEIGHTS in tensors else np.zeros(0)
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights / weights.sum()).all():
        found = f'the tensors {format_value(sorted(tensors))}'
        raise UserError(str(module), found, 'a weight for each of the last layers', _AGAIN)
    layers = tuple(range(-len(weights), 0))
    return {'layers': layers, 'weights': () if np.ptp(weights) == 0 else tuple((weights / weights.sum()).tolist())}


def _pool(where: str, settings: Mapping[str, Any]) -> str:
    modes = settings.get('pooling_mode') or [mode for flag, mode in _FLAGS.items() if settings.get(flag)] or 'mean'
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in SENTENCE_POOL:
        raise UserError(where, f'the pooling {format_value(modes)}', f'one of {", ".join(SENTENCE_POOL)}', _NAME_POOL)
    return modes[0]
