"""Reads a Hugging Face directory as a `CheckpointSource`."""

import functools
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from bertjax.convert.huggingface.config import from_json
from bertjax.convert.huggingface.dense import to_tensors
from bertjax.convert.huggingface.families import BERT, POSITIONS, SEGMENTS, Family, find_family, to_bert_class
from bertjax.convert.huggingface.multi_vector import PROJECTION, STANFORD_PROJECTION, is_multi_vector, read_projection
from bertjax.convert.huggingface.sentence_transformers import FILES, MODULES, read_sentence_modules
from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.source import CheckpointSource, StoredTensor
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.text.special import processor_steps

CONFIG = 'config.json'
# The tokenizer files, the model card and the files of sentence-transformers beside them.
FURTHER_FILES = ('tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json')
FURTHER_FILES += ('vocab.txt', 'vocab.json', 'merges.txt', 'tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model')
FURTHER_FILES += ('README.md', *FILES)
# Tokenizer classes that return segment ids, and classes that do not. The names lack the suffix `Fast`.
_WITH_SEGMENTS = ('BertTokenizer', 'ElectraTokenizer')
_WITHOUT_SEGMENTS = ('DistilBertTokenizer', 'RobertaTokenizer', 'XLMRobertaTokenizer', 'CamembertTokenizer')


def recognizes(directory: epath.Path) -> bool:
    """Returns whether a directory has config.json."""
    return (directory / CONFIG).exists()


def read_further_files(directory: epath.Path) -> dict[str, bytes]:
    """Reads the tokenizer files, the model card, and all files of the modules, as {relative path: content}."""
    paths = [directory / name for name in FURTHER_FILES]
    modules = read_json_or_none(directory / MODULES, lambda rows: [module['path'] for module in rows]) or []
    for name in modules:
        if isinstance(name, str) and re.fullmatch(r'\w[\w.-]*', name) and (directory / name).is_dir():
            paths += sorted((directory / name).iterdir())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths if path.is_file()}


def select_module_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files of the modules, from the result of `read_further_files`."""
    return {name: data for name, data in files.items() if '/' in name or name in FILES}


def _gives_segments(directory: epath.Path, family: Family) -> bool:
    """Returns whether the tokenizer in a directory puts the second text of a pair into segment 1."""
    path = directory / 'tokenizer_config.json'
    config = read_json_object(path, 'use the original file') if path.exists() else {}
    inputs, kind = config.get('model_input_names'), str(config.get('tokenizer_class')).removesuffix('Fast')
    by_class = kind in _WITH_SEGMENTS if family.one_segment else kind not in _WITHOUT_SEGMENTS
    listed = 'token_type_ids' in inputs if inputs else by_class
    if not listed or kind in (*_WITH_SEGMENTS, *_WITHOUT_SEGMENTS):  # these classes make their own template
        return listed
    # A missing or damaged file counts as True. The reader of the tokenizer reports a damaged file.
    return read_json_or_none(directory / 'tokenizer.json', gives_segments) is not False


def gives_segments(settings: Mapping[str, Any]) -> bool:
    """Returns whether a tokenizer with the settings of a tokenizer.json puts the second text into segment 1."""
    for step in processor_steps(settings['post_processor']):
        if step['type'] == 'RobertaProcessing':
            return False
        if step['type'] == 'TemplateProcessing':
            return any(piece['Sequence']['type_id'] for piece in step['pair'] if 'Sequence' in piece)
    return True


def read(directory: epath.Path) -> CheckpointSource:
    """Reads the description of a model; see convert/load.py. The names of tensors and classes become those of BERT."""
    where = str(directory / CONFIG)
    values = read_json_object(directory / CONFIG, 'copy the directory again')
    family = find_family(values.get('model_type', 'bert'))
    fields = from_json(values, where, family)
    classes = values.get('architectures') or []
    architecture = str(classes[0]) if classes else ''
    rows = fields.get('num_segments', 2)
    cuts_segments = type(rows) is int and rows > 1 and (family.one_segment or family is BERT)
    cuts_segments = cuts_segments and not _gives_segments(directory, family)
    fields |= {'num_segments': 1} if cuts_segments else {}

    def tensors() -> dict[str, StoredTensor]:
        to_bert_names = functools.partial(family.to_bert_names, architecture=architecture)
        stored = read_tensors(directory, to_bert_names, tied=fields.get('tie_embeddings', True))
        if is_multi_vector(directory):
            arrays = {PROJECTION: read_projection(directory, stored)}
            stored.pop(STANFORD_PROJECTION, None)
        else:
            modules = read_sentence_modules(directory)
            arrays = to_tensors(modules.dense_layers) if modules else {}
        stored |= {name: StoredTensor(name, 'float32', x) for name, x in arrays.items()}
        if POSITIONS in stored:
            positions, unused_rows = stored[POSITIONS], family.unused_positions(values, where)
            stored[POSITIONS] = positions._replace(values=positions.values[unused_rows:])
        if cuts_segments and SEGMENTS in stored:
            stored[SEGMENTS] = stored[SEGMENTS]._replace(values=stored[SEGMENTS].values[:1])
        return stored

    unused = 'the embeddings of further segments, which the tokenizer does not give' if cuts_segments else ''
    if family is not BERT:
        values['architectures'] = list(map(to_bert_class, classes))
    return CheckpointSource(str(directory), where, values, fields, tensors, architecture, family.all_keys, unused)
