"""Loads a model from a workdir, a model directory or the hub."""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.config.inference import ModelKeys
from bertjax.config.plain import from_plain, to_plain
from bertjax.convert.hub import hub_name
from bertjax.convert.huggingface import read as huggingface
from bertjax.convert.huggingface.read import CONFIG
from bertjax.convert.huggingface.save import CARD
from bertjax.convert.huggingface.sentence_transformers import MODULES, SentenceModules, read_sentence_modules
from bertjax.convert.load import load_pretraining_model, load_task_model, read_config, read_source
from bertjax.convert.trees import flat_paths, params_digest
from bertjax.errors import UserError, printable
from bertjax.files.paths import is_remote
from bertjax.files.small_files import read_json_object
from bertjax.finetune.task_data import TASK_FILE, make_task_json
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import replicated
from bertjax.remote.paths import user_path
from bertjax.tasks.exported import build_pair_task, build_recorded_task, build_task_for_class
from bertjax.tasks.late_interaction.task import ADOPTED_OPTIONS
from bertjax.tasks.registry import options, options_with_kind
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.files import read_recorded_config, read_recorded_task, task_options
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.resolve_path import PathKind, classify_path, huggingface_directory

_RESTORE = 'restore the file from a copy'
_MAX_LABELS, _MAX_UNUSED = 12, 3  # the maximum numbers of names in a description of a model
_DATA_MESH = {'data': -1, 'fsdp': 1, 'tensor': 1}  # each device has all parameters and a part of the rows


