"""Finds or makes the plan of a pre-training run with config.budget.

The plan is saved in the workdir. With config.replay, a run repeats the decisions of another run and gets the same
result, bit for bit.
"""

import pathlib
from collections.abc import Collection

from jax.sharding import Mesh

from bertjax.config.recipes import vocabulary_size
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.parallel.distributed import is_primary
from bertjax.pretrain.budget_choice import choose_budget_plan
from bertjax.pretrain.budget_plan import FILE, BudgetPlan, read_plan
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.remote.paths import user_path
from bertjax.workdir.lock import has_checkpoints


def find_plan(settings: PretrainingSettings, folder: pathlib.Path) -> BudgetPlan | None:
    """Returns the plan of a run with checkpoints in `folder`, else the plan of the run in config.replay, else None.

    Raises:
      UserError: config.replay has another plan than the workdir, or no complete plan if the workdir has none. Or the
        workdir has checkpoints but no readable plan, and config.replay is not set.
    """
    # Without checkpoints, the primary process ignores a saved plan, and saves a new plan that other processes read.
    is_saved = settings.budget and (has_checkpoints(folder) or not is_primary())
    saved = _read_saved(folder, settings) if is_saved else None
    replayed = _read_replayed(settings.replay, required=saved is None) if settings.replay else None
    if saved and replayed not in (None, saved):
        found, fix = repr(settings.replay), 'leave it out, or give another --workdir'
        raise UserError('config.replay', found, f'a run with the decisions in {folder / FILE}', fix)
    return saved or replayed


def make_plan(
    settings: PretrainingSettings, folder: pathlib.Path, mesh: Mesh, flag_keys: Collection[str]
) -> BudgetPlan:
    """Returns the plan of a run: that of `find_plan`, else a new plan.

    The plan is saved to the workdir. A saved plan without a checkpoint is replaced, because nothing depends on it.

    Raises:
      UserError: The plan is for another budget, model or batch. Or see `find_plan` and `choose_budget_plan`.
    """
    plan = find_plan(settings, folder) or choose_budget_plan(settings, mesh, flag_keys)
    path = folder / FILE
    is_replayed = settings.replay and not (has_checkpoints(folder) and read_plan(folder))
    source, fix = (settings.replay, 'leave config.replay out') if is_replayed else (path, 'give another --workdir')
    if plan.budget != settings.budget:
        is_argument = settings.architecture_from == 'budget'
        form = '--config=configs/budget.py:' if is_argument else '--config.budget='
        fix = f'set {form}{plan.budget}, or {fix}'
        raise UserError('config.budget', repr(settings.budget), f'{plan.budget}, as in {source}', fix)
    planned = {f'model.{key}': (getattr(settings.model, key), value) for key, value in plan.model.items()}
    if plan.batch_size is not None:
        planned['batch_size'] = (settings.batch_size, plan.batch_size)
    for key, (configured, value) in planned.items():
        if key in flag_keys and configured != value:
            fix = f'leave it out, or {fix}'
            raise UserError(f'config.{key}', str(configured), f'{value}, as in {source}', fix)
    if plan != read_plan(folder):
        plan.save(folder)
    return plan


def check_budget_keys(settings: PretrainingSettings, folder: pathlib.Path, flag_keys: Collection[str]) -> None:
    """Raises a UserError if other keys conflict with config.budget."""
    is_trained = not (settings.tokenizer or settings.init or settings.data or has_checkpoints(folder))
    sets_only_budget = {'budget', 'vocab.size'} & {*flag_keys} == {'budget'} and settings.architecture_from == 'budget'
    if is_trained and sets_only_budget and settings.vocab.size != vocabulary_size(settings.budget):
        expected = 'the argument of the recipe, which also sets the size of the vocabulary'
        fix = f'for example --config=configs/budget.py:{settings.budget}, or also set --config.vocab.size'
        raise UserError('config.budget', repr(settings.budget), expected, fix)
    if settings.schedule.name != 'wsd' or not 0 < settings.schedule.decay_fraction < 1:
        found = f'{settings.schedule.name!r} with decay_fraction={settings.schedule.decay_fraction:g}'
        fix = 'set --config.schedule.name=wsd --config.schedule.decay_fraction=0.5'
        raise UserError(
            'config.schedule.name', found, "'wsd' with 0 < decay_fraction < 1, because of config.budget", fix
        )
    for key, is_set in (('phases', settings.phases), ('epochs', settings.epochs), ('steps', 'steps' in flag_keys)):
        if is_set:
            raise UserError(f'config.{key}', 'a value', 'none, because of config.budget', 'leave one of the two out')


def _read_saved(folder: pathlib.Path, settings: PretrainingSettings) -> BudgetPlan | None:
    plan = read_plan(folder)
    if plan is None and has_checkpoints(folder):
        config, fix = folder / 'config.json', 'or give another --workdir'
        if read_json_or_none(config, lambda facts: facts['budget']) == '':
            raise UserError('config.budget', repr(settings.budget), f"'', as in {config}", f'leave it out, {fix}')
        if not settings.replay:
            fix = f'restore the file from a copy, {fix}'
            raise UserError(str(folder / FILE), 'no readable plan beside the checkpoints', 'the plan of this run', fix)
    return plan


def _read_replayed(workdir: str, *, required: bool) -> BudgetPlan | None:
    folder = user_path(workdir, 'config.replay')
    plan = read_plan(folder)
    if required and (plan is None or plan.decay is None):
        found = 'no readable plan' if plan is None else 'a run whose second phase has not ended'
        expected, fix = 'the decisions of a finished run', 'give the workdir of a finished run'
        raise UserError(str(folder / FILE), found, expected, fix)
    return plan
