"""Checks the outcome of a run, finished or not. Searches the training text for reasons why the run did not learn."""

import copy
import functools
import operator
import re
import statistics
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bertjax.checkpoint.steps import DAMAGED, finished_steps
from bertjax.config.check import config_keys
from bertjax.config.plain import flatten, from_plain
from bertjax.config.resume import BATCH_KEYS, check_resume
from bertjax.config.schema import Change
from bertjax.doctor.check import FAIL, OK, WARN, Check, check
from bertjax.doctor.text import learning_obstacles
from bertjax.files.paths import display_path
from bertjax.finetune.advice import advise
from bertjax.finetune.results import RESULTS, STOPPED
from bertjax.pretrain.chance_baselines import read_chance_baselines
from bertjax.pretrain.heldout import check_resumed_heldout_texts
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.text_data import (
    check_resumed_text,
    has_stores,
    joined_fingerprint,
    load_extended_tokenizer,
    open_stores,
)
from bertjax.pretrain.vocabulary import vocabulary_source
from bertjax.report.run_record import Run, quiet
from bertjax.text.tokenizer import load_tokenizer
from bertjax.training.health.goodput import read_goodput
from bertjax.training.health.goodput_clock import COMPILE, DATA, EVALUATION, RESTORE, SAVE, START
from bertjax.training.health.watchdog import HANG
from bertjax.training.record import STOP_AFTER_SKIPPED
from bertjax.workdir.differences import resolve_like
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import TRIALS
from bertjax.workdir.tokenizer import FOLDER, load_workdir_tokenizer

STUCK_SHARE = 0.98  # a loss above this share of the unigram entropy shows that the model does not use any context
MIN_EXAMPLES = 50_000  # after fewer examples, most new models have learned only the frequencies of the pieces
RISE = 0.3  # nats; a stuck held-out loss has diverged if it is above its lowest value by more than this
SLOW_INPUT = 0.1  # a larger share of the step time spent waiting for data is a problem
GOOD_GOODPUT = 0.9  # a higher goodput needs no advice
_SHORT = 600.0  # seconds; the start-up dominates the goodput of a shorter run
# {cause of unproductive time: advice}.
_ADVICE = {
    'lost': '--config.checkpoint_minutes=10',
    START: 'build the vocabulary and the store first, with --config.run=corpus',
    COMPILE: 'set JAX_COMPILATION_CACHE_DIR to keep compiled programs',
    DATA: 'see the line "input"',
    EVALUATION: 'raise config.eval_every, or lower config.eval_examples',
    SAVE: 'save less often (config.checkpoint_every), or to a faster disk',
    RESTORE: 'read checkpoints from a faster disk',
}


def steps_done(run: Run) -> tuple[int, int | None]:
    """Returns the step of the newest checkpoint (0 if none) and the total steps (None if unknown)."""
    steps = finished_steps(run.folder / 'checkpoints')
    return (steps[-1] if steps else 0), run.total_steps


@check('run')
def progress(run: Run, *, at_work: bool) -> Iterator[Check]:
    """Reports the progress of the run, damaged checkpoints, and a hang."""
    folder = run.folder
    if run.is_sweep:
        trials = list((folder / TRIALS).glob('*'))
        done = sum((trial / RESULTS).exists() for trial in trials)
        yield Check('run', OK, f'a sweep, with {done:,} of its {len(trials):,} started runs finished')
        return
    newest_step, total = steps_done(run)
    last = max(run.steps, newest_step)
    is_finished = _is_last_step(run, last)
    position = f'step {last:,}' if total is None else f'step {last:,} of {total:,}'
    if at_work or is_finished:
        yield Check('run', OK, f'{"at work" if at_work else "finished"}, {position}')
    else:
        newest = f'the newest checkpoint is of step {newest_step:,}' if newest_step else 'there is no checkpoint yet'
        yield Check('run', WARN, f'ended at {position}, {newest}', 'the same command continues the run')
    for path in sorted((folder / 'checkpoints' / DAMAGED).glob('*')):
        yield Check('checkpoints', WARN, f'{path} is damaged, and was set aside', 'check the disk')
    if (folder / HANG).exists() and not is_finished:
        reason = (folder / HANG).read_text(encoding='utf-8', errors='replace').partition('\n')[0]
        fix = f'{folder / HANG} has the stacks of all threads; the same command continues'
        yield Check('hang', WARN, reason.removeprefix('stopped: ').partition(' (')[0], fix)


def _is_last_step(run: Run, step: int) -> bool:
    """Returns whether the run ended at `step`: at its full length, or where config.patience ended it."""
    return step in (run.total_steps, (run.results() or {}).get(STOPPED))


