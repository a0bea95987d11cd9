"""Reads and writes the files of a ColBERT, which sentence-transformers loads as a MultiVectorEncoder.

The modules are Transformer, Dense (the projection of token vectors), MultiVectorMask and Normalize. Two other forms are
read, but not written. PyLate 3 lists only Transformer and Dense in modules.json, and has the other settings in
config_sentence_transformers.json. The original ColBERT has no modules.json: the projection is a tensor of the
checkpoint, and artifact.metadata contains the settings. Sources: sentence-transformers 6
(multi_vector_encoder/model.py and modules/multi_vector_mask.py, base/modules/transformer.py) and
stanford-futuredata/ColBERT (infra/config/settings.py, modeling/hf_colbert.py).
"""

import dataclasses
import string
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.config.ranges import format_value
from bertjax.convert.huggingface.dense import DenseConfig, dense_settings, read_dense
from bertjax.convert.huggingface.sentence_transformers import (
    ENCODER,
    MODULES,
    SETTINGS,
    json_files,
    read_max_length,
    read_modules,
    read_settings,
)
from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.source import StoredTensor
from bertjax.errors import UserError

PUNCTUATION = tuple(string.punctuation)
MULTI_VECTOR, _PYLATE = 'MultiVectorEncoder', 'ColBERT'  # values of model_type in SETTINGS
METADATA, _STANFORD = 'artifact.metadata', 'HF_ColBERT'  # the original ColBERT's settings file and model class
PROJECTION = '1_Dense/linear.weight'  # the tensor of the projection, see `Head.projection`
STANFORD_PROJECTION = 'linear.weight'  # the projection in a checkpoint of the original ColBERT
_MODULES = (
    ('', 'base.modules.Transformer'),
    ('1_Dense', 'base.modules.Dense'),
    ('2_MultiVectorMask', 'multi_vector_encoder.modules.MultiVectorMask'),
    ('3_Normalize', 'base.modules.Normalize'),
)
_TOKENS = {'module_input_name': 'token_embeddings', 'module_output_name': 'token_embeddings'}
_SIDES = ('query', 'document')
_MARKERS = {'query': '[unused0]', 'doc': '[unused1]'}
_FIX = 'give another model, or copy the folder without modules.json to use only its encoder'


@dataclasses.dataclass(frozen=True)
class MultiVector:
    """The settings of a model that computes a vector for each token.

    Attributes:
      query_prompt, document_prompt: The prefixes of queries and of documents. If the first word of a prefix is a
        piece of the vocabulary, such as '[unused0]', the word becomes one token.
      query_len, document_len: The numbers of tokens to which queries and documents are truncated.
      augment: Whether [MASK] tokens fill queries up to `query_len`. Scores include the vectors of these tokens.
      attend: Whether the tokens of a query attend to these [MASK] tokens.
      skiplist: The pieces that scores ignore in documents.
    """

    query_prompt: str
    document_prompt: str
    query_len: int
    document_len: int
    augment: bool
    attend: bool
    skiplist: tuple[str, ...]


def is_multi_vector(directory: epath.PathLike) -> bool:
    """Returns whether a directory is a MultiVectorEncoder, or a model of PyLate or of the original ColBERT."""
    folder = epath.Path(directory)
    if (folder / MODULES).exists():
        return read_settings(folder / SETTINGS).get('model_type') in (MULTI_VECTOR, _PYLATE)
    return read_settings(folder / 'config.json').get('architectures') == [_STANFORD]