@dataclasses.dataclass(frozen=True)
class Origin:
    """The content of a model's files other than the parameters. `save_model` writes this content again.

    Attributes:
      dtype: The dtype of the parameters in the files: 'float32', 'float16' or 'bfloat16'.
      task_json: The text of task.json; '' if the model was not fine-tuned.
      values, files: The config.json and the additional files of a Hugging Face directory, see `ExportContent`.
      hub: The name of the model on the hub; '' if it is from another place.
    """

    dtype: str = 'float32'
    task_json: str = ''
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    hub: str = ''

    def with_changed_params(self) -> 'Origin':
        """Returns the origin after the parameters have changed: with dtype 'float32' and without the model card."""
        files = {name: content for name, content in self.files.items() if name != CARD}
        return dataclasses.replace(self, dtype='float32', files=files)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready for use.

    Attributes:
      where: The name of the model for messages: the path or name on the hub, with the step for a checkpoint.
      module: BertForPreTraining, or the module of a task.
      params: The parameters of the module, on the mesh.
      task: The task that the model was fine-tuned on; None for a model that was only pre-trained.
      missing: The paths of parameters that the files lack. They were initialized at random and are untrained.
      unused: The names of unused tensors, and descriptions of other unused content of the files.
      summary: Lines about the loaded, newly initialized and unused parameters, and about modules.json if there is one.
      sentence_modules: The modules of a sentence-transformers folder, or of a task that trains embeddings of texts;
        None for other models.
    """

    where: str
    module: nn.Module
    params: Any
    tokenizer: Tokenizer
    task: Task | None
    mesh: Mesh
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    summary: str = ''
    origin: Origin = Origin()
    sentence_modules: SentenceModules | None = None

    @property
    def config(self) -> BertConfig:
        """The configuration of the encoder."""
        return self.module.config

    @property
    def max_length(self) -> int:
        """The default length in tokens to which texts are truncated."""
        limit = self.sentence_modules.max_length if self.sentence_modules else 0
        return min(limit or self.config.max_positions, self.config.max_positions)

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """A hash of the config, the tokenizer and the parameters."""
        parts = (repr(self.config), self.tokenizer.fingerprint, params_digest(self.params))
        return hashlib.sha256(''.join(parts).encode()).digest()

    def __getstate__(self) -> dict[str, Any]:
        """Supports pickle. The parameters are copied to the host, because devices belong to a process."""
        return {**self.__dict__, 'params': jax.device_get(self.params), 'mesh': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        mesh = make_mesh(_DATA_MESH, claim_devices())
        self.__dict__.update({**state, 'params': jax.device_put(state['params'], replicated(mesh)), 'mesh': mesh})

    def require(self, part: str, feature: str) -> None:
        """Raises a UserError if the part that `feature` needs, such as 'mlm', is missing or untrained."""
        is_untrained = any(path.split('/')[0] == part for path in self.missing)
        if is_untrained or part not in self.params:
            names = {'mlm': 'head for masked words', 'nsp': 'head for sentence pairs', 'pooler': 'pooler'}
            name = names.get(part, part)
            found = f'no {name}' + (' (a model that was fine-tuned on a task)' if self.task else '')
            fix = 'give a model with this part, such as a workdir of a pre-training'
            raise UserError(self.where, found, f'a {name}, which {feature} needs', fix)

    def describe(self) -> str:
        """Returns a table of a few lines with the sizes, the heads and the devices of the model."""
        config, tokenizer, task, devices = self.config, self.tokenizer, self.task, self.mesh.devices.flat
        count = sum(x.size for x in jax.tree.leaves(self.params))
        cased = 'uncased' if tokenizer.lowercase else 'cased'
        untrained = sorted({path.split('/')[0] for path in self.missing})
        mlm = 'masked words' + (', each predicted at the position before it' if config.shifted_predictions else '')
        titles = {'mlm': mlm, 'pooler': 'pooler', 'nsp': 'sentence pairs'}
        heads = [name for part, name in titles.items() if part in self.params and part not in untrained]
        rows = {
            'Bert': self.where,
            'encoder': f'{config.num_layers} layers, width {config.width}, {config.num_heads} heads, '
            f'{config.max_positions} positions',
            'parameters': f'{count:,} in {len(flat_paths(self.params)):,} arrays, {config.param_dtype}',
            'tokenizer': f'{tokenizer.family}, {tokenizer.vocab_size:,} pieces, {cased}',
            'heads': task.results if task else ', '.join(heads) or 'none',
        }
        if task and task.labels:
            more = ' …' if len(task.labels) > _MAX_LABELS else ''
            rows['labels'] = ', '.join(task.labels[:_MAX_LABELS]) + more
        if untrained:
            rows['initialized'] = ', '.join(untrained) + ' (untrained)'
        if self.unused:
            more = f' and {len(self.unused) - _MAX_UNUSED:,} more' if len(self.unused) > _MAX_UNUSED else ''
            rows['not used'] = ', '.join(self.unused[:_MAX_UNUSED]) + more
        if self.sentence_modules:
            rows['sentences'] = self.sentence_modules.describe()
        rows['computes in'] = f'{config.dtype} on {len(devices)} x {devices[0].device_kind}'
        return '\n'.join(f'{name:<11}  {printable(text)}' for name, text in rows.items())


def load_requested_model(settings: ModelKeys, workdir: pathlib.Path) -> LoadedModel:
    """Loads the model of config.init, or the model of the workdir if config.init is '', and prints its summary.

    Raises a UserError if there is no model, or if loading fails; see `load_model`.
    """
    kinds = (PathKind.EXPORT, PathKind.CHECKPOINTS, PathKind.NO_MODEL_YET)
    if not settings.init and classify_path(str(workdir)) not in kinds:
        expected = 'a model in config.init or in the workdir'
        fix = 'name a model with --config.init, or give the --workdir of a training'
        raise UserError('config.init', f'nothing, and no model in {workdir}', expected, fix)
    key = 'config.init' if settings.init else '--workdir'
    model = load_model(settings.init or workdir, step=settings.step, dtype=settings.dtype, key=key)
    print(model.summary)
    return model


def load_model(
    path: str | os.PathLike, *, step: int = 0, dtype: str = 'float32', key: str = 'bertjax.load'
) -> LoadedModel:
    """Loads a model.

    Args:
      path, step, dtype: See `bertjax.load`.
      key: The config key or the function to which the path was given, for error messages.

    Raises:
      UserError: The path does not exist, or has no model or no checkpoint of this step.
    """
    name = str(user_path(path, key, checkpoints=bool(step))) if is_remote(path) else os.path.expanduser(os.fspath(path))
    folder = pathlib.Path(name)
    mesh = make_mesh(_DATA_MESH, claim_devices())
    if has_checkpoints(folder) if step else classify_path(name) is PathKind.CHECKPOINTS:
        return _from_checkpoints(folder, step, dtype)
    if step:
        raise UserError(
            'config.step', f'{step}, but {name} has no checkpoints', '0', 'omit the step, or give a workdir'
        )
    return _from_directory(huggingface_directory(name, key), name, mesh, dtype)


def _from_directory(directory: str, where: str, mesh: Mesh, dtype: str) -> LoadedModel:
    config = read_config(directory, dtype=dtype)
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size > config.vocab_size:
        found, expected = f'{tokenizer.vocab_size:,} pieces in the tokenizer', f'at most {config.vocab_size:,}'
        fix = 'copy the tokenizer and the model from the same source'
        raise UserError(where, found, f'{expected}, the rows of the embedding', fix)
    is_huggingface = huggingface.recognizes(epath.Path(directory))
    task, task_text = _read_task(pathlib.Path(directory), config)
    if task is None:
        imported = load_pretraining_model(directory, dtype=dtype)
        # In a Hugging Face folder, a name with a slash is a tensor of a sentence-transformers module. `encode` uses it.
        unused = [name for name in imported.unused if not (is_huggingface and '/' in name)]
        imported = dataclasses.replace(imported, unused=unused)
        module = BertForPreTraining(imported.config)
    else:
        module = task.build_module(config)
        imported = load_task_model(directory, module, task.head, id2label=task.huggingface().get('id2label'))
        if any(path.startswith('head/') for path in imported.missing):
            fix = 'give the directory of a model that was fine-tuned'
            raise UserError(where, f'no weights of the head for {task.name}', 'the head that config.json names', fix)
    params = jax.device_put(imported.params, replicated(mesh))
    missing, unused, summary = tuple(imported.missing), tuple(imported.unused), imported.describe(where, 'using')
    files = huggingface.read_further_files(epath.Path(directory))
    if is_huggingface:
        values = read_json_object(epath.Path(directory, CONFIG), _RESTORE)
    else:  # another format, whose directory may have the modules of a sentence-transformers model
        values, files = {}, huggingface.select_module_files(files)
    hub = hub_name(where)[0] if classify_path(where) is PathKind.HUB else ''
    origin = Origin(imported.dtype, task_text, values, files, hub)
    modules = read_sentence_modules(directory)
    summary += f'\nfrom its {MODULES}: {modules.describe()}' if modules else ''
    task_modules = task.sentence_modules() if task else None
    if modules and task_modules and modules.dense == task_modules.dense:
        modules = dataclasses.replace(modules, dense_layers=())  # the model's parameters include these layers
    modules = modules or task_modules
    return LoadedModel(where, module, params, tokenizer, task, mesh, missing, unused, summary, origin, modules)


def _read_task(directory: pathlib.Path, config: BertConfig) -> tuple[Task | None, str]:
    """Returns the task of a directory and the text of its task.json; (None, '') for a model without a task.

    Without task.json, task and text are derived from config.json or from the files of sentence-transformers.
    """
    path, longest = directory / TASK_FILE, config.max_positions
    if not path.is_file():
        source = read_source(directory)
        task = build_pair_task(directory, longest) or build_task_for_class(
            source.values, longest, source.description_file
        )
        if task is None:
            return None, ''
        # Options that have their defaults are recorded only if the folder states them. It has no tuned thresholds.
        # Labels are recorded only as learned state, because those of a model need not be a valid option.
        recorded = {name: x for name, x in options_with_kind(task).items() if name not in task.learned.values()}
        stated = {'kind', *(ADOPTED_OPTIONS if recorded['kind'] == 'late_interaction' else ())}
        defaults = {name: to_plain(option.default) for name, option in options(recorded['kind']).items()}
        changed = {name: value for name, value in recorded.items() if name in stated or value != defaults[name]}
        return task, make_task_json(changed, task, config, task.seq_len, finished=False, from_head=True)
    facts = read_json_object(path, _RESTORE)
    seq_len = facts.get('seq_len')  # the length in tokens during the fine-tuning
    if type(seq_len) is not int or seq_len > longest:
        expected = f"at most {longest}, the model's number of positions"
        raise UserError(f'{path}: seq_len', repr(seq_len), expected, _RESTORE)
    task = build_recorded_task(task_options(facts, path), seq_len)
    read_recorded_task(path, task)  # also restores the learned state, such as labels
    return task, path.read_text(encoding='utf-8')


def _from_checkpoints(folder: pathlib.Path, step: int, dtype: str) -> LoadedModel:
    # These modules are imported here, because they take as long to import as JAX, and loading an export needs none.
    from bertjax.finetune.restore import load_task
    from bertjax.finetune.settings import finetuning_settings
    from bertjax.pretrain.restore import load_pretraining
    from bertjax.pretrain.settings import pretraining_settings

    config = from_plain(read_recorded_config(folder / CONFIG))
    config.mesh, config.step, config.model.dtype = from_plain(_DATA_MESH), step, dtype
    config.model.attention = 'auto'  # the kernel of the training may not exist on this machine
    if 'task' in config:
        tuned = load_task(finetuning_settings(config), folder)
        data, setup, params = tuned.data, tuned.task_model.setup, tuned.params
        where, module, task = f'{folder}, step {tuned.step}', setup.module, data.task
        tokenizer, mesh, task_text = data.tokenizer, setup.mesh, data.task_json(finished=tuned.finished)
    else:
        run = load_pretraining(pretraining_settings(config), folder)
        where, module, task = f'{folder}, step {run.checkpoint.position.step}', BertForPreTraining(run.config), None
        tokenizer, params, mesh, task_text = run.tokenizer, run.params, run.mesh, ''
    summary = f'using {where}; its {len(flat_paths(params))} parameters loaded; newly initialized: nothing'
    origin = Origin(module.config.param_dtype, task_text)
    modules = task.sentence_modules() if task else None
    return LoadedModel(
        where, module, params, tokenizer, task, mesh, summary=summary, origin=origin, sentence_modules=modules
    )
