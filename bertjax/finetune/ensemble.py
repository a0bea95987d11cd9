"""Several tuned models that answer together: the mean of their logits."""

import copy
import dataclasses
import functools
import glob
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from bertjax.errors import UserError
from bertjax.files.paths import is_remote
from bertjax.finetune.restore import EvaluatedTask, load_task
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.remote.paths import user_path
from bertjax.tasks.options import options_of
from bertjax.tasks.task import Task
from bertjax.writers.console import format_value

KEY = 'config.ensemble'

EnsembleRequest = Sequence[tuple[FinetuningSettings, pathlib.Path]]  # settings and workdir of each model


def member_folders(ensemble: str, workdir: pathlib.Path) -> list[pathlib.Path]:
    """The workdirs that config.ensemble names, with commas between; globs in the order of their names.

    Args:
      ensemble: config.ensemble.
      workdir: of the figures and predictions.

    Raises:
      UserError: no such folder, one twice, fewer than two, or `workdir` among them.
    """
    found: list[pathlib.Path] = []
    for item in filter(None, (item.strip() for item in ensemble.split(','))):
        path = str(user_path(item, KEY)) if is_remote(item) else os.path.expanduser(item)
        here = sorted(map(pathlib.Path, glob.glob(path))) if glob.has_magic(path) else [pathlib.Path(path)]
        folders = [folder for folder in here if folder.is_dir()]
        if not folders:
            raise UserError(KEY, f'{item!r}, where there is no folder', 'workdirs of fine-tunings', 'check the path')
        found += folders
    resolved = [folder.resolve() for folder in found]
    if len(set(resolved)) < max(len(resolved), 2):
        some = ', '.join(map(str, found))
        raise UserError(KEY, some, 'two or more workdirs, each once', 'name others, or leave it empty for one model')
    if workdir.resolve() in resolved:
        fix = 'give another --workdir'
        raise UserError('--workdir', f'{workdir}, which is one of {KEY}', 'a folder for what they say together', fix)
    for folder in found:
        if not (folder / 'config.json').exists():
            raise UserError(KEY, f'{folder}, which has no run', 'workdirs of fine-tunings', 'fine-tune there first')
    return found


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Models of one task, which may differ in encoder and tokenizer; to its users what a SavedTask is.

    Attributes:
      members: by workdir; the first one's task reads the records.
      splits: what they are to be tried on.
    """

    members: Mapping[pathlib.Path, EvaluatedTask]
    splits: Mapping[str, TaskSplit]

    step = None

    @functools.cached_property
    def data(self) -> TaskData:
        """Of the first, with a task of its own, which is tuned for them all."""
        tasks = [member.data.task for member in self.members.values()]
        data = copy.copy(next(iter(self.members.values())).data)
        data.task = copy.copy(tasks[0])
        _share_tuned(data.task, tasks)
        return data

    @property
    def finished(self) -> bool:
        """Whether all are: what they tuned on dev stays."""
        return all(member.finished for member in self.members.values())

    @functools.cached_property
    def _own(self) -> dict[int, list[TaskSplit]]:
        """The splits as each member has them, by the identity of those of the first."""
        return {
            id(split): [member.splits[name] for member in self.members.values()] for name, split in self.splits.items()
        }

    def of_members(self, split: TaskSplit) -> list[tuple[EvaluatedTask, TaskSplit]]:
        """Each member, and the split with its own features."""
        members = list(self.members.values())
        own = self._own.get(id(split))
        if own is None:  # a batch of a stream
            rest = [member.data.tokenised(split.records, keep=False) for member in members[1:]]
            own = [split, *rest]
        return list(zip(members, own, strict=True))

    def predictions(self, split: TaskSplit) -> list[Any]:
        """One a record, of the mean of the logits."""
        rows = [(own.features, member.model.outputs(member.params, own)) for member, own in self.of_members(split)]
        return self.data.task.ensemble_predictions(split.records, rows)

    def scores_of_members(self, split: TaskSplit) -> dict[str, float | None]:
        """{workdir: score}, what each says of a split alone."""
        found = {}
        for folder, (member, own) in zip(self.members, self.of_members(split), strict=True):
            task = member.data.task
            found[str(folder)] = task.metrics(split.records, member.predictions(own))[task.score]
        return found


def ensemble_table(
    score: str, alone: Mapping[str, Mapping[str, float | None]], together: Mapping[str, Mapping[str, float | None]]
) -> Table:
    """A row a member, then what they reach together.

    Args:
      score: name of the figure.
      alone: by split, see `Ensemble.scores_of_members`.
      together: figures by split.
    """
    table = Table(title=score, title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column('')
    for name in together:
        table.add_column(name, justify='right')
    for folder in next(iter(alone.values())):
        table.add_row(folder, *(format_value(alone[name][folder]) for name in together))
    table.add_row('together', *(format_value(figures[score]) for figures in together.values()), style='bold')
    return table


def load_models(
    asked: EnsembleRequest, splits_of: Callable[[TaskData], dict[str, TaskSplit]]
) -> EvaluatedTask | Ensemble:
    """The model of one workdir, or those of several together.

    Args:
      asked: one, or several.
      splits_of: see `saved.load_task`; of the first. The others get its records.

    Raises:
      UserError: see `saved.load_task`; models of different tasks, or with different labels.
    """
    (settings, folder), *rest = asked
    first = load_task(settings, folder, splits_of)
    if not rest:
        return first
    members = {folder: first}
    for settings, other in rest:

        def same_records(data: TaskData, path: pathlib.Path = other) -> dict[str, TaskSplit]:
            _check_alike(first.data.task, folder, data.task, path)
            return {
                name: dataclasses.replace(split, features=data.tokenised(split.records, keep=False).features)
                for name, split in first.splits.items()
            }

        members[other] = load_task(settings, other, same_records)
    return Ensemble(members, first.splits)


def _check_alike(ours: Task, folder: pathlib.Path, theirs: Task, path: pathlib.Path) -> None:
    """Refuses a member, of the same kind, that answers another question, or with other labels."""
    for name, option in options_of(type(ours)).items():
        if (option.named or name == 'regression') and getattr(ours, name) != getattr(theirs, name):
            found = f'{path} with task.{name}={getattr(theirs, name)!r}'
            raise UserError(KEY, found, f'{getattr(ours, name)!r}, as {folder} has it', 'leave it out')
    if list(ours.labels) != list(theirs.labels):
        found = f'{path} with the labels {", ".join(theirs.labels[:20])}'
        expected = f'{", ".join(ours.labels[:20])}, as {folder} has them'
        raise UserError(KEY, found, expected, 'leave it out, or train it with the same labels in the same order')


def _share_tuned(shared: Task, tasks: Sequence[Task]) -> None:
    """Gives `shared` what each was tuned to on dev, the null threshold of SQuAD 2.0, averaged as the logits are."""
    learned = [task.learned() for task in tasks]
    tuned = [key for key, value in learned[0].items() if isinstance(value, float)]
    if tuned:
        shared.restore({**learned[0], **{key: sum(one[key] for one in learned) / len(learned) for key in tuned}})