def with_set_keys(
    run: Run, config: Mapping[str, Any], command_line_keys: Collection[str], flag_keys: Collection[str]
) -> dict[str, Any]:
    """Returns the recorded config of a run, in plain form, with the values of `config` for `flag_keys`.

    It also has the values of `config` for the other `command_line_keys` that must not change or that may change the
    batches of a task. Keys that the run chooses itself, for example with config.budget, keep the recorded values unless
    `flag_keys` has them.
    """
    known = config_keys(config)
    fixed = {key for key in command_line_keys if key in known and known[key].change is Change.STATE}
    names = {*flag_keys, *fixed, *(key for key in command_line_keys if key.startswith(BATCH_KEYS))}
    names |= {'steps'} if 'epochs' in names else set()  # the epochs decide the steps
    names |= {'tokenizer'} if 'distill.teacher' in names else set()  # the teacher decides the vocabulary
    if 'batch_size' not in names:  # the steps of an epoch depend on the batch size
        config = {**config, 'batch_size': run.config['batch_size']}
    resolved, merged = flatten(resolve_like(config, run.config, flag_keys)), copy.deepcopy(dict(run.config))
    for name in names & resolved.keys() & flatten(run.config).keys():
        # An entry of a list has a number, such as phases[1].batch_size.
        *groups, key = (int(part) if part.isdigit() else part for part in re.findall(r'[^.[\]]+', name))
        functools.reduce(operator.getitem, groups, merged)[key] = resolved[name]
    return merged


@check('resume')
def resume(run: Run, done: int, config: Mapping[str, Any], *, at_work: bool) -> Iterator[Check]:
    """Fails if the run cannot continue after the step `done` with `config`, the result of `with_set_keys`.

    The text of an unfinished pre-training is compared with the text of its token stores, unless the run is at work.
    """
    # Where config.patience ended a run, only a higher limit or none continues it.
    stopped = done == (run.results() or {}).get(STOPPED) and 0 < config['patience'] <= run.config['patience']
    finished = stopped or done == config['steps']
    settings = None if finished or run.is_task else pretraining_settings(from_plain(config))
    if settings and settings.distill and not settings.tokenizer:
        config = {**config, 'tokenizer': vocabulary_source(settings)}
    changes = check_resume(run.config, config, display_path(run.folder), finished=finished)
    if settings and not at_work:
        _check_inputs(run, settings)
    if not changes:
        return
    status, fix = OK, ''
    if run.is_task and any(line.startswith(BATCH_KEYS) for line in changes):
        status, fix = WARN, 'keep the old values, unless the training rows stay the same'
    yield Check('resume', status, 'changed keys: ' + ', '.join(changes), fix)


def _check_inputs(run: Run, settings: PretrainingSettings) -> None:
    """Raises the UserError with which the resumed run would refuse its tokenizer, text or token stores.

    The run makes a missing tokenizer or store again. A tokenizer that it would have to train is not checked.
    """
    with quiet():
        if (run.folder / FOLDER).exists():
            tokenizer = load_workdir_tokenizer(run.folder)
        elif source := vocabulary_source(settings):
            tokenizer = load_extended_tokenizer(settings, source)
        else:
            return
        current = {'tokenizer': tokenizer.fingerprint}
        check_resumed_text(settings, run.folder, tokenizer)
        if has_stores(settings, run.folder):
            stores = open_stores(settings, run.folder, tokenizer, verify=False)
            check_resumed_heldout_texts(settings, run.folder, tokenizer, stores)
            current['store'] = joined_fingerprint(stores)
    recorded = {name: run.config['fingerprints'][name] for name in current}
    check_resume({'fingerprints': recorded}, {'fingerprints': current}, display_path(run.folder))


@check('numbers')
def not_finite(run: Run) -> Iterator[Check]:
    """Counts the steps whose loss, gradient or update was not finite."""
    rows = [row for row in run.rows_of('train') if row.get('skipped') is not None]
    count = rows[-1]['skipped'] if rows else 0
    if not count:
        yield from [Check('numbers', OK, 'every step was finite')] if rows else []
        return
    before = max((row['step'] for row in rows if not row['skipped']), default=0)
    grown = count - (rows[-2]['skipped'] if len(rows) > 1 else 0)
    message = f'{count:,} step{"s were" if count > 1 else " was"} not finite, the first after step {before:,}'
    key, rate = _peak_rate(run.config)
    fix = f'--config.{key}={rate / 2:g}, or a larger config.warmup_fraction'
    if not run.config['optimizer']['clip_norm']:
        fix = '--config.optimizer.clip_norm=1'
    may_stop = grown >= STOP_AFTER_SKIPPED and not _is_last_step(run, run.steps)
    if rows[-1]['loss'] is None or may_stop:  # non-finite steps ended the run, or may end it soon
        yield Check('numbers', FAIL, f'{message}, including recent steps', fix)
    else:
        yield Check('numbers', WARN, message, fix)


def _peak_rate(config: Mapping[str, Any]) -> tuple[str, float]:
    """Returns the key and the value of the peak learning rate, of the first phase if every phase has its own rate."""
    rates = [phase['learning_rate'] for phase in config.get('phases') or ()]
    return ('phases[0].learning_rate', rates[0]) if rates and all(rates) else ('learning_rate', config['learning_rate'])


