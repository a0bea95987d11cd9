"""The initial values of a pre-training run: the model of config.init or a teacher, and config.embeddings.

The embedding of a word that config.vocab.add or config.tokenizer adds to the vocabulary of config.init starts as the
mean embedding of the pieces into which the old vocabulary splits the word.
"""

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from bertjax.config.pretraining import BUDGET_CHOICES, ROTARY_FIELDS
from bertjax.convert.huggingface.sentence_transformers import read_sentence_modules
from bertjax.convert.load import load_pretraining_model, read_config
from bertjax.convert.trees import stacked_shapes
from bertjax.convert.vocabulary import add_piece_rows
from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes, read_json_or_none
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.vocabulary import load_configured_tokenizer, vocabulary_source
from bertjax.remote.paths import user_path
from bertjax.text.added_words import find_previous_ids, load_model_tokenizer
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.lock import has_checkpoints, has_run
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import FOLDER

# Fields of the architecture that depend on the run (its tokenizer, pairs and precision), not on config.init.
_RUN_FIELDS = ('vocab_size', 'nsp', 'param_dtype')
# Fields of the architecture that a student does not take from its teacher.
_SIZE_FIELDS = ('num_layers', 'width', 'num_heads', 'mlp_dim', 'max_positions')
# Fields of the architecture that have no effect on weights from config.init.
_INIT_FIELDS = ('init', 'init_stddev')
_MATRIX = 'a matrix of floats in a .npy or .safetensors file'  # the content of config.embeddings
_MATRIX_FIX = 'write it with numpy.save, or as the only tensor of a safetensors file'


def with_architecture(
    settings: PretrainingSettings, folder: pathlib.Path, flag_keys: Collection[str] = ()
) -> PretrainingSettings:
    """Returns the settings with the architecture and dropout of config.init if config.architecture_from is 'init'.

    A dropout has precedence if the command line sets it, or if its value in the recipe is not the default. If the
    architecture has no segment ids (`num_segments` < 2), the run is trained without pairs, unless the command line sets
    config.pairs.mode. A student that is initialized with blocks of its teacher gets the teacher's architecture, but
    keeps its own sizes (except num_segments) and all values that the recipe or the command line sets; see
    `distill.teacher.check_copies`.

    A resumed run takes the architecture from its own config.json. It also keeps the layout of its parameter tree and
    the fields that config.budget has chosen, unless the command line sets them. `flag_keys` are the config keys that
    the command line sets.

    Raises:
      UserError: config.init or the teacher has no model. Or the architecture of config.init is used, and the recipe or
        the command line sets a field of config.model to another value. The command line may change ROTARY_FIELDS.
    """
    names = [*fields_of(FieldKind.LAYOUT), *(BUDGET_CHOICES if settings.architecture_from == 'budget' else ())]
    names = [name for name in names if f'model.{name}' not in flag_keys]
    settings = _with_fields(settings, _recorded_fields(folder, names) or {})
    if settings.architecture_from != 'init':
        if not settings.copied_teacher:
            return settings
        defaults = _architecture_without((*_RUN_FIELDS, *_SIZE_FIELDS, *_INIT_FIELDS))
        teacher_fields, _ = _read_fields(folder, defaults, settings.copied_teacher, 'config.distill.teacher')
        return _with_unset_fields(settings, teacher_fields, defaults, flag_keys)
    architecture, training = _architecture_without(_RUN_FIELDS), fields_of(FieldKind.TRAINING)
    fields, source = _read_fields(folder, architecture | training, settings.init, 'config.init')
    source_fields, dropout = ({name: fields[name] for name in names} for names in (architecture, training))
    if source_fields['position'] == 'rope':
        changed = {name for name in ROTARY_FIELDS if f'model.{name}' in flag_keys}
        source_fields = {name: value for name, value in source_fields.items() if name not in changed}
    for name, value in source_fields.items():
        configured = getattr(settings.model, name)
        if configured != value and (configured != architecture[name] or f'model.{name}' in flag_keys):
            fix = 'leave it out'
            raise UserError(f'config.model.{name}', str(configured), f'{value}, as in {source}', fix)
    # A model with a single segment embedding, such as RoBERTa, ignores the segment ids.
    if source_fields['num_segments'] < 2 and settings.pair_options.paired and 'pairs.mode' not in flag_keys:
        print(f'config.pairs.mode is set to doc_sentences, because the model in {source} has no segment ids')
        settings = dataclasses.replace(settings, pairs=dataclasses.replace(settings.pairs, mode='doc_sentences'))
    return _with_unset_fields(_with_fields(settings, source_fields), dropout, training, flag_keys)


def _architecture_without(names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields_of(FieldKind.ARCHITECTURE).items() if name not in names}


