"""The run in a workdir, as every section of its page finds it."""

import contextlib
import dataclasses
import io
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import from_plain, plain
from bertjax.config.recipes import finetuning_config, pretraining_config
from bertjax.distill.objective import OUTPUT_LOSSES
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.finetune.results import RESULTS
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.workdir.files import recorded_config, recorded_results
from bertjax.workdir.lock import TRIALS, has_checkpoints
from bertjax.writers.jsonl import read_rows

_ONE = {'data': -1, 'fsdp': 1, 'tensor': 1}  # a mesh that any machine has


@dataclasses.dataclass(frozen=True)
class Run:
    """What is in a workdir.

    Attributes:
      folder: the workdir.
      recipe: as the command line names it.
      config: that of the run, in plain form; of a folder in which nothing was trained, the command line's.
      recorded: whether it is that of a run.
      rows: of metrics.jsonl.
      models: the folders whose models answered, where they are not the workdir's own: of an evaluation.
    """

    folder: pathlib.Path
    recipe: str
    config: Mapping[str, Any]
    recorded: bool
    rows: list[dict[str, Any]]
    models: Sequence[pathlib.Path] = ()

    @property
    def is_task(self) -> bool:
        """Whether it is a fine-tuning, or a sweep of them."""
        return 'task' in self.config

    @property
    def is_sweep(self) -> bool:
        """Whether it is a sweep."""
        return (self.folder / TRIALS).is_dir()

    @property
    def is_evaluation(self) -> bool:
        """Whether it holds no more than what run=evaluate writes."""
        return self.is_task and not self.recorded

    @property
    def is_distillation(self) -> bool:
        """Whether it has a teacher."""
        return 'distill' in self.config

    @property
    def predicts(self) -> bool:
        """Whether its outputs are taught, by labels or by a teacher."""
        return not self.is_distillation or any(self.config['distill'].get(part) for part in OUTPUT_LOSSES)

    @property
    def steps(self) -> int:
        """The last step that has a row; 0 before the first."""
        return max((row['step'] for row in self.rows), default=0)

    @property
    def checkpointed(self) -> bool:
        """Whether there is a checkpoint."""
        return has_checkpoints(self.folder)

    def loaded_recipe(self) -> dict[str, Any]:
        """The recipe as it is in its file, in plain form.

        Raises:
          UserError: it is no longer there.
        """
        return plain(load_recipe(find_recipe(self.recipe)))

    def pretraining_settings(self) -> PretrainingSettings:
        """Of a pre-training, for this machine whatever the run had."""
        return pretraining_settings(self._for_here())

    def finetuning_settings(self) -> FinetuningSettings:
        """Of a fine-tuning, likewise."""
        return finetuning_settings(self._for_here())

    def _for_here(self) -> Any:
        model = {**self.config['model'], 'attention': 'auto'}
        return from_plain({**self.config, 'mesh': _ONE, 'model': model, 'step': 0})

    def results(self) -> dict[str, Any] | None:
        """results.json of a finished fine-tuning; None where there is none, or a damaged one."""
        return read_json_or_none(self.folder / RESULTS, _with_splits)


def _with_splits(results: dict[str, Any]) -> dict[str, Any]:
    return results if all(isinstance(figures, dict) for figures in results['splits'].values()) else None


def read_run(config: Mapping[str, Any], folder: pathlib.Path, recipe: str) -> Run:
    """The run in a workdir, finished or not, whatever the recipe of the command line is.

    Args:
      config: of the command line, in plain form.
      folder: the workdir.
      recipe: as the command line names it.

    Raises:
      UserError: nothing of a run is there, or its config.json is damaged.
    """
    path = folder / 'config.json'
    if path.exists():
        return Run(folder, recipe, recorded_config(path, _usual(path)), True, read_rows(folder / 'metrics.jsonl'))
    if (folder / 'store').is_dir():
        return Run(folder, recipe, config, False, [])
    if (folder / RESULTS).exists():
        return _evaluation(config, folder, recipe)
    fix = 'train first, in this --workdir'
    raise UserError('--workdir', f'no run and no corpus in {folder}', 'the workdir of a run', fix)


def _evaluation(config: Mapping[str, Any], folder: pathlib.Path, recipe: str) -> Run:
    """What run=evaluate left of config.init, or of the workdirs of config.ensemble, whose first one says what it is."""
    results = recorded_results(folder / RESULTS)
    members = [pathlib.Path(member) for member in results.get('ensemble', ())]
    path = next((member / 'config.json' for member in members if (member / 'config.json').exists()), None)
    if path is None and 'task' not in config:
        expected = f'that of the task {results.get("task", "")}, which was evaluated in {folder}'
        raise UserError('--config', f'{recipe}, a recipe without a task', expected, 'give it, with --config.data')
    if path:
        return Run(folder, recipe, recorded_config(path, _usual(path)), False, [], members)
    init = results.get('init') or config['init']
    return Run(folder, recipe, {**config, 'init': init}, False, [], [pathlib.Path(init)] if init else [])


def _usual(path: pathlib.Path) -> dict[str, Any]:
    """A config of the kind that config.json has."""
    task = read_json_object(path, 'restore the file from a copy').get('task')
    if task is None:
        return plain(pretraining_config())
    kind = task.get('kind') if isinstance(task, dict) else None
    return plain(finetuning_config(kind))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what reading prints, which was said when it was trained."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def read_lines(path: pathlib.Path) -> list[dict[str, Any]] | None:
    """The objects of a file of JSON lines that we wrote; None where it is gone or damaged."""
    try:
        text = path.read_text(encoding='utf-8')
        return [json.loads(line) for line in text.split('\n') if line]  # a word may hold what splitlines splits at
    except (OSError, ValueError):
        return None
