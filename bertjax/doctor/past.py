"""What became of a run, finished or not: each trouble in one line, with its cause where the run's own text shows it."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.checkpoint.unfinished import DAMAGED, finished_steps
from bertjax.doctor.check import FAIL, OK, WARN, Check, looking_at
from bertjax.doctor.text import causes, joined
from bertjax.errors import UserError
from bertjax.finetune.advice import advise
from bertjax.finetune.results import RESULTS, STOPPED
from bertjax.metrics.rows import pair_of, with_pair_names
from bertjax.pretrain.chance_baselines import read_chance_baselines
from bertjax.pretrain.text_data import open_stores
from bertjax.report.run_record import Run
from bertjax.text.tokenizer import load_tokenizer
from bertjax.train.goodput import Goodput, read_goodput
from bertjax.train.goodput_clock import COMPILE, DATA, EVALUATION, RESTORE, SAVE, START
from bertjax.train.record import STOP_AFTER_SKIPPED
from bertjax.train.watchdog import HANG
from bertjax.workdir.files import recorded_results
from bertjax.workdir.lock import TRIALS
from bertjax.workdir.resolve_path import huggingface_directory

STUCK = 0.98  # of the loss of a model that knows no context: what has learned any is below it
BEGUN = 50_000  # examples: below, a model from nothing has seldom learned more than how frequent each piece is
ROSE = 0.3  # nats above the lowest held-out loss
MUCH_WAITING = 0.1  # of the time
GOOD, _SHORT = 0.9, 600.0  # a share of productive steps that needs no word; seconds, in which a start weighs too much
# What to do about what takes time from the steps.
_LESS = {
    'lost': '--config.checkpoint_minutes=10',
    START: 'build vocabulary and store before, with --config.run=corpus',
    COMPILE: 'keep compiled programs, in JAX_COMPILATION_CACHE_DIR',
    DATA: 'see the line on its input',
    EVALUATION: 'raise config.eval_every, or lower config.eval_examples',
    SAVE: 'save less often (config.checkpoint_every), or to a faster disk',
    RESTORE: 'read checkpoints from a faster disk',
}


@looking_at('run')
def standing(run: Run, *, at_work: bool) -> Iterator[Check]:
    """How far it came, and what lies there that should not."""
    folder, total = run.folder, run.config.get('steps')
    if run.is_sweep:
        trials = list((folder / TRIALS).glob('*'))
        done = sum((trial / RESULTS).exists() for trial in trials)
        yield Check('run', OK, f'a sweep, {done:,} of the {len(trials):,} runs that were begun are finished')
        return
    saved = finished_steps(folder / 'checkpoints')
    last = max([run.steps, *saved])
    stopped = (run.results() or {}).get(STOPPED) == last
    there = f'step {last:,} of {total:,}' if isinstance(total, int) else f'step {last:,}'
    newest = f'the newest checkpoint is of step {saved[-1]:,}' if saved else 'there is no checkpoint yet'
    finished = last == total or stopped
    if at_work:
        yield Check('run', OK, f'at work, {there}')
    elif finished:
        yield Check('run', OK, f'finished, {there}')
    else:
        yield Check('run', WARN, f'ended at {there}, {newest}', 'the same command continues there')
    for path in sorted((folder / 'checkpoints' / DAMAGED).glob('*')):
        yield Check('checkpoints', WARN, f'{path} is damaged, and was set aside', 'look after the disk')
    if (folder / HANG).exists() and not finished:
        said = (folder / HANG).read_text(encoding='utf-8', errors='replace').partition('\n')[0]
        fix = f'{folder / HANG} has the stacks; the same command goes on'
        yield Check('hang', WARN, said.removeprefix('stopped: ').partition(' (')[0], fix)


@looking_at('numbers')
def not_finite(run: Run) -> Iterator[Check]:
    """Steps whose loss or gradient was not finite."""
    rows = [row for row in run.rows if row['split'] == 'train' and row.get('skipped') is not None]
    if not rows:
        return
    count, rate = rows[-1]['skipped'], run.config['learning_rate']
    if not count:
        yield Check('numbers', OK, 'every step was finite')
        return
    first = next(row['step'] for row in rows if row['skipped'])
    before = max((row['step'] for row in rows if row['step'] < first), default=0)
    fix = f'--config.learning_rate={rate / 2:g}, or a longer config.warmup_fraction'
    if not run.config['optimizer']['clip_norm']:
        fix = '--config.optimizer.clip_norm=1'
    found = f'{count:,} steps were not finite, the first after step {before:,}'
    ended = _last_are_not_finite(rows)
    yield Check('numbers', FAIL if ended else WARN, found + (', as were the last ones' if ended else ''), fix)


def _last_are_not_finite(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether that is what ended the run, or is about to."""
    grown = rows[-1]['skipped'] - (rows[-2]['skipped'] if len(rows) > 1 else 0)
    return rows[-1]['loss'] is None or grown >= STOP_AFTER_SKIPPED