def read_multi_vector(directory: epath.PathLike, longest: int) -> MultiVector | None:
    """Reads the settings of a directory. Returns None if `is_multi_vector` is False for the directory.

    `longest`, the model's number of positions, limits the lengths of texts. Raises a UserError if the model has modules
    or settings that bertjax lacks, or if a file is damaged.
    """
    folder = epath.Path(directory)
    if not is_multi_vector(folder):
        return None
    if not (folder / MODULES).exists():
        return _read_metadata(folder, longest)
    modules = read_modules(folder)
    given, encoder = read_settings(folder / SETTINGS), read_settings(folder / ENCODER)
    where, kinds = str(folder / MODULES), [module.kind for module in modules]
    expected = [kind.rpartition('.')[2] for _, kind in _MODULES]
    if kinds != expected and not (given['model_type'] == _PYLATE and kinds == expected[:2]):
        raise UserError(where, f'the modules {", ".join(kinds)}', ', '.join(expected), _FIX)
    if modules[1].folder.name != '1_Dense':
        raise UserError(where, f'the projection in {modules[1].folder.name}', 'the folder 1_Dense', _FIX)
    if len(modules) > 2:
        mask_file, mask = f'{modules[2].folder.name}/config.json', modules[2].settings
    else:
        mask_file, mask = SETTINGS, {'skiplist_words': given.get('skiplist_words', list(PUNCTUATION))}
    older = None
    if given['model_type'] == _PYLATE and 'query_expansion' in given:
        older = given['query_expansion']
    elif given['model_type'] == _PYLATE and given.get('do_query_expansion') is not False:
        attend = given.get('attend_to_expansion_tokens', given.get('attend_to_mask_tokens'))
        older = {'strategy': 'fixed', 'attend': attend}
        query_len = given.get('query_length') or 32  # the default of PyLate and ColBERT
        older['length'] = _parse_length(query_len, 'query_length', str(folder / SETTINGS), longest)
    expansion = encoder.get('query_expansion', older)
    is_plain = isinstance(expansion, dict) and expansion.get('strategy') == 'fixed' and not expansion.get('token')
    prompts, prefixes = given.get('prompts') or {}, {side: given.get(f'{side}_prefix') or '' for side in _SIDES}
    words = mask.get('skiplist_words') or []
    allowed = {
        'query_expansion': (ENCODER, expansion, expansion is None or is_plain),
        'prompts': (SETTINGS, prompts, isinstance(prompts, dict) and _are_strings(prompts.values())),
        **{f'{side}_prefix': (SETTINGS, prefix, isinstance(prefix, str)) for side, prefix in prefixes.items()},
        'skiplist_words': (mask_file, words, isinstance(words, list) and _are_strings(words)),
        'skiplist_tasks': (mask_file, tasks := mask.get('skiplist_tasks', ['document']), tasks == ['document']),
        'keep_only_token_ids': (mask_file, ids := mask.get('keep_only_token_ids'), not ids),
        'similarity_fn_name': (SETTINGS, name := given.get('similarity_fn_name'), name in (None, 'maxsim', 'MaxSim')),
        'default_prompt_name': (SETTINGS, name := given.get('default_prompt_name'), not name),
    }
    for name, (file, value, is_allowed) in allowed.items():
        if not is_allowed:
            raise UserError(str(folder / file), f'{name} {format_value(value)}', "ColBERT's settings", _FIX)
    limit = read_max_length(folder) or longest

    def length(name: str) -> int:
        value, file = encoder.get(name) or given.get(name) or limit, ENCODER if encoder.get(name) else SETTINGS
        return _parse_length(value, name, str(folder / file), longest)

    if expansion:
        name = 'the length of query_expansion'
        query_len = _parse_length(expansion.get('length'), name, str(folder / ENCODER), longest)
    else:
        query_len = length('query_length')
    return MultiVector(
        *(prefixes[side] + (prompts.get(side) or '').removeprefix(prefixes[side]) for side in _SIDES),
        query_len,
        length('document_length'),
        bool(expansion),
        bool(expansion and expansion.get('attend')),
        tuple(words),
    )


def _read_metadata(folder: epath.Path, longest: int) -> MultiVector:
    """Reads the settings of an original ColBERT from artifact.metadata. Missing keys get the defaults of ColBERT."""
    given, where = read_settings(folder / METADATA), str(folder / METADATA)
    for name, expected in (('similarity', 'cosine'), ('interaction', 'colbert')):
        if given.get(name) not in (None, expected):
            raise UserError(where, f'{name} {format_value(given[name])}', f"'{expected}'", 'give another model')

    def length(name: str, default: int) -> int:
        return _parse_length(default if given.get(name) is None else given[name], name, where, longest)

    prompts = [f'{given.get(f"{side}_token_id") or marker} ' for side, marker in _MARKERS.items()]
    skiplist = PUNCTUATION if given.get('mask_punctuation', True) else ()
    attend = bool(given.get('attend_to_mask_tokens'))
    return MultiVector(*prompts, length('query_maxlen', 32), length('doc_maxlen', 220), True, attend, skiplist)


def _are_strings(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str | None) for value in values)