def _examples_until(config: Mapping[str, Any], step: int) -> int:
    """Returns the number of examples (rows if packed) in the first `step` steps of a run."""
    phases = pretraining_settings(from_plain(config)).resolve_phases(config['steps'])
    return sum(phase.examples_until(step) for phase in phases)


@check('MLM loss')
def mlm_loss(run: Run) -> Iterator[Check]:
    """Compares the held-out loss with the unigram entropy. If the loss is not clearly lower, looks for reasons."""
    rows = [row for row in run.rows_of('heldout') if row.get('mlm_loss') is not None]
    if not rows or not rows[-1]['step'] or not run.trains_outputs:
        return
    unigram = read_chance_baselines(run.folder).unigram
    if unigram is None:
        return
    step, last, lowest = rows[-1]['step'], rows[-1]['mlm_loss'], min(row['mlm_loss'] for row in rows)
    message = f'{last:.3f} held out at step {step:,}; a model without context can reach {unigram:.3f}'
    if last < STUCK_SHARE * unigram:
        yield Check('MLM loss', OK, message)
        return
    obstacles = _obstacles(run)
    reasons, fixes = ' and '.join(obstacles), ', '.join(obstacles.values())
    examples, (rate_key, rate) = _examples_until(run.config, step), _peak_rate(run.config)
    if examples < MIN_EXAMPLES:
        message += f', after only {examples:,} examples' + (f', and {reasons}' if reasons else '')
        key = 'budget' if run.config['budget'] else 'steps'
        yield Check('MLM loss', WARN, message, ', and '.join(filter(None, [f'train longer (config.{key})', fixes])))
    elif reasons:
        yield Check('MLM loss', FAIL, f'stuck, {message}: {reasons}', fixes)
    elif last > lowest + RISE:
        fix = f'--config.{rate_key}={rate / 2:g}, or a longer warm-up'
        yield Check('MLM loss', FAIL, f'{message}; its lowest value was {lowest:.3f}', fix)
    else:
        fix = f'--config.{rate_key}={2 * rate:g} or {rate / 2:g}, or a smaller model'
        yield Check('MLM loss', FAIL, f'stuck, {message}, and the text shows no reason', fix)


def _obstacles(run: Run) -> dict[str, str]:
    """Returns the obstacles to learning in the run's text, as {obstacle: next step}."""
    tokenizer, obstacles = load_tokenizer(str(run.folder / FOLDER)), {}
    for store in open_stores(run.pretraining_settings(), run.folder, tokenizer, verify=False):
        obstacles |= learning_obstacles(store.report)
    return obstacles


@check('seeds')
def collapsed(run: Run) -> Iterator[Check]:
    """Counts the fine-tuning runs that give nearly the same answer to every record."""
    folders = sorted((run.folder / TRIALS).glob('*')) if run.is_sweep else [run.folder]
    results: dict[str, Any] = {x.name: read_recorded_results(x / RESULTS) for x in folders if (x / RESULTS).exists()}
    names = [name for name, run_results in results.items() if run_results.get('collapsed')]
    if results and not names:
        runs = f'all {len(results):,} runs give' if run.is_sweep else 'the run gives'
        yield Check('seeds', OK, f'{runs} different answers to different records')
    elif names and not run.is_sweep:
        yield Check('seeds', FAIL, 'the same answer for every record', advise(run.rows, run.config['learning_rate']))
    elif names:
        listed = ', '.join(names[:3]) + (' …' if len(names) > 3 else '')
        status = FAIL if len(names) == len(results) else WARN
        fix = '' if status == FAIL else 'use the best run on dev; or '
        fix += 'a lower learning rate and more epochs; or a larger config.warmup_fraction'
        found = f'{len(names)} of {len(results)} runs failed or give nearly the same answer to every record: {listed}'
        yield Check('seeds', status, found, fix)


@check('input')
def slow_input(run: Run) -> Iterator[Check]:
    """Checks the median share of step time spent waiting for data, without the first log row and its start-up."""
    shares = [row['data_wait'] for row in run.rows_of('train') if row.get('data_wait') is not None][1:]
    if not shares:
        return
    share = statistics.median(shares)
    message = f'{share:.1%} of the time of steps was spent waiting for data'
    if share > SLOW_INPUT:
        fix = 'put WORKDIR/store or config.data on a local disk, and give the process more cores'
        yield Check('input', WARN, message, fix)
    else:
        yield Check('input', OK, message)


@check('goodput')
def goodput(run: Run) -> Iterator[Check]:
    """Checks the goodput, and gives advice on the largest unproductive part of the wall time."""
    times = read_goodput(run.folder)
    if times is None:
        return
    if times.share >= GOOD_GOODPUT or times.total < _SHORT:
        yield Check('goodput', OK, str(times))
    else:
        largest = max(times.seconds.keys() & _ADVICE.keys(), key=times.seconds.__getitem__)
        yield Check('goodput', WARN, str(times), _ADVICE[largest])