def _read_fields(folder: pathlib.Path, names: Collection[str], model: str, where: str) -> tuple[dict[str, Any], str]:
    """Returns config fields and the path of their source: the config.json of a resumed run, else `model`."""
    recorded = _recorded_fields(folder, names)
    if recorded is not None:
        return recorded, str(folder / 'config.json')
    directory = huggingface_directory(model, where)
    config = read_config(directory)
    return {name: getattr(config, name) for name in names}, directory


def _with_fields(settings: PretrainingSettings, fields: dict[str, Any]) -> PretrainingSettings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, **fields))


def _with_unset_fields(
    settings: PretrainingSettings, fields: dict[str, Any], defaults: dict[str, Any], flag_keys: Collection[str]
) -> PretrainingSettings:
    """Sets the fields that have their default values and that the command line does not set."""
    unset = [n for n in fields if getattr(settings.model, n) == defaults[n] and f'model.{n}' not in flag_keys]
    return _with_fields(settings, {name: fields[name] for name in unset})


def _recorded_fields(folder: pathlib.Path, names: Collection[str]) -> dict[str, Any] | None:
    if not has_checkpoints(folder):
        return None
    return read_json_or_none(folder / 'config.json', lambda facts: {name: facts['model'][name] for name in names})


def _differences(run: BertConfig, source: BertConfig) -> dict[str, tuple[Any, Any]]:
    """Returns {name: (value in run, value in source)} for the fields that differ and that the weights depend on."""
    ignored = {*_RUN_FIELDS, *_INIT_FIELDS, *(('max_positions',) if run.position == 'rope' else ())}
    if not run.nsp and 'transform' not in (run.pooler, source.pooler):
        ignored.add('pooler')  # neither model uses it
    pairs = {name: (getattr(run, name), getattr(source, name)) for name in _architecture_without(ignored)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def load_existing_tokenizer(settings: PretrainingSettings, folder: pathlib.Path) -> Tokenizer | None:
    """Returns the tokenizer that the run will start with; None if it is not known yet.

    A started run has the tokenizer of its workdir. Before, config.tokenizer and config.init have priority over it,
    except with config.vocab.add, whose words only the workdir's tokenizer can have. The teacher comes last.

    Raises:
      UserError: The tokenizer cannot be read.
    """
    replaced = (settings.tokenizer or settings.init) and not settings.vocab.add and not has_run(folder)
    if (folder / FOLDER).exists() and not replaced:
        return load_tokenizer(folder / FOLDER)
    path = vocabulary_source(settings)
    return load_configured_tokenizer(settings, path) if path else None


def with_existing_vocabulary(settings: PretrainingSettings, folder: pathlib.Path) -> PretrainingSettings:
    """Returns the settings. If the vocabulary already exists, config.vocab.size is set to the number of embeddings.

    Raises:
      UserError: The tokenizer cannot be read, or does not match config.init.
    """
    tokenizer = load_existing_tokenizer(settings, folder)
    if tokenizer is None:
        return settings
    rows = embedding_rows(settings, folder, tokenizer)
    return dataclasses.replace(settings, vocab=dataclasses.replace(settings.vocab, size=rows))


def embedding_rows(settings: PretrainingSettings, folder: pathlib.Path, tokenizer: Tokenizer) -> int:
    """Returns V, the number of token embeddings: at least the number of pieces in `tokenizer`.

    `tokenizer` includes the words of config.vocab.add. A resumed run takes V from its config.json. A new run has at
    least as many embeddings as config.init or the teacher that it copies, because some published models have more rows
    than pieces. All rows are trained and exported.

    Raises:
      UserError: The vocabulary does not match config.init or the teacher.
    """
    recorded = _recorded_fields(folder, ['vocab_size'])
    if recorded:
        return max(tokenizer.vocab_size, recorded['vocab_size'])
    if not (settings.copied_teacher or settings.init):
        return tokenizer.vocab_size
    where = 'config.distill.teacher' if settings.copied_teacher else 'config.init'
    directory = huggingface_directory(settings.copied_teacher or settings.init, where)
    rows = read_config(directory).vocab_size
    pieces = _tokenizer_of_init(settings, directory, tokenizer, rows).vocab_size
    if pieces > rows:
        fix = f'resize the model with resize_token_embeddings({pieces}) of transformers'
        if where == 'config.init':  # the only way for a folder of google-research/bert
            fix += ', or restore its own vocabulary and give the longer one as config.tokenizer'
        raise UserError(where, f'{pieces} pieces', f'{rows}, as in {directory}', fix)
    return max(tokenizer.vocab_size, rows)


def _tokenizer_of_init(settings: PretrainingSettings, directory: str, tokenizer: Tokenizer, rows: int) -> Tokenizer:
    """Returns the tokenizer of the model in `directory`, which has `rows` token embeddings.

    If config.tokenizer is not set, this is the tokenizer of the run without the words that config.vocab.add adds.
    """
    base = load_tokenizer(settings.tokenizer or directory) if settings.vocab.add else tokenizer
    # The tokenizer of a teacher is checked by its fingerprint.
    return load_model_tokenizer(directory, base, rows) if settings.tokenizer and settings.init else base


def initial_params(
    settings: PretrainingSettings, model_config: BertConfig, tokenizer: Tokenizer
) -> tuple[dict[str, Any], str]:
    """Returns the weights of config.init as host arrays in the tree layout of the model, and a message to print.

    Raises:
      UserError: The sizes or the parameter shapes of the checkpoint and of `model_config` differ.
    """
    directory = huggingface_directory(settings.init)
    shared = {'scan_layers': model_config.scan_layers, 'nsp': model_config.nsp}
    imported = load_pretraining_model(directory, seed=settings.run_seeds.init, **shared)
    old_tokenizer = _tokenizer_of_init(settings, directory, tokenizer, imported.config.vocab_size)
    params, lines = imported.params, [imported.describe(directory)]
    differences = _differences(model_config, imported.config)
    run_config = dataclasses.replace(model_config, vocab_size=imported.config.vocab_size)
    shapes, run_shapes = (stacked_shapes(BertForPreTraining(config)) for config in (imported.config, run_config))
    if shapes != run_shapes:
        (name, (run_value, source_value)), *_ = differences.items()
        fix = f'set --config.model.{name}={source_value}, or --config.architecture_from=init'
        raise UserError(f'config.model.{name}', str(run_value), f'{source_value}, as in {directory}', fix)
    for name, (run_value, source_value) in differences.items():
        lines.append(
            f'config.model.{name} is {run_value}, but {source_value} in the checkpoint: '
            f'--config.model.{name}={source_value} keeps the value of the checkpoint'
        )
    if modules := read_sentence_modules(directory):
        pool = '' if modules.refusal else f'; set config.task.pool={modules.pool} to train embeddings later'
        lines.append(f'the export will not have the modules of sentence-transformers ({modules.describe()}){pool}')
    if new_pieces := find_previous_ids(old_tokenizer, tokenizer):
        params = add_piece_rows(params, model_config, new_pieces)
        lines.append(f'{len(new_pieces):,} words are initialized with the mean embedding of their pieces')
    return params, '\n'.join(lines)


def read_embeddings(path: str, tokenizer: Tokenizer, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the embeddings in a file.

    The file has one row for each piece of the vocabulary, or for each piece that is not special, in the order of ids.

    Args:
      path: A .npy file, or a .safetensors file with one tensor.
      width: The width of the model, D.

    Returns:
      The ids of the pieces in the file, int [N], and their embeddings, float32 [N, D].

    Raises:
      UserError: The file does not exist or has no matrix, or the matrix has a wrong shape or non-finite values.
    """
    matrix = read_matrix(path)
    pieces = np.arange(tokenizer.vocab_size)
    ordinary = np.setdiff1d(pieces, tokenizer.special_ids)
    rows = {len(pieces): pieces, len(ordinary): ordinary}.get(len(matrix) if matrix.ndim == 2 else -1)
    if rows is None or matrix.shape[1] != width:
        expected = f'({len(pieces)}, {width}) for all pieces and config.model.width'
        expected += f', or ({len(ordinary)}, {width}) without the special pieces'
        raise UserError(path, f'a matrix of shape {matrix.shape}', expected, 'write one row for each piece, in order')
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise UserError(path, f'nan or inf in row {row}', 'finite numbers', 'correct the matrix')
    return rows, matrix.astype(np.float32)


def read_matrix(path: str) -> np.ndarray:
    """Reads an array of floats from a .npy file, or from a .safetensors file with one tensor.

    Raises:
      UserError: The file does not exist or cannot be read, or has no such array.
    """
    file = user_path(path, 'config.embeddings')
    if not file.is_file():
        raise UserError('config.embeddings', f'no such file {path!r}', _MATRIX, _MATRIX_FIX)
    try:
        if file.suffix == '.safetensors':
            with safetensors.safe_open(file, 'numpy') as tensors:
                names = list(tensors.keys())
                if len(names) != 1:
                    raise UserError(str(file), f'{len(names)} tensors', 'one', _MATRIX_FIX)
                matrix = tensors.get_tensor(names[0])
        else:
            matrix = np.load(io.BytesIO(read_bytes(file, _MATRIX, _MATRIX_FIX)), allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise UserError(str(file), f'no matrix ({error})', _MATRIX, _MATRIX_FIX) from None
    if not isinstance(matrix, np.ndarray) or not jnp.issubdtype(matrix.dtype, jnp.floating):  # also bfloat16
        raise UserError(
            str(file), f'numbers of the type {getattr(matrix, "dtype", type(matrix))}', _MATRIX, _MATRIX_FIX
        )
    return matrix