def _parse_length(value: Any, name: str, where: str, longest: int) -> int:
    if type(value) is not int or value < 4:
        raise UserError(where, f'{name} {format_value(value)}', 'a number of tokens, at least 4', 'correct the number')
    return min(value, longest)


def read_projection(directory: epath.PathLike, tensors: Mapping[str, StoredTensor] | None = None) -> np.ndarray:
    """Reads the matrix, float32 [D', D], that projects token vectors from width D to D'.

    `tensors` are the tensors of the checkpoint if they have been read. Raises a UserError if there is no projection, or
    if it has an activation, a nonzero bias or wrong tensors.
    """
    folder = epath.Path(directory)
    if not (folder / MODULES).exists():
        projection = (read_tensors(folder) if tensors is None else tensors).get(STANFORD_PROJECTION)
        if projection is None or projection.values.ndim != 2:
            found, expected = f'no matrix {STANFORD_PROJECTION}', f'the projection of {_STANFORD}'
            raise UserError(str(folder), found, expected, 'give another model')
        return projection.values
    module = next((module for module in read_modules(folder) if module.kind == 'Dense'), None)
    if module is None:
        raise UserError(str(folder / MODULES), 'no Dense module', 'the projection of token vectors', _FIX)
    dense = read_dense(module.folder, module.settings, _FIX)
    if dense.config.activation != 'Identity' or (dense.bias is not None and dense.bias.any()):
        raise UserError(str(module.folder), 'an activation or a bias', 'a linear map', _FIX)
    return np.ascontiguousarray(dense.kernel.T)


def settings_as_options(directory: str, settings: MultiVector) -> dict[str, Any]:
    """Returns `seq_len` and the task options with which the task 'late_interaction' reproduces a saved model.

    Raises a UserError if the skiplist is neither empty nor Python's string.punctuation, if queries are filled to more
    tokens than documents may have, or if `read_projection` fails.
    """
    if settings.augment and settings.query_len > settings.document_len:
        found = f'queries of {settings.query_len} tokens, documents of up to {settings.document_len}'
        raise UserError(directory, found, 'documents that may be as long as queries', 'give another model')
    if settings.skiplist and {*settings.skiplist} != {*PUNCTUATION}:
        expected, fix = "no skiplist, or Python's string.punctuation", 'give another model'
        raise UserError(directory, f'the skiplist {" ".join(settings.skiplist)[:60]}', expected, fix)
    return {
        'seq_len': settings.document_len,
        'query_len': settings.query_len,
        'dim': len(read_projection(directory)),
        'query_prompt': settings.query_prompt,
        'document_prompt': settings.document_prompt,
        'augment': settings.augment,
        'attend': settings.attend,
        'skip_punctuation': bool(settings.skiplist),
    }


def multi_vector_files(settings: MultiVector, width: int, dim: int) -> dict[str, bytes]:
    """Returns the JSON files of a MultiVectorEncoder, {relative path: content}, without those of transformers.

    `width` is the width of the encoder, and `dim` the width of the projected vectors.
    """
    expansion = {'strategy': 'fixed', 'attend': settings.attend, 'token': None, 'length': settings.query_len}
    prompts = {'query': settings.query_prompt, 'document': settings.document_prompt}
    contents = {
        ENCODER: {
            'max_seq_length': max(settings.document_len, settings.query_len),
            'transformer_task': 'feature-extraction',
            'modality_config': {'text': {'method': 'forward', 'method_output_name': 'last_hidden_state'}},
            'module_output_name': 'token_embeddings',
            'query_length': None if settings.augment else settings.query_len,
            'document_length': settings.document_len,
            'query_expansion': expansion if settings.augment else None,
        },
        # Because of `*_prefix`, sentence-transformers reads a prompt's first word as one token if the word is a piece.
        SETTINGS: {
            'model_type': MULTI_VECTOR,
            'prompts': prompts,
            **{f'{side}_prefix': prompt for side, prompt in prompts.items()},
            'similarity_fn_name': 'maxsim',
        },
        '1_Dense/config.json': dense_settings(DenseConfig(dim, 'Identity', use_bias=False), width) | _TOKENS,
        '2_MultiVectorMask/config.json': {'skiplist_words': list(settings.skiplist), 'skiplist_tasks': ['document']},
        '3_Normalize/config.json': _TOKENS,
    }
    return json_files(_MODULES, contents)
