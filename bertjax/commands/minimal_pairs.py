"""run=minimal_pairs: measure how often the model prefers the good sentence of minimal pairs such as BLiMP's."""

import hashlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.markup import escape
from rich.table import Table

from bertjax.config.inference import inference_settings
from bertjax.config.verb import Verb
from bertjax.files.atomic import AtomicFile
from bertjax.finetune.results import json_lines, merge_answers
from bertjax.inference.input import InputSource
from bertjax.inference.overwrite_guard import ResultFiles
from bertjax.inference.runner import load_runner
from bertjax.inference.score import compute_scores
from bertjax.progress import show_progress
from bertjax.tasks.minimal_pairs import MinimalPair, accuracies, encode_pairs, read_pairs
from bertjax.terminal import Console
from bertjax.workdir.lock import lock_workdir
from bertjax.writers.console import format_value

VERB = Verb(needs='minimal_pairs')


def run(config: ConfigDict, workdir: str) -> None:
    """Scores both sentences of each pair of config.input by their pseudo-log-likelihoods, and prints the accuracies.

    WORKDIR/minimal_pairs/NAME.json has the accuracies (see `tasks.minimal_pairs.accuracies`), and NAME.jsonl the
    records with the scores of both sentences. NAME is the input file's name without suffixes. After a kill, the same
    command continues after the last saved part.

    Raises:
      UserError: The model or the file does not exist, the model lacks the MLM head, a record is malformed, a sentence
        has more tokens than the model has positions, or the results of another input would be replaced.
    """
    settings = inference_settings(config, 'minimal_pairs')
    source = InputSource(settings.input, (), allows_stdin=False)
    source.check()
    pairs = read_pairs(settings.input, 'config.input', vars(settings.minimal_pairs))
    folder = pathlib.Path(workdir)
    with lock_workdir(folder, results_only=True):
        runner = load_runner(settings, folder)
        model = runner.model
        model.require('mlm', 'run=minimal_pairs')
        sequences = encode_pairs(pairs, model.tokenizer, model.config.max_positions)
        files = ResultFiles(folder / 'minimal_pairs', source.name, source.origin)
        records = json.dumps([vars(settings.minimal_pairs), [pair.fields for pair in pairs]])
        identity = hashlib.sha256(model.fingerprint + records.encode()).hexdigest()
        if results := files.read(identity):
            print(f'{files.facts} exists already, with the accuracies of this model on these pairs')
        else:
            with show_progress('pairs', len(pairs), lines=True) as advance:
                log_likelihoods = compute_scores(runner, sequences, files.parts, advance)
            results = accuracies(pairs, log_likelihoods)
            scores = (
                {'good_score': good, 'bad_score': bad, 'correct': good > bad} for good, bad in log_likelihoods.tolist()
            )
            with AtomicFile(files.target) as file:
                file.write(json_lines(merge_answers(pairs, scores)).encode())
            files.write_facts(model=model.where, **results, identity=identity)
        Console(highlight=False).print(_table(pairs, results))
        if results['ties']:
            print(f'{results["ties"]:,} of {len(pairs):,} pairs have equal scores and count as wrong')
        print(f'{files.target}\n{files.facts}')


def _table(pairs: Sequence[MinimalPair], results: Mapping[str, Any]) -> Table:
    """Returns a table with a row for each phenomenon and for each set, and one or two rows for all pairs."""
    table = Table(box=None, pad_edge=False)
    for heading in ('', 'pairs', 'accuracy', 'standard error'):
        table.add_column(heading, justify='right' if heading else 'left', no_wrap=not heading)

    def add(name: str, row: Mapping[str, Any], style: str = '') -> None:
        values = map(format_value, (row['accuracy'], row['standard_error']))
        table.add_row(escape(name), f'{row["pairs"]:,}', *values, style=style)

    phenomenon_of = {pair.set: pair.phenomenon for pair in pairs}
    for phenomenon, row in results['phenomena'].items():
        if phenomenon:
            add(phenomenon, row, style='bold')
        for name in results['sets']:
            if name and phenomenon_of[name] == phenomenon:
                add(f'  {name}', results['sets'][name])
    add('mean over the sets', results, 'bold')
    if not math.isclose(results['share'], results['accuracy']):
        shares = {'accuracy': results['share'], 'standard_error': results['share_standard_error']}
        add('mean over the pairs', {**results, **shares})
    return table
