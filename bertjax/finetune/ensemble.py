"""Ensembles of fine-tuned models. An ensemble predicts from the mean of its members' logits or cosines."""

import copy
import dataclasses
import functools
import glob
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.config.schema import Trained
from bertjax.errors import UserError
from bertjax.files.paths import is_remote
from bertjax.finetune.restore import EvaluatedTask, load_task, restore_thresholds
from bertjax.finetune.results import MEMBER_STEPS
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.remote.paths import user_path
from bertjax.tasks.task import Task, options_of
from bertjax.workdir.lock import TRIALS

KEY = 'config.ensemble'

EnsembleRequest = Sequence[tuple[FinetuningSettings, pathlib.Path]]  # the settings and the workdir of each model


def member_folders(ensemble: str, workdir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the workdirs that config.ensemble names by paths and globs, separated by commas.

    The matches of a glob are sorted by name. Raises a UserError if there are fewer than two workdirs, or if one of them
    does not exist, has no run, occurs twice or is `workdir`, which gets the results of the ensemble.
    """
    members: list[pathlib.Path] = []
    for item in filter(None, (item.strip() for item in ensemble.split(','))):
        path = str(user_path(item, KEY, checkpoints=True)) if is_remote(item) else os.path.expanduser(item)
        folders = [folder for folder in map(pathlib.Path, sorted(glob.glob(path))) if folder.is_dir()]
        if not folders:
            found = f'{item!r}, where there is no folder'
            raise UserError(KEY, found, 'workdirs of fine-tuning runs', 'check the path')
        members += folders
    resolved = [folder.resolve() for folder in members]
    if len(set(resolved)) < max(len(resolved), 2):
        found = ', '.join(map(str, members)) or repr(ensemble)
        fix = 'name other workdirs, or leave it empty for a single model'
        raise UserError(KEY, found, 'two or more different workdirs', fix)
    if workdir.resolve() in resolved:
        fix = 'give another --workdir'
        raise UserError('--workdir', f'{workdir}, which is one of {KEY}', "a folder for the ensemble's results", fix)
    for folder in members:
        if not (folder / 'config.json').exists():
            found, fix = f'{folder}, which has no run', 'fine-tune there first'
            if folder.parent.name == TRIALS:
                found = f'{folder}, a trial of a sweep'
                fix = 'train each seed in its own --workdir, because a sweep keeps only its best model'
            raise UserError(KEY, found, 'workdirs of fine-tuning runs', fix)
    return members


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Several models of one task, with the interface of an `EvaluatedTask` for predictions.

    The encoders may differ. Most tasks also allow different tokenizers, see `Task.ensemble_predictions`. `members` is
    {workdir: model}. `splits` is {name: split}, tokenized for the first member, whose task reads the records.
    """

    members: Mapping[pathlib.Path, EvaluatedTask]
    splits: Mapping[str, TaskSplit]

    @functools.cached_property
    def data(self) -> TaskData:
        """The data of the first member, with each threshold of the task averaged over all members."""
        states = [member.data.task.learned_state() for member in self.members.values()]
        thresholds = [key for key, value in states[0].items() if isinstance(value, float)]
        means = {key: sum(state[key] for state in states) / len(states) for key in thresholds}
        data = copy.copy(next(iter(self.members.values())).data)
        data.task = copy.copy(data.task)
        if thresholds:
            data.task.restore({**states[0], **means})
        return data

    @property
    def thresholds_tuned(self) -> bool:
        """Whether the thresholds of all members are already tuned on dev."""
        return all(member.thresholds_tuned for member in self.members.values())

    def facts(self, folder: pathlib.Path) -> dict[str, Any]:
        """Returns the facts in results.json that identify the ensemble."""
        del folder
        facts: dict[str, Any] = {'ensemble': [str(path) for path in self.members]}
        models = self.members.items()
        steps = {str(path): model.step for path, model in models if model.step is not None and not model.finished}
        return {**facts, MEMBER_STEPS: steps} if steps else facts

    def _pair_members(self, split: TaskSplit) -> list[tuple[EvaluatedTask, TaskSplit]]:
        """Returns (member, split) for all members. Each split has the same records, tokenized for its member."""
        members = list(self.members.values())
        for name, other in self.splits.items():
            if other is split:
                return [(member, member.splits[name]) for member in members]
        # Any other split is a batch of a stream, which only the first member has tokenized.
        splits = [split, *(member.data.tokenize(split.records, cache=False) for member in members[1:])]
        return list(zip(members, splits, strict=True))

    def predictions(self, split: TaskSplit) -> Sequence[Any]:
        """Returns a prediction for each record, from the mean of the logits or cosines."""
        pairs = self._pair_members(split)
        rows = [(part.features, member.task_model.outputs(member.params, part)) for member, part in pairs]
        return self.data.task.ensemble_predictions(split.records, rows)

    def member_scores(self, split: TaskSplit) -> dict[str, float | None]:
        """Returns {workdir of a member: the score of this member alone on the split}."""
        scores = {}
        for folder, (member, member_split) in zip(self.members, self._pair_members(split), strict=True):
            task = member.data.task
            scores[str(folder)] = task.metrics(split.records, member.predictions(member_split)).get(task.score)
        return scores


def load_models(
    request: EnsembleRequest, splits_of: Callable[[TaskData], dict[str, TaskSplit]], workdir: pathlib.Path
) -> EvaluatedTask | Ensemble:
    """Loads the model of one workdir, or an ensemble of the models of several workdirs.

    `splits_of` returns the splits of the first model; see `restore.load_task`. The other models get the same records.
    `workdir` is the folder with the results of the ensemble.
    Raises a UserError if the models have different tasks, inputs or labels, or one of them cannot be loaded.
    """
    (settings, folder), *rest = request
    first = load_task(settings, folder, splits_of)
    if not rest:
        return first
    members = {folder: first}
    for settings, other in rest:

        def same_records(data: TaskData, path: pathlib.Path = other) -> dict[str, TaskSplit]:
            task, theirs = first.data.task, data.task
            _check_same_task(task, folder, theirs, path)
            shares_dev = 'dev' in first.splits and getattr(task, 'shares_dev', False)
            fraction = 0 if getattr(theirs, 'dev', '') else getattr(theirs, 'dev_fraction', 0)
            if shares_dev and fraction < task.dev_fraction:
                cause = f'its own dev was {fraction:g} of the training records, not {task.dev_fraction:g}'
                print(f'warning: {path} may have been trained on records of this dev split: {cause}')
            return {
                name: dataclasses.replace(split, features=data.tokenize(split.records, cache=False).features)
                for name, split in first.splits.items()
            }

        members[other] = load_task(settings, other, same_records)
    ensemble = Ensemble(members, first.splits)
    if not ensemble.thresholds_tuned:
        restore_thresholds(ensemble.data, ensemble.splits, ensemble.facts(workdir), workdir)
    return ensemble


def _check_same_task(first: Task, folder: pathlib.Path, other: Task, path: pathlib.Path) -> None:
    """Raises a UserError if the member in `path` differs from the first member in task, texts or labels."""
    for name, option in options_of(type(first)).items():
        must_agree = (option.named and option.trained is Trained.SAME) or name == 'regression'
        if must_agree and getattr(first, name) != getattr(other, name):
            found = f'{path} with task.{name}={getattr(other, name)!r}'
            raise UserError(KEY, found, f'{getattr(first, name)!r}, as in {folder}', 'leave it out')
    texts, expected = (len(getattr(task, 'text_columns', ())) for task in (other, first))
    if texts != expected:
        theirs, ours = ('pairs' if count == 2 else 'single texts' for count in (texts, expected))
        raise UserError(KEY, f'{path}, a model for {theirs}', f'{ours}, as in {folder}', 'leave it out')
    if list(first.labels) != list(other.labels):
        found = f'{path} with the labels {", ".join(other.labels[:20])}'
        expected = f'{", ".join(first.labels[:20])}, as in {folder}'
        raise UserError(KEY, found, expected, 'leave it out, or train it with the same labels in the same order')
