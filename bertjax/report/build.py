"""Builds the report of a workdir: selects the sections and their order."""

from collections.abc import Callable

from bertjax.checkpoint.position import Position
from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import to_plain
from bertjax.config.ranges import in_steps
from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.report import report_counts, sentence_lengths
from bertjax.corpus.sources import parse_mixture
from bertjax.corpus.store import TokenStore
from bertjax.data.loader import Examples
from bertjax.errors import UserError
from bertjax.finetune.task_data import TASK_FILE
from bertjax.finetune.trials import dev_score
from bertjax.metrics.rows import pair_name
from bertjax.pages.charts import BarChart
from bertjax.pages.page import Section, render_page
from bertjax.pretrain.chance_baselines import ChanceBaselines, compute_chance_baselines
from bertjax.pretrain.examples import StoreExamples
from bertjax.report.curves import curves_section
from bertjax.report.examples import fillings_section, pretraining_examples, task_examples
from bertjax.report.overview import overview_section, speed_section
from bertjax.report.results import errors_section, figures_section, finished_trials, members_section, sweep_section
from bertjax.report.run_record import Run, quiet
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import load_tokenizer
from bertjax.workdir.differences import comparable_keys, find_differences, format_literal, resolve_like, task_kind
from bertjax.workdir.exports import LOADABLE
from bertjax.workdir.files import read_recorded_task
from bertjax.workdir.lock import TRIALS

TEMPLATE = 'report.html.j2'
_MAX_TOKENIZED = 16  # the maximum number of records to tokenize for the rows on the page


def build_page(run: Run) -> str:
    """Returns the page of a run, as HTML."""
    sections = _task_sections(run) if run.is_task else _pretraining_sections(run)
    if len(run.models) < 2:  # the members of an ensemble have reports of their own
        sections += [speed_section(run), _config_section(run)]
    title = f'{_kind(run)}: {run.folder.resolve().name}'
    return render_page(TEMPLATE, title, _about(run), [part for part in sections if part is not None], charts=True)


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
    config = run.config
    if run.is_task:
        task = ', '.join(str(x) for key, x in config['task'].items() if key in ('kind', 'task') and x)
        origin = config['init'] or (config['distill']['teacher'] if run.is_distillation else 'nothing')
        models = f'{len(run.models)} models together' if len(run.models) > 1 else f'from {origin}'
        return f'{task}, {models}, on {config["data"] or "tensorflow-datasets"}'
    model = config['model']
    layers = model['num_layers']
    sizes = f'{layers} layer{"s"[: layers != 1]}, width {model["width"]}, {model["num_heads"]} heads'
    teacher = f', distilled from {config["distill"]["teacher"]}' if run.recorded and run.is_distillation else ''
    return f'{sizes}{teacher}, on {config["data"] or config["corpus"]}'


def _pretraining_sections(run: Run) -> list[Section | None]:
    try:
        settings = run.pretraining_settings()
        examples = StoreExamples.open(settings, run.folder)
        baselines = ChanceBaselines()
        if run.recorded:
            baselines = compute_chance_baselines(examples, in_steps(run.config['steps'], 'steps'))
    except UserError as error:  # show the metrics, which do not need the text
        baselines = ChanceBaselines(pair_name(run.config['pairs']['mode']))
        note = f'The text and its examples are no longer available: {error}'
        corpus = Section('corpus', 'Corpus', note=note)
        return [overview_section(run, baselines), curves_section(run, baselines), corpus]
    names = [spec for spec, _ in parse_mixture(settings.corpus)] if not settings.data else [settings.data]
    filled, mode = None, settings.pair_options.mode
    if run.recorded and run.trains_outputs and examples.has_heldout:
        heldout = lambda: examples.get(settings.first_shape, 'heldout')  # noqa: E731
        filled = _or_note('fillings', 'Held-out masks', lambda: fillings_section(run, heldout(), examples.tokenizer))
    elif run.recorded:
        untrained = 'This distillation trains only hidden states, so the MLM head still has its initial weights.'
        note = 'No document is held out.' if run.trains_outputs else untrained
        filled = Section('fillings', 'Held-out masks', note=note)

    def training() -> Examples:
        return examples.get_training(settings.resolve_phases(examples.total_steps)[0], Position())

    rows = _or_note('examples', 'Examples', lambda: pretraining_examples(training(), examples.tokenizer, mode))
    corpus = _corpus_section(examples.stores, names)
    return [overview_section(run, baselines), curves_section(run, baselines), filled, rows, corpus]


