"""run=attention: compute statistics of the attention heads; write them as JSON and as a page to WORKDIR/attention."""

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from rich.markup import escape
from rich.table import Table

from bertjax.attention_analysis.analysis_input import inspect_input, parse_texts, read_chunks
from bertjax.attention_analysis.changes import check_comparable
from bertjax.attention_analysis.corpus_pass import Findings, measure
from bertjax.attention_analysis.findings import PAGE, check_replaceable, describe_findings, write_findings
from bertjax.attention_analysis.heads import MEASURES
from bertjax.attention_analysis.relations import MIN_WORDS, best_heads_accuracy
from bertjax.attention_analysis.shown_texts import make_shown_texts
from bertjax.config.inference import AttentionKeys, inference_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.inference.input import InputSource, make_columns
from bertjax.inference.runner import load_runner
from bertjax.loading.load_model import load_model
from bertjax.pages.charts import check_plotly
from bertjax.progress import show_progress
from bertjax.terminal import Console, make_table
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='attention')

_CHUNK = 1024  # the maximum number of texts in a chunk of the input
_PLAIN = {'box': None, 'padding': (0, 1)}  # the style of the tables


def run(config: ConfigDict, workdir: str) -> None:
    """Measures the attention in the texts of config.input, or of config.attention.texts if config.input is empty.

    Raises:
      UserError: There is no model or no text, a file is malformed, all sentences of a treebank are too long,
        WORKDIR/attention has files of the user, the model to compare with has another shape or tokenizer, or Plotly is
        missing.
    """
    settings, folder = inference_settings(config, 'attention'), pathlib.Path(workdir)
    options, path = settings.attention, settings.input
    texts = parse_texts(options.texts, 'config.attention.texts') if options.texts else []
    if not path and not texts:
        fix = 'give --config.input=FILE, or --config.attention.texts="(\'a text\',)"'
        raise UserError('config.input', 'nothing', 'texts to analyze', fix)
    if not path and (options.field != AttentionKeys.field or options.pair_field):
        found, fix = 'a name of a field', 'leave it out, or set config.input to a file with this field'
        expected = 'none, because config.attention.texts has no fields'
        raise UserError('config.attention.field, pair_field', found, expected, fix)
    check_replaceable(folder / 'attention', path)
    if options.compare:
        check_plotly()
    source = InputSource(path, make_columns(options.field, options.pair_field, 'config.attention'), tabs=True)
    relations, count = inspect_input(source) if path else ([], len(texts))
    with lock_workdir(folder, results_only=True):
        runner = load_runner(settings, folder)
        reference = None
        if options.compare:
            reference = load_model(options.compare, dtype=settings.dtype, key='config.attention.compare')
            print(reference.summary)
            check_comparable(reference, runner.model)
        parts = read_chunks(source, _CHUNK, quiet=count is not None) if path else iter([texts])
        first = next(parts)
        with show_progress('texts', count, lines=True) as advance:
            how = {'unit': options.unit, 'relations': relations, 'before': reference}
            findings = measure(runner, itertools.chain([first], parts), **how, advance=advance)
        if findings is None:
            found = f'only sentences of more than {runner.max_length} tokens'
            is_raisable = runner.max_length < runner.model.config.max_positions
            fix = ('raise config.max_length, or ' if is_raisable else '') + 'give other sentences'
            raise UserError(path, found, 'shorter sentences', fix)
        shown, count = (texts, len(texts)) if texts else (first, options.show)
        examples = make_shown_texts(runner, shown, relations, options.unit, count)
        name = '/'.join(pathlib.Path(settings.init or workdir).parts[-2:])
        write_findings(folder / 'attention', findings, examples, f'Attention in {name}')
    print(describe_findings(findings))
    console = Console()
    console.print(_extremes_table(findings))
    if findings.relations:
        console.print(_relations_table(findings.relations))
    if findings.changes:
        console.print(_changes_table(findings))
    print(folder / 'attention' / PAGE)


def _extremes_table(findings: Findings) -> Table:
    table = make_table('the most pronounced heads', 'looks at', 'mean of all', 'most', 'by head', **_PLAIN)
    for name, (title, _, unit) in MEASURES.items():
        if unit == 'share':
            x = findings.means[name]
            layer, head = np.unravel_index(x.argmax(), x.shape)
            table.add_row(escape(title), f'{x.mean():.1%}', f'{x.max():.1%}', f'{layer + 1}-{head + 1}')
    return table


def _relations_table(rows: Sequence[dict]) -> Table:
    names = ('relation', 'words', 'head', 'right', 'best offset', 'right by offset')
    table = make_table('heads that find the syntactic head', *names, **_PLAIN)
    frequent = [row for row in rows if row['words'] >= MIN_WORDS] or rows
    for row in frequent:
        best_head = (f'{row["layer"]}-{row["head"]}', f'{row["accuracy"]:.1%}')
        best_offset = (f'{row["offset"]:+d}', f'{row["baseline"]:.1%}')
        table.add_row(escape(row['relation']), f'{row["words"]:,}', *best_head, *best_offset)
    table.caption = f'each relation by its best head: {best_heads_accuracy(rows):.1%}'
    table.caption_justify = 'left'
    return table


def _changes_table(findings: Findings) -> Table:
    names = ('layer', 'parameters', 'hidden states, 1 - cos', 'attention, bits')
    table = make_table('how far each layer moved', *names, **_PLAIN)
    for row in findings.changes:
        attention = f'{row["attention"]:.4f}' if 'attention' in row else ''
        table.add_row(str(row['layer']), f'{row["parameters"]["whole"]:.4f}', f'{row["hidden"]:.4f}', attention)
    return table
