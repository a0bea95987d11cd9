"""run=doctor: check the machine, the config and the run in WORKDIR; say what is wrong and what to do."""

import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Iterator

from ml_collections import ConfigDict

from bertjax.config.plain import plain
from bertjax.config.verb import Verb
from bertjax.distill.settings import DistillationSettings
from bertjax.doctor import bucket, machine, past, plan, text
from bertjax.doctor.check import FAIL, WARN, Check, Findings
from bertjax.doctor.task import task, teacher
from bertjax.errors import UserError
from bertjax.files.paths import is_remote, user_name
from bertjax.finetune.settings import finetuning_settings
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.warm_start import with_architecture
from bertjax.report.run_record import read_run
from bertjax.terminal import Console

VERB = Verb(bucket='inspect')


def run(config: ConfigDict, workdir: str, recipe: str, overridden: Collection[str] = ()) -> None:
    """Prints a line a check; nothing stays written, and of a run that is at work nothing is disturbed.

    Args:
      config: of a run that is to be started, or that is in the workdir.
      workdir: of it.
      recipe: as the command line names it.
      overridden: keys that the command line sets one by one.

    Raises:
      UserError: something is wrong with which nothing can be started, or with which what ran is of no use.
    """
    folder, findings = pathlib.Path(workdir), Findings(Console(highlight=False, soft_wrap=True))
    address = user_name(folder)
    held = list(bucket.at_work(address)) if is_remote(address) else []
    at_work = bool(held) or machine.is_at_work(folder)
    before = read_run(plain(config), folder, recipe) if (folder / 'config.json').exists() else None
    alone = [] if at_work else [machine.devices()]
    if not at_work and not is_remote(address):
        alone.append(machine.workdir(folder))
    findings.section('this machine', machine.versions(), *alone)
    if is_remote(address):
        findings.section('the bucket', held, bucket.rights(address))
    done, total = past.begun(before) if before else (0, None)
    if before is None or (done != total and not before.is_sweep):
        findings.section('this config', *_of_config(config, folder, overridden, done, total, at_work=at_work))
    if before is not None:
        findings.section(f'the run in {address}', *past.became(before, at_work=at_work))
    _conclude(findings)


def _of_config(
    config: ConfigDict,
    folder: pathlib.Path,
    overridden: Collection[str],
    done: int,
    total: int | None,
    *,
    at_work: bool,
) -> Iterator[Iterable[Check]]:
    """What is looked at of a config, of whatever kind: of one that uses a finished model nothing but its values."""
    taught_by = ''
    if 'distill' in config:
        taught_by = config.distill.teacher
        yield teacher(DistillationSettings(**config.distill), config.init)
    if 'task' in config and not at_work:
        settings = finetuning_settings(config)
        # A student begins as a part of its teacher: that is the most which it can cost.
        yield task(dataclasses.replace(settings, init=settings.init or taught_by), folder, done)
    elif 'corpus' in config:
        settings = with_architecture(pretraining_settings(config), folder, overridden)
        yield from _of_pretraining(settings, folder, done, total, at_work=at_work)


def _of_pretraining(
    settings: PretrainingSettings, folder: pathlib.Path, done: int, total: int | None, *, at_work: bool
) -> Iterator[Iterable[Check]]:
    yield plan.config(settings)
    yield text.tokenizer(settings, folder)
    yield text.corpus(settings, folder)
    size = text.vocab_size(settings, folder)
    try:
        total, model = total or plan.steps_of(settings), settings.model_config(size)
    except UserError:  # told by the first of these
        return
    yield plan.disk(settings, model, folder)
    if settings.topology:
        yield plan.on_slice(settings, done, total)
    elif not at_work:
        yield plan.here(settings, size, done, total)


def _conclude(findings: Findings) -> None:
    wrong, doubtful = findings.counts[FAIL], findings.counts[WARN]
    if wrong:
        found = f'{wrong} of {sum(findings.counts.values())} checks that failed'
        raise UserError('--config.run=doctor', found, 'none', f'do what stands behind each {FAIL} above')
    look = {0: '', 1: '; a line is worth a look'}.get(doubtful, f'; {doubtful} lines are worth a look')
    print(f'\nnothing stands in the way{look}')
