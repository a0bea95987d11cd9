"""run=attention: measure what each attention head attends to; write figures and a page, WORKDIR/attention."""

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from rich.table import Table

from bertjax.attention_analysis.analysis_input import (
    count_texts,
    has_trees,
    make_texts,
    read_chunks,
    split_texts,
    tree_relations,
)
from bertjax.attention_analysis.changes import check_comparable
from bertjax.attention_analysis.corpus_pass import measure
from bertjax.attention_analysis.findings import (
    PAGE,
    Findings,
    check_replaceable,
    describe_findings,
    make_findings,
    write_findings,
)
from bertjax.attention_analysis.heads import MEASURES
from bertjax.attention_analysis.relations import WORDS, best_heads_accuracy
from bertjax.attention_analysis.shown_texts import make_shown_texts
from bertjax.config.using import TextKeys, using_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.paths import unusual_kind
from bertjax.inference.input import STANDARD_INPUT, InputSource, make_columns
from bertjax.inference.runner import Runner
from bertjax.loading.load_model import LoadedModel, load_compared_model, load_requested_model
from bertjax.pages.charts import check_plotly
from bertjax.progress import show_progress
from bertjax.remote.paths import user_path
from bertjax.terminal import Console
from bertjax.workdir.lock import lock_workdir

VERB = Verb()

_CHUNK = 1024  # texts in memory
_OFTEN = 100  # words of a relation that is shown in the terminal


def run(config: ConfigDict, workdir: str) -> None:
    """Measures the attention of config.init, or of the workdir's model, in config.input or config.attention.texts.

    Raises:
      UserError: no model, no text, a malformed file, or a model to compare with that is of another shape.
    """
    settings, folder = using_settings(config, 'attention'), pathlib.Path(workdir)
    asked, path = settings.options, settings.input
    texts = [make_texts(split_texts(asked['texts'], 'config.attention.texts'))] if asked['texts'] else []
    if not path and not texts:
        fix = 'give --config.input=FILE, or --config.attention.texts="(\'a text\',)"'
        raise UserError('config.input', 'nothing', 'texts to look at', fix)
    if texts and (asked['field'] != 'text' or asked['pair_field']):
        fix = 'leave them out, or give the records in a file, as config.input'
        raise UserError('config.attention.field, pair_field', 'fields of config.attention.texts', 'none', fix)
    check_replaceable(folder / 'attention', path)
    if asked['compare']:
        check_plotly()
    source = InputSource(path, make_columns(asked['field'], asked['pair_field'], 'config.attention'), tabs=True)
    relations, count = _looked_at(source, len(texts[0].first) if texts else 0)
    with lock_workdir(folder, results_only=True):
        model = load_requested_model(settings, folder)
        longest, before = settings.truncation_length(model.config, model.max_length), _before(settings, model)
        runner = Runner(model, batch_size=settings.batch_size)
        parts = read_chunks(source, _CHUNK, quiet=count is not None) if path else iter(texts)
        first = next(parts)
        with show_progress('texts', count, lines=True) as advance:
            totals = measure(
                runner,
                itertools.chain([first], parts),
                unit=asked['unit'],
                max_length=longest,
                relations=relations,
                before=before,
                advance=advance,
            )
        if not totals.sums:
            found = f'only sentences of more than {longest} tokens'
            raise UserError(path, found, 'shorter ones', 'raise config.max_length, or give other sentences')
        part, count = (texts[0], len(texts[0].first)) if texts else (first, asked['show'])
        shown = make_shown_texts(runner, part, relations, asked['unit'], count)
        found = make_findings(totals, asked['unit'], relations, model, before)
        name = '/'.join(pathlib.Path(settings.init or workdir).parts[-2:])
        write_findings(folder / 'attention', found, shown, f'Attention in {name}')
    _tell(found)
    print(folder / 'attention' / PAGE)


def _looked_at(source: InputSource, given: int) -> tuple[list[str], int | None]:
    """The relations of the input, and how many texts it has, which nobody knows of a pipe; a file is read to
    its end for it, so that what is wrong in it is told first. Without input, the texts that are `given`."""
    if not source.path:
        return [], given
    if has_trees(source.path):
        return tree_relations(source.path)
    if source.path == STANDARD_INPUT or unusual_kind(user_path(source.path, 'config.input')):
        return [], None
    count, blank = count_texts(source)
    if blank:
        print(f'{blank:,} of {count + blank:,} are blank, and passed over')
    return [], count


def _before(settings: TextKeys, model: LoadedModel) -> LoadedModel | None:
    path = settings.options['compare']
    if not path:
        return None
    before = load_compared_model(path, settings.dtype, 'config.attention.compare')
    check_comparable(before, model)
    return before


def _tell(found: Findings) -> None:
    """The most telling figures, for the terminal."""
    print(describe_findings(found))
    console = Console()
    console.print(_extremes(found))
    if found.relations:
        console.print(_syntax(found.relations))
    if found.changes:
        console.print(_moved(found))


def _extremes(found: Findings) -> Table:
    table = Table(title='the most pronounced heads', title_justify='left', box=None)
    for name in ('looks at', 'mean of all', 'most', 'by head'):
        table.add_column(name, justify='left' if name == 'looks at' else 'right')
    for name, (title, _, unit) in MEASURES.items():
        if unit == 'share':
            x = found.means[name]
            layer, head = np.unravel_index(x.argmax(), x.shape)
            table.add_row(title.replace('[', r'\['), f'{x.mean():.1%}', f'{x.max():.1%}', f'{layer + 1}-{head + 1}')
    return table


def _syntax(rows: Sequence[dict]) -> Table:
    table = Table(title='heads that find the syntactic head', title_justify='left', box=None)
    for name in ('relation', 'words', 'head', 'right', 'best offset', 'right by it'):
        table.add_column(name, justify='left' if name == 'relation' else 'right')
    frequent = [row for row in rows if row['words'] >= _OFTEN] or rows
    for row in frequent:
        offset, head = f'{row["offset"]:+d}', f'{row["layer"]}-{row["head"]}'
        table.add_row(
            row['relation'], f'{row["words"]:,}', head, f'{row["accuracy"]:.1%}', offset, f'{row["baseline"]:.1%}'
        )
    own = [row for row in rows if row['relation'] != WORDS]
    table.caption = f'each relation by its own best head: {best_heads_accuracy(own):.1%}'
    table.caption_justify = 'left'
    return table


def _moved(found: Findings) -> Table:
    table = Table(title='how far each layer moved', title_justify='left', box=None)
    for name in ('layer', 'parameters', 'hidden states, 1 - cos', 'attention, bits'):
        table.add_column(name, justify='right')
    for row in found.changes:
        attention = f'{row["attention"]:.4f}' if 'attention' in row else ''
        table.add_row(str(row['layer']), f'{row["parameters"]["whole"]:.4f}', f'{row["hidden"]:.4f}', attention)
    return table
