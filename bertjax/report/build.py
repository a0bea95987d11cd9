"""From the workdir to the page: which sections, in which order."""

from collections.abc import Callable

from bertjax.config.ranges import in_steps
from bertjax.corpus.sources import parse_mixture
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.task_data import TASK_FILE
from bertjax.finetune.trials import score_of
from bertjax.metrics.rows import pair_of
from bertjax.pages import parts
from bertjax.pages.page import Section, page
from bertjax.pretrain.chance_baselines import ChanceBaselines, compute_chance_baselines
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.text_data import open_stores
from bertjax.report.config import config
from bertjax.report.corpus import corpus
from bertjax.report.curves import curves
from bertjax.report.errors import errors
from bertjax.report.figures import figures, members, sweep, trials
from bertjax.report.fillings import fillings
from bertjax.report.overview import overview
from bertjax.report.run_record import Run, quiet
from bertjax.report.shown_rows import pretraining_rows, task_rows
from bertjax.report.speed import speed
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import load_tokenizer
from bertjax.workdir.lock import TRIALS

_FEW = 16  # records that are tokenised to show some rows


def build_page(run: Run) -> str:
    """The page of a run, as HTML."""
    parts_of = _task_sections(run) if run.is_task else _pretraining_sections(run)
    parts_of += [speed(run), config(run)] if len(run.models) < 2 else []  # else each has a config of its own
    sections = [part for part in parts_of if part is not None]
    return page(f'{_kind(run)}: {run.folder.resolve().name}', _about(run), sections, charts=True)


def _kind(run: Run) -> str:
    kinds = {
        'Sweep': run.is_sweep,
        'Ensemble': len(run.models) > 1,
        'Evaluation': run.is_evaluation,
        'Corpus': not run.recorded,
        'Distillation': run.is_distillation,
        'Fine-tuning': run.is_task,
    }
    return next((kind for kind, holds in kinds.items() if holds), 'Pre-training')


def _about(run: Run) -> str:
    chosen = run.config
    if run.is_task:
        task = ', '.join(str(x) for key, x in chosen['task'].items() if key in ('kind', 'task') and x)
        origin = chosen['init'] or (chosen['distill']['teacher'] if run.is_distillation else 'nothing')
        which = f'{len(run.models)} models together' if len(run.models) > 1 else f'from {origin}'
        return f'{task}, {which}, on {chosen["data"] or "tensorflow-datasets"}'
    model = chosen['model']
    layers = model['num_layers']
    sizes = f'{layers} layer{"s"[: layers != 1]}, width {model["width"]}, {model["num_heads"]} heads'
    taught_by = f', taught by {chosen["distill"]["teacher"]}' if run.recorded and run.is_distillation else ''
    return f'{sizes}{taught_by}, on {chosen["data"] or chosen["corpus"]}'


def _pretraining_sections(run: Run) -> list[Section | None]:
    try:
        settings = run.pretraining_settings()
        tokenizer = load_tokenizer(str(run.folder / 'tokenizer'))
        stores = open_stores(settings, run.folder, tokenizer, verify=False)
        examples = StoreExamples(settings, stores, tokenizer, run.folder / 'store' / 'plans')
        total = in_steps(run.config['steps'], 'steps') if run.recorded else 0
        level = compute_chance_baselines(settings, stores, examples, total) if run.recorded else ChanceBaselines()
    except UserError as error:  # the figures are there without the text
        level = ChanceBaselines(pair_of(run.config['pairs']['mode']))
        note = parts.note(f'The text is not there any more, and with it the examples: {error}')
        return [overview(run, level), curves(run, level), Section('corpus', 'Corpus', [note])]
    names = [spec for spec, _ in parse_mixture(settings.corpus)] if not settings.data else [settings.data]
    filled = None
    if run.recorded and not run.predicts:
        note = 'The teacher teaches what is computed on the way: the head for masks stays as it was drawn.'
        filled = Section('fillings', 'Held-out masks', [parts.note(note)])
    elif run.recorded and examples.has_heldout:
        heldout = examples.get(settings.first_shape, 'heldout', 0)
        filled = _or_note('fillings', 'Held-out masks', lambda: fillings(run, heldout, tokenizer))
    elif run.recorded:
        filled = Section('fillings', 'Held-out masks', [parts.note('No document is held out.')])
    train = lambda: examples.get(settings.first_shape, 'train', 0)  # noqa: E731
    rows = _or_note('examples', 'Examples', lambda: pretraining_rows(train(), tokenizer, settings.pair_options.mode))
    return [overview(run, level), curves(run, level), filled, rows, corpus(stores, names)]


def _task_sections(run: Run) -> list[Section | None]:
    found = trials(run) if run.is_sweep else []
    folder, whose = run.folder, ''
    if run.is_sweep:
        best = max(found, key=lambda item: score_of(item[1]))[0].name if found else ''
        folder, whose = run.folder / TRIALS / best, f'Of the best run, {best}.' if best else ''
        head = [sweep(run, found)]
    else:
        head = [overview(run, ChanceBaselines()), figures(run), members(run), curves(run, ChanceBaselines())]
    try:
        with quiet():
            task = _task(run)
    except UserError as error:
        return [*head, Section('errors', 'Errors', [parts.note(f'The task cannot be read any more: {error}')])]
    wrong = errors(run, task, folder, whose)
    if run.is_evaluation:
        return [*head, wrong]
    return [*head, wrong, _or_note('examples', 'Rows', lambda: _rows(run, task))]


def _task(run: Run) -> Task:
    """The task of the run, with the labels that it has learned."""
    task = run.finetuning_settings().build_task()
    for folder in (place for one in run.models or [run.folder] for place in (one, one / 'export' / 'hf')):
        facts = read_json_or_none(folder / TASK_FILE, lambda facts: dict(facts['learned']))
        if facts is not None:
            task.restore(facts)
            break
    return task


def _rows(run: Run, task: Task) -> Section:
    with quiet():
        tokenizer = load_tokenizer(str(run.folder / 'tokenizer'))
        records = task.records('train')[:_FEW]
        if not task.complete:
            task.learn(task.records('train'))
        features = task.features(records, tokenizer, training=True)
    return task_rows(features, list(task.labels), tokenizer)


def _or_note(name: str, title: str, build: Callable[[], Section]) -> Section:
    """A section, or a note why there is none."""
    try:
        return build()
    except UserError as error:
        return Section(name, title, [parts.note(f'Not shown: {error}')])
