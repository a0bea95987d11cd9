"""run=doctor: check the machine, the config and the run in WORKDIR; print the problems and their fixes."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Iterator

from ml_collections import ConfigDict

from bertjax.config.plain import to_plain
from bertjax.config.verb import Verb
from bertjax.doctor import machine, outcome, plan, text
from bertjax.doctor.check import FAIL, OK, WARN, Check, print_checks
from bertjax.errors import UserError
from bertjax.files.paths import display_path, is_remote
from bertjax.finetune.settings import finetuning_settings
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.warm_start import with_architecture, with_existing_vocabulary
from bertjax.report.run_record import read_run
from bertjax.terminal import Console
from bertjax.workdir.differences import task_kind

VERB = Verb(bucket='inspect')


def run(
    config: ConfigDict,
    workdir: str,
    recipe: str,
    flag_keys: Collection[str] = (),
    command_line_keys: Collection[str] = (),
) -> None:
    """Prints a line for each check. The verb does not disturb a run in progress.

    The verb leaves no file behind, except a test object in a bucket that forbids deletion.

    Raises:
      UserError: A check failed: a run cannot start, or its result is unusable.
    """
    folder, console = pathlib.Path(workdir), Console(highlight=False, soft_wrap=True)
    address = display_path(folder)
    in_bucket = is_remote(address)
    lease = list(machine.bucket_lease(address)) if in_bucket else []
    at_work = bool(lease) or machine.is_at_work(folder)
    record = read_run(to_plain(config), folder, recipe) if (folder / 'config.json').exists() else None
    idle_checks = [] if at_work else [machine.devices(), *([] if in_bucket else [machine.workdir(folder)])]
    counts = print_checks(console, 'this machine', machine.versions(), *idle_checks)
    if in_bucket:
        counts += print_checks(console, 'the bucket', lease, machine.bucket_rights(address))
    continues = record is not None and task_kind(record.config) == task_kind(to_plain(config))
    done, total = outcome.steps_done(record) if continues else (0, None)
    resume = []
    if done:
        continued = outcome.with_set_keys(record, to_plain(config), command_line_keys, flag_keys)
        total, resume = total and continued['steps'], [outcome.resume(record, done, continued, at_work=at_work)]
    if not continues or (done != total and not record.is_sweep):
        checks = _config_checks(config, folder, flag_keys, done, total, at_work=at_work)
        counts += print_checks(console, 'this config', *checks)
    if record is not None:
        checks = (outcome.not_finite, outcome.mlm_loss, outcome.collapsed, outcome.slow_input, outcome.goodput)
        outcomes = [outcome.progress(record, at_work=at_work), *resume, *(check(record) for check in checks)]
        counts += print_checks(console, f'the run in {address}', *outcomes)
    failed, warned = counts[FAIL], counts[WARN]
    if failed:
        message = f'{failed} failed check{"s" * (failed > 1)} of {counts.total()}'
        raise UserError('--config.run=doctor', message, 'none', f'follow the advice in each {FAIL} line above')
    warnings = {0: '', 1: '; see the line with warn'}.get(warned, f'; see the {warned} lines with warn')
    print(f'\nno check failed{warnings}')


def _config_checks(
    config: ConfigDict, folder: pathlib.Path, flag_keys: Collection[str], done: int, total: int | None, *, at_work: bool
) -> Iterator[Iterable[Check]]:
    """Yields the checks of a config that trains a model. The task of a run in progress is not checked."""
    if 'task' in config and not at_work:
        settings = finetuning_settings(config)
        if settings.distill:
            yield plan.teacher(settings, folder, flag_keys)
            # Without config.init, the cost is estimated with the size of the teacher instead of the student.
            settings = dataclasses.replace(settings, init=settings.init or settings.distill.teacher)
        yield plan.task(settings, folder, done)
    elif 'corpus' in config:
        settings = with_architecture(pretraining_settings(config), folder, flag_keys)
        with contextlib.suppress(UserError):  # the check of the tokenizer reports the error
            settings = with_existing_vocabulary(settings, folder)
        if settings.distill:
            yield plan.teacher(settings, folder, flag_keys)
        yield from _pretraining_checks(settings, folder, flag_keys, done, total, at_work=at_work)


def _pretraining_checks(
    settings: PretrainingSettings,
    folder: pathlib.Path,
    flag_keys: Collection[str],
    done: int,
    total: int | None,
    *,
    at_work: bool,
) -> Iterator[Iterable[Check]]:
    yield plan.config(settings, folder)
    yield text.tokenizer(settings, folder, flag_keys)
    yield text.corpus(settings, folder)
    try:
        total, model = total or plan.steps_of(settings), settings.model_config(settings.vocab.size)
    except UserError:  # the check of the config reports the error
        return
    yield plan.disk(settings, model, folder)
    if settings.budget:
        message = f'config.budget={settings.budget}: the run chooses its steps and, if unset, its size and batch'
        yield [Check('hours', OK, message)]
    elif settings.topology:
        yield plan.on_slice(settings, done, total)
    elif not at_work:
        yield plan.on_this_machine(settings, done, total)