def _task_sections(run: Run) -> list[Section | None]:
    folder, about = run.folder, ''
    if run.is_sweep:
        trials = finished_trials(run)
        sections = [sweep_section(run, trials)]
        if trials:
            best = max(trials, key=lambda item: dev_score(item[1]))[0].name
            folder, about = run.folder / TRIALS / best, f'From the best run, {best}.'
    else:
        sections = [
            overview_section(run, ChanceBaselines()),
            figures_section(run),
            members_section(run),
            curves_section(run, ChanceBaselines()),
        ]
    sections.append(_or_note('errors', 'Errors on dev', lambda: errors_section(run, _task(run), folder, about)))
    if not run.is_evaluation:
        sections.append(_or_note('examples', 'Rows', lambda: _rows(run)))
    return sections


def _task(run: Run) -> Task:
    """Returns the task of the run with its learned labels."""
    task = run.finetuning_settings().build_task()
    exports = [f'export/{name}' for name in LOADABLE]
    for folder in (model / name for model in run.models or [run.folder] for name in ('', *exports)):
        if (folder / TASK_FILE).exists():
            read_recorded_task(folder / TASK_FILE, task)  # also restores the learned state, such as labels
            break
    return task


def _rows(run: Run) -> Section:
    task, tokenizer = _task(run), load_tokenizer(str(run.folder / 'tokenizer'))
    records = task.records('train')
    if not task.complete:
        task.learn(records)
    features = task.features(records[:_MAX_TOKENIZED], tokenizer, training=True)
    return task_examples(features, list(task.labels), tokenizer)


def _or_note(name: str, title: str, build: Callable[[], Section]) -> Section:
    """Returns the section that `build` returns, or a section with only a note if `build` raises a UserError."""
    try:
        with quiet():
            return build()
    except UserError as error:
        return Section(name, title, note=f'Not shown: {error}')


def _corpus_section(stores: list[TokenStore], names: list[str]) -> Section:
    """Returns the section with the corpus reports of the stores. `names` are the titles of the reports."""
    reports, total = [], sum(store.weight for store in stores)
    for name, store in zip(names, stores, strict=True):
        report = store.report
        # Splits an entry such as 'Tokens': '5,760 (8.0 a sentence)' into three cells.
        cells = [(label, *text.rstrip(')').partition(' (')[::2]) for label, text in report_counts(report).items()]
        lengths = {label: (count, f'{count:,}') for label, count in sentence_lengths(report).items()}
        reports.append(
            {
                'title': name + (f', {store.weight / total:.3g} of the examples' if len(stores) > 1 else ''),
                'counts': [(label.replace('  ', '… '), *rest) for label, *rest in cells],
                'lengths': BarChart('Sentences by length in tokens', lengths),
                'problems': [f'{kind}: {line}' for kind, lines in report['problems'].items() for line in lines],
                'warnings': [*report['warnings'], *warn_long_documents(store)],
            }
        )
    return Section('corpus', 'Corpus', reports)


def _config_section(run: Run) -> Section:
    """Returns the section with the config of the run and its differences from the recipe."""
    data = {
        'recipe': run.recipe,
        'all': [(key, format_literal(value)) for key, value in comparable_keys(run.config).items()],
        'fingerprints': sorted(run.config.get('fingerprints', {}).items()),
        'differences': None,
        'error': '',
    }
    try:
        recipe = to_plain(load_recipe(find_recipe(run.recipe)))
    except UserError as error:
        return Section('config', 'Config', data | {'error': error})
    if task_kind(recipe) == task_kind(run.config):
        recipe = resolve_like(recipe, run.config) if run.recorded else recipe
        data['differences'] = find_differences(recipe, run.config)
    return Section('config', 'Config', data)
