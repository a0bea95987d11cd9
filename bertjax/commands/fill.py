"""run=fill: fill masks, score texts, predict whether a sentence follows another, or continue a text."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any, TextIO

from ml_collections import ConfigDict

from bertjax.config.inference import TextKeys, inference_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile
from bertjax.finetune.results import json_lines, merge_answers
from bertjax.inference.encode import describe_full
from bertjax.inference.fill_request import FillRequest, answer_table
from bertjax.inference.input import STANDARD_INPUT, InputSource, Item, make_columns, split_chunks
from bertjax.inference.overwrite_guard import ResultFiles
from bertjax.inference.runner import load_runner
from bertjax.inference.score import corpus_score
from bertjax.progress import show_progress
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.stream import stream_batches
from bertjax.terminal import Console, data_output, has_reader
from bertjax.training.predict import no_op
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='fill')

_CHUNK = 256  # the maximum number of texts in a chunk of a file


def run(config: ConfigDict, workdir: str) -> None:
    """Answers the question config.fill.ask about texts.

    The answer for config.fill.text, a single text, is printed as a table. The answers for config.input, a file, are
    JSON lines in WORKDIR/fill/NAME.ASK.jsonl, and NAME.ASK.json has the path of the file and, for ask='score', the
    scores of the whole file. ASK is config.fill.ask, or `jointly` if masks are filled jointly. With config.input='-',
    standard input, the answers are printed while the texts arrive: as tables on a terminal, otherwise as JSON lines.

    Raises:
      UserError: The model or the input file does not exist, the model lacks the head for the question, a text has no
        mask, an option has no effect, or the answers to another input would be replaced.
    """
    settings = inference_settings(config, 'fill')
    options, folder = settings.fill, pathlib.Path(workdir)
    paired = options.ask == 'pairs'
    columns = make_columns(options.field, options.pair_field if paired else '', 'config.fill')
    source = InputSource(settings.input, columns)
    if options.text and settings.input:
        raise UserError('config.fill.text', 'a text and config.input', 'only one of the two', 'leave one out')
    if bool(options.second) != (paired and bool(options.text)):
        expected = "a second text if ask='pairs' and config.fill.text is set, otherwise nothing"
        raise UserError('config.fill.second', repr(options.second), expected, 'set or omit it')
    if not options.text:
        source.check()
    with lock_workdir(folder, results_only=True):
        if options.text:
            item = Row('config.fill.text', (options.text, options.second) if paired else (options.text,))
            request = _make_request(settings, folder, [item])
            _print(request, request.answers([item]))
        elif settings.input == STANDARD_INPUT:
            with data_output() as out:
                _answer_stream(settings, folder, source, out)
        else:
            _answer_file(settings, folder, source)


def _make_request(settings: TextKeys, folder: pathlib.Path, items: Sequence[Item] = ()) -> FillRequest:
    request = FillRequest(load_runner(settings, folder), settings.fill)
    request.check_texts(items)
    return request


def _print(request: FillRequest, answers: Sequence[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    for answer in answers:
        console.print(answer_table(answer, request.runner.model.tokenizer))


def _answer_stream(settings: TextKeys, folder: pathlib.Path, source: InputSource, out: TextIO) -> None:
    request = _make_request(settings, folder)
    for items in stream_batches(source.items(), settings.batch_size):
        answers = request.answers(items, no_op)
        if out.isatty():
            with contextlib.redirect_stdout(out):
                _print(request, answers)
        else:
            out.write(json_lines(merge_answers(items, answers)))
            out.flush()
            if not has_reader(out):
                return


def _answer_file(settings: TextKeys, folder: pathlib.Path, source: InputSource) -> None:
    request, ask = _make_request(settings, folder), settings.fill.ask
    kind, total, blank = 'jointly' if ask == 'masks' and settings.fill.jointly else ask, 0, 0
    files = ResultFiles(folder / 'fill', f'{source.name}.{kind}', source.origin)
    for items in split_chunks(source.items(), _CHUNK):
        request.check_texts(items)
        total, blank = total + len(items), blank + sum(not isinstance(item, Row) for item in items)
    files.write_facts()
    for partial in files.target.parent.glob('.*.tmp-*'):  # incomplete files of a killed run
        partial.unlink()
    scores: list[dict[str, Any]] = []
    longest, full = request.runner.max_length, 0
    with AtomicFile(files.target) as file, show_progress('texts', total - blank, lines=True) as advance:
        for items in split_chunks(source.items(quiet=True), _CHUNK):
            answers = request.answers(items, advance)
            if ask == 'score':
                scores.append(corpus_score(answers))
                full += sum(answer['tokens'] == longest - 2 for answer in answers)  # without [CLS] and [SEP]
            file.write(json_lines(merge_answers(items, answers)).encode())
    if blank:
        print(f'{blank:,} of {total:,} texts are blank; the output marks them as skipped')
    if full:
        print(describe_full(full, longest))
    print(files.target)
    if ask == 'score':
        total_score = corpus_score(scores)
        files.write_facts(**total_score, longest=longest, full=full)
        _print(request, [{'text': source.path, **total_score}])
        print(files.facts)
