"""Reads the run in a workdir, for the sections of its page."""

import contextlib
import dataclasses
import io
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.config.plain import from_plain
from bertjax.distill.objective import OUTPUT_LOSSES
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.results import RESULTS
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.pretrain.budget_plan import read_plan
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.workdir.files import read_recorded_config, read_recorded_results
from bertjax.workdir.lock import TRIALS, trial_fields
from bertjax.writers.jsonl import read_rows

_LOCAL_MESH = {'data': -1, 'fsdp': 1, 'tensor': 1}  # fits any machine


@dataclasses.dataclass(frozen=True)
class Run:
    """The content of a workdir.

    Attributes:
      recipe: The recipe as the command line names it.
      config: The config in plain form, from the run, from a member of the ensemble, or from the command line.
      recorded: Whether `config` is from config.json in `folder`.
      models: The folders of the evaluated models; empty if the model is in `folder`.
    """

    folder: pathlib.Path
    recipe: str
    config: Mapping[str, Any]
    recorded: bool
    rows: list[dict[str, Any]]
    models: Sequence[pathlib.Path] = ()

    @property
    def is_task(self) -> bool:
        """Whether the run is a fine-tuning run, a sweep or an evaluation."""
        return 'task' in self.config

    @property
    def is_sweep(self) -> bool:
        """Whether the run is a sweep."""
        return (self.folder / TRIALS).is_dir()

    @property
    def total_steps(self) -> int | None:
        """The length of the run; None if unknown, for example before a time budget has ended the second phase."""
        plan, steps = read_plan(self.folder) if self.config.get('budget') else None, self.config.get('steps')
        return steps if isinstance(steps, int) and (plan is None or plan.decay is not None) else None

    @property
    def is_evaluation(self) -> bool:
        """Whether the folder has only the results of run=evaluate."""
        return self.is_task and not self.recorded

    @property
    def is_distillation(self) -> bool:
        """Whether the run has a teacher."""
        return 'distill' in self.config

    @property
    def trains_outputs(self) -> bool:
        """Whether labels or a teacher train the outputs of the model, not only its hidden states."""
        return not self.is_distillation or any(self.config['distill'].get(part) for part in OUTPUT_LOSSES)

    @property
    def steps(self) -> int:
        """The last step that has a row, or 0 without rows."""
        return max((row['step'] for row in self.rows), default=0)

    def rows_of(self, split: str) -> list[dict[str, Any]]:
        """Returns the rows of a split."""
        return [row for row in self.rows if row['split'] == split]

    def pretraining_settings(self) -> PretrainingSettings:
        """Returns the settings of a pre-training run, adapted to this machine."""
        return pretraining_settings(self._local_config())

    def finetuning_settings(self) -> FinetuningSettings:
        """Returns the settings of a fine-tuning run, adapted to this machine."""
        return finetuning_settings(self._local_config())

    def _local_config(self) -> Any:
        model = {**self.config['model'], 'attention': 'auto'}
        model.pop('vocab_size', None)  # the tokenizer determines the size
        return from_plain({**self.config, 'mesh': _LOCAL_MESH, 'model': model, 'step': 0})

    def results(self) -> dict[str, Any] | None:
        """Returns the content of results.json; None if it is missing, damaged, or from before the run was extended."""
        steps = self.config.get('steps')
        is_valid = lambda results: 'splits' in results and results.get('steps', steps) == steps  # noqa: E731
        return read_json_or_none(self.folder / RESULTS, lambda results: results if is_valid(results) else None)


def read_run(config: Mapping[str, Any], folder: pathlib.Path, recipe: str) -> Run:
    """Reads the run in a workdir. A config in the workdir replaces `config`, which is in plain form.

    Raises a UserError if the folder has no run or is a trial of a sweep, or if a file is damaged. If the folder has
    only a corpus, the recipe must have a corpus. If it has only an evaluation, the recipe must have a task, unless an
    ensemble member has a config.
    """
    path = folder / 'config.json'
    if path.exists():
        return Run(folder, recipe, read_recorded_config(path), True, read_rows(folder / 'metrics.jsonl'))
    if (folder / 'store').is_dir():
        if 'corpus' not in config:
            found, fix = f'{recipe}, a recipe without a corpus', 'give that recipe, such as --config=pretrain_tiny'
            raise UserError('--config', found, f'the recipe with which the corpus in {folder} was built', fix)
        return Run(folder, recipe, config, False, [])
    if trial_fields(folder) and (folder.parent.parent / 'config.json').exists():
        fix = f'give --workdir={folder.parent.parent}, or draw the trial with --config.run=plot'
        raise UserError('--workdir', f'{folder}, a trial of a sweep', 'the workdir of a run or a whole sweep', fix)
    if (folder / RESULTS).exists():
        return _read_evaluation(config, folder, recipe)
    found, fix = f'no run and no corpus in {folder}', 'train first, in this --workdir'
    raise UserError('--workdir', found, 'the workdir of a run', fix)


def _read_evaluation(config: Mapping[str, Any], folder: pathlib.Path, recipe: str) -> Run:
    """Reads the results of run=evaluate. Prefers the config of the first ensemble member that has one."""
    results = read_recorded_results(folder / RESULTS)
    members = [pathlib.Path(member) for member in results.get('ensemble', ())]
    path = next((member / 'config.json' for member in members if (member / 'config.json').exists()), None)
    if path:
        return Run(folder, recipe, read_recorded_config(path), False, [], members)
    if 'task' not in config:
        expected = f'the recipe of the task {results.get("task", "")}, which was evaluated in {folder}'
        found, fix = f'{recipe}, a recipe without a task', 'give that recipe, with --config.data'
        raise UserError('--config', found, expected, fix)
    init = results.get('init') or config['init']
    return Run(folder, recipe, {**config, 'init': init}, False, [], [pathlib.Path(init)] if init else [])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses prints, and log messages up to warnings, because the training itself shows them."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(previous)
