"""Any model by its path: a workdir, finished or not, or a directory that a training left or somebody else wrote."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.config.plain import from_plain, plain
from bertjax.config.recipes import finetuning_config, pretraining_config
from bertjax.config.using import ModelKeys
from bertjax.convert.formats import read_source
from bertjax.convert.huggingface import read as huggingface
from bertjax.convert.huggingface.read import CONFIG
from bertjax.convert.huggingface.save import CARD
from bertjax.convert.huggingface.sentence_transformers import MODULES, SentenceModules, read_sentence_modules
from bertjax.convert.load import load_pretraining_model, load_task_model, read_config
from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.files.paths import is_remote
from bertjax.files.small_files import read_json_object
from bertjax.finetune.task_data import TASK_FILE, task_json
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import replicated
from bertjax.remote.paths import user_path
from bertjax.tasks.exported import recorded_options, task_of_class
from bertjax.tasks.registry import options, options_with_kind
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.files import recorded_config, recorded_task
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.resolve_path import PathKind, classify_path, huggingface_directory

_RESTORE = 'restore the file from a copy'
_WHOLE_MESH = {'data': -1, 'fsdp': 1, 'tensor': 1}  # every device has all parameters, and its share of the rows


@dataclasses.dataclass(frozen=True)
class Origin:
    """What the files of a model say beyond its parameters: it goes along when the model is written again.

    Attributes:
      dtype: in which they store the parameters: 'float32', 'float16' or 'bfloat16'.
      task_json: text of the task.json of a task's model, '' of another.
      values, files: config.json and further files of a Hugging Face directory, see `export_huggingface`.
    """

    dtype: str = 'float32'
    task_json: str = ''
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def of_other_parameters(self) -> 'Origin':
        """The same of a model whose parameters have changed: they keep their precision, and have no model card."""
        files = {name: content for name, content in self.files.items() if name != CARD}
        return dataclasses.replace(self, dtype='float32', files=files)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to be used.

    Attributes:
      where: the path that it was asked for by, and of a checkpoint the step.
      module: BertForPreTraining, or of a task its model.
      params: of the module, on the mesh.
      tokenizer: of the model.
      task: that it was tuned to; None for a model that was only pre-trained.
      mesh: its devices.
      missing: paths of parameters that the files lack, and that were drawn: what needs them has learned nothing.
      unused: names of what the files have and the module does not.
      said: in a line or two, what was loaded, what was drawn and what was left over.
      origin: of its files.
      sentence_modules: what a folder of sentence-transformers says of the vectors of texts; None of any other.
    """

    where: str
    module: nn.Module
    params: Any
    tokenizer: Tokenizer
    task: Task | None
    mesh: Mesh
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    said: str = ''
    origin: Origin = Origin()
    sentence_modules: SentenceModules | None = None

    @property
    def config(self) -> BertConfig:
        """Of the encoder."""
        return self.module.config

    @property
    def max_length(self) -> int:
        """The tokens that a text is cut to where nobody asks for another number."""
        said = self.sentence_modules.max_length if self.sentence_modules else 0
        return min(said or self.config.max_positions, self.config.max_positions)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: devices belong to a process."""
        return {**self.__dict__, 'params': jax.device_get(self.params), 'mesh': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        mesh = make_mesh(_WHOLE_MESH, claim_devices())
        self.__dict__.update({**state, 'params': jax.device_put(state['params'], replicated(mesh)), 'mesh': mesh})

    def require(self, part: str, what: str) -> None:
        """Refuses what needs a part of the model that it does not have, or that was never trained.

        Args:
          part: first name of the parameters' path, such as 'mlm'.
          what: needs it.

        Raises:
          UserError: it is not there.
        """
        drawn = any(path.split('/')[0] == part for path in self.missing)
        if drawn or part not in self.params:
            names = {'mlm': 'head for masked words', 'nsp': 'head for sentence pairs', 'pooler': 'pooler'}
            found = f'no {names.get(part, part)}' + (' (a model that was tuned to a task)' if self.task else '')
            fix = 'give a model that was pre-trained with one, such as a workdir of a pre-training'
            raise UserError(self.where, found, f'one, for {what}', fix)


def load_requested_model(settings: ModelKeys, workdir: pathlib.Path) -> LoadedModel:
    """The model of config.init, or without it the workdir's own.

    Raises:
      UserError: see `load_model`.
    """
    if not settings.init and classify_path(str(workdir)) not in (
        PathKind.EXPORTED,
        PathKind.CHECKPOINTS,
        PathKind.BEGUN,
    ):
        fix = 'name a model with --config.init, or give the --workdir of a training'
        raise UserError('config.init', f'nothing, and no model in {workdir}', 'one of the two', fix)
    asked = 'config.init' if settings.init else '--workdir'
    return _told(load_model(settings.init or workdir, step=settings.step, dtype=settings.dtype, asked=asked))


def load_compared_model(path: str, dtype: str, asked: str) -> LoadedModel:
    """Another model beside it, that of the key `asked`; see `load_model`."""
    return _told(load_model(path, dtype=dtype, asked=asked))


def _told(model: LoadedModel) -> LoadedModel:
    print(model.said)
    return model


def load_model(
    path: str | os.PathLike, *, step: int = 0, dtype: str = 'float32', asked: str = 'bertjax.load'
) -> LoadedModel:
    """The model of a path.

    Args:
      path: a workdir of ours: with `step` 0 what it exported, else its newest checkpoint (its best, where
        config.select='best'), else the checkpoint of that step; or what config.init takes, see
        `experiment.text.huggingface_directory`.
      step: see `path`.
      dtype: of computation, 'float32' or 'bfloat16'.
      asked: by which key or function, for messages.

    Raises:
      UserError: nothing there, or nothing that is a model.
    """
    name = str(user_path(path, asked)) if is_remote(path) else os.path.expanduser(os.fspath(path))
    folder = pathlib.Path(name)
    mesh = make_mesh(_WHOLE_MESH, claim_devices())
    if has_checkpoints(folder) if step else classify_path(name) is PathKind.CHECKPOINTS:
        return _from_checkpoints(folder, step, dtype)
    if step:
        raise UserError('step', f'{step}, where {name} has no checkpoints', '0', 'leave it out, or name a workdir')
    return _from_directory(huggingface_directory(name, asked), name, mesh, dtype)


def _from_directory(directory: str, where: str, mesh: Mesh, dtype: str) -> LoadedModel:
    config = read_config(directory, dtype=dtype)
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size > config.vocab_size:
        found = f'{tokenizer.vocab_size:,} pieces in the tokenizer'
        raise UserError(
            where, found, f'at most {config.vocab_size:,}, as the embedding has', 'copy both from one source'
        )
    task, learned = _task_of(pathlib.Path(directory), config)
    if task is None:
        found = load_pretraining_model(directory, dtype=dtype)
        module = BertForPreTraining(found.config)
    else:
        module = task.model(config)
        found = load_task_model(directory, module, task.head, id2label=task.huggingface().get('id2label'))
        if any(path.startswith('head/') for path in found.missing):
            fix = 'give the directory of a model that was fine-tuned'
            raise UserError(where, f'no weights of the head for {task.name}', 'those of its config.json', fix)
    params = jax.device_put(found.params, replicated(mesh))
    drawn, left, said = tuple(found.missing), tuple(found.unused), found.describe(where, 'using')
    values, files = {}, {}
    if huggingface.recognises(epath.Path(directory)):
        values = read_json_object(epath.Path(directory, CONFIG), _RESTORE)
        files = huggingface.read_further_files(epath.Path(directory))
    origin = Origin(found.dtype, learned, values, files)
    modules = read_sentence_modules(directory)
    said += f'\nfrom its {MODULES}: {modules.describe()}' if modules else ''
    return LoadedModel(where, module, params, tokenizer, task, mesh, drawn, left, said, origin, modules)


def _task_of(directory: pathlib.Path, config: BertConfig) -> tuple[Task | None, str]:
    """The task of a directory, and the text of its task.json, which is made where only config.json says it."""
    path, longest = directory / TASK_FILE, config.max_positions
    if not path.is_file():
        source = read_source(directory)
        task = task_of_class(source.values, longest, source.description_file)
        return task, '' if task is None else task_json(options_with_kind(task), task, config, longest)
    facts = read_json_object(path, _RESTORE)
    seq_len = facts.get('seq_len', longest)  # of the training; exports of the first versions do not say it
    if type(seq_len) is not int or seq_len > longest:
        raise UserError(f'{path}: seq_len', repr(seq_len), f'at most {longest}, the positions of the model', _RESTORE)
    task = recorded_options(_kind_of(facts, path), seq_len)
    task.restore(recorded_task(path, task)['learned'])
    return task, path.read_text(encoding='utf-8')


def _kind_of(facts: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """The options that a task.json or config.json has of its task."""
    task = facts.get('task')
    if not isinstance(task, dict) or not isinstance(task.get('kind'), str):
        raise UserError(str(path), 'no kind of task', 'the task of a fine-tuning', _RESTORE)
    strange = sorted(task.keys() - options(task['kind']).keys() - {'kind'})
    if strange:
        raise UserError(f'{path}: task', f'the key {strange[0]}', f'the options of {task["kind"]}', _RESTORE)
    return task


def _from_checkpoints(folder: pathlib.Path, step: int, dtype: str) -> LoadedModel:
    # Here, because Orbax and what belongs to a training take as long to import as JAX, and an export needs none of it.
    from bertjax.finetune.restore import load_tuned
    from bertjax.finetune.settings import finetuning_settings
    from bertjax.pretrain.restore import load_pretraining
    from bertjax.pretrain.settings import pretraining_settings

    path = folder / CONFIG
    saved = read_json_object(path, 'restore the file from a copy, or name the export')
    tuned = 'task' in saved
    recipe = finetuning_config(_kind_of(saved, path)['kind']) if tuned else pretraining_config()
    config = from_plain(recorded_config(path, plain(recipe)))
    config.mesh, config.step, config.model.dtype = from_plain(_WHOLE_MESH), step, dtype
    if tuned:
        found = load_tuned(finetuning_settings(config), folder)
        where, module, task = f'{folder}, step {found.step}', found.setup.model, found.data.task
        tokenizer, params, mesh = found.data.tokenizer, found.params, found.setup.mesh
        learned = found.data.learned(finished=found.data.finished)
    else:
        found = load_pretraining(pretraining_settings(config), folder)
        where, module, task = f'{folder}, step {found.saved.position.step}', BertForPreTraining(found.config), None
        tokenizer, params, mesh, learned = found.tokenizer, found.params, found.mesh, ''
    said = f'using {where}; its {len(flat_paths(params))} parameters loaded; freshly drawn: nothing'
    origin = Origin(module.config.param_dtype, learned)
    return LoadedModel(where, module, params, tokenizer, task, mesh, said=said, origin=origin)