@looking_at('MLM loss')
def stuck(run: Run) -> Iterator[Check]:
    """Whether a pre-training has learned more than how frequent each piece is; if not, why."""
    rows = [with_pair_names(row, pair_of(run.config['pairs']['mode'])) for row in run.rows]
    held = [row for row in rows if row['split'] == 'heldout' and row.get('mlm_loss') is not None]
    level = read_chance_baselines(run.folder).unigram
    if not held or level is None or not held[-1]['step']:
        return
    last, lowest = held[-1]['mlm_loss'], min(row['mlm_loss'] for row in held)
    found = f'held out {last:.3f} at step {held[-1]["step"]:,}, {level:.3f} without any context'
    if last < STUCK * level:
        yield Check('MLM loss', OK, found)
        return
    whys, fix = joined(_whys(run))
    seen = held[-1]['step'] * run.config['batch_size']
    if seen < BEGUN:
        longer = ', and '.join(filter(None, ['train longer (config.steps)', fix]))
        besides = f', and {whys}' if whys else ''
        yield Check('MLM loss', WARN, f'{found}, after no more than {seen:,} examples{besides}', longer)
    elif whys:
        yield Check('MLM loss', FAIL, f'stuck, {found}: {whys}', fix)
    elif last > lowest + ROSE:
        rate = f'--config.learning_rate={run.config["learning_rate"] / 2:g}'
        yield Check('MLM loss', FAIL, f'{found}, and it was {lowest:.3f} before', f'{rate}, or a longer warm-up')
    else:
        rate = run.config['learning_rate']
        fix = f'--config.learning_rate={2 * rate:g} or {rate / 2:g}, or a smaller model'
        yield Check('MLM loss', FAIL, f'stuck, {found}, and the text shows no reason', fix)


def _whys(run: Run) -> Iterator[tuple[str, str]]:
    """What of its text and its vocabulary keeps it from learning."""
    tokenizer = load_tokenizer(str(run.folder / 'tokenizer'))
    init = run.config['init']
    if init and not run.config['vocab'].get('add'):
        try:
            before = load_tokenizer(huggingface_directory(init))
        except UserError:  # gone: a run needs it no more
            before = tokenizer
        if before.fingerprint != tokenizer.fingerprint:
            yield f'its vocabulary is not that of {init}', 'leave config.tokenizer empty'
    for weighted in open_stores(run.pretraining_settings(), run.folder, tokenizer, verify=False):
        yield from causes(weighted.store.report)


@looking_at('seeds')
def collapsed(run: Run) -> Iterator[Check]:
    """Runs over a task that give every record the same answer."""
    if not run.is_task:
        return
    places = sorted((run.folder / TRIALS).glob('*')) if run.is_sweep else [run.folder]
    each = {place: recorded_results(place / RESULTS) for place in places if (place / RESULTS).exists()}
    fell = [place for place, results in each.items() if results.get('collapsed')]
    if not each:
        return
    if not fell:
        which = f'all {len(each):,} runs give' if run.is_sweep else 'it gives'
        yield Check('seeds', OK, f'{which} different answers to different records')
    elif not run.is_sweep:
        yield Check('seeds', FAIL, 'the same answer for every record', advise(run.rows, run.config['learning_rate']))
    else:
        named = ', '.join(place.name for place in fell[:3]) + (' …' if len(fell) > 3 else '')
        fix = 'take the best on dev, a lower rate with more epochs, or a longer config.warmup_fraction'
        status = FAIL if len(fell) == len(each) else WARN
        yield Check('seeds', status, f'{len(fell)} of {len(each)} runs learned nothing: {named}', fix)


@looking_at('input')
def slow_input(run: Run) -> Iterator[Check]:
    """Whether steps waited for their data."""
    waited = [row['data_wait'] for row in run.rows if row['split'] == 'train' and row.get('data_wait') is not None]
    if not waited:
        return
    share = statistics.median(waited[1:] or waited)
    found = f'{share:.1%} of the time of steps was spent waiting for data'
    if share > MUCH_WAITING:
        fix = 'put WORKDIR/store or config.data on a local disk, and give the process more cores'
        yield Check('input', WARN, found, fix)
    else:
        yield Check('input', OK, found)


@looking_at('goodput')
def wall_time(run: Run) -> Iterator[Check]:
    """Where the wall time went."""
    found = read_goodput(run.folder)
    if found is None:
        return
    if found.share >= GOOD or found.total < _SHORT:
        yield Check('goodput', OK, str(found))
    else:
        yield Check('goodput', WARN, str(found), _LESS[_largest(found)])


def _largest(found: Goodput) -> str:
    return max((kind for kind in found.seconds if kind in _LESS), key=found.seconds.__getitem__)


def became(run: Run, *, at_work: bool) -> Iterator[Iterator[Check]]:
    """All that is looked at of a run."""
    yield standing(run, at_work=at_work)
    yield not_finite(run)
    if not run.is_task and run.predicts:
        yield stuck(run)
    yield collapsed(run)
    yield slow_input(run)
    yield wall_time(run)


def begun(run: Run) -> tuple[int, int | None]:
    """(step of the newest checkpoint, steps in all) of a run; 0 before the first, None where it is not known."""
    saved, total = finished_steps(run.folder / 'checkpoints'), run.config.get('steps')
    return (saved[-1] if saved else 0), total if isinstance(total, int) else None
