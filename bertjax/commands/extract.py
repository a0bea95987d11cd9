"""run=extract: compute features of texts, from a file or from standard input."""

import contextlib
import pathlib
from typing import TextIO

from ml_collections import ConfigDict

from bertjax.config.inference import ExtractKeys, TextKeys, inference_settings, name_keys
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.inference.encode import ENCODING_OPTIONS, resolve_encoding
from bertjax.inference.extraction import Extraction, Extractor, item_columns
from bertjax.inference.feature_files import format_json_rows
from bertjax.inference.input import STANDARD_INPUT, InputSource, make_columns, spool_standard_input
from bertjax.inference.runner import load_runner
from bertjax.progress import show_progress
from bertjax.tasks.reading.arrow import import_arrow
from bertjax.tasks.reading.stream import stream_batches
from bertjax.terminal import data_output, has_reader
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='extract')

_DEFAULT_FORMAT = 'npy'  # the format of a file of features if config.extract.format is not set


def run(config: ConfigDict, workdir: str) -> None:
    """Writes features of the texts in config.input to WORKDIR/features/NAME.FORMAT, and metadata to NAME.FORMAT.json.

    NAME is the input file's name without suffixes. The verb first reads the input file to its end, so that mistakes are
    reported before anything is computed. After a kill, the same command continues after the last saved part, and writes
    the same file as an uninterrupted run. With some options there are several files, which the metadata lists.

    With config.input='-' (standard input) and no config.extract.format, the features are written to standard output, as
    JSON lines, while the texts arrive. With a format, the texts are first copied to a temporary file.

    Raises:
      UserError: The model or the input file does not exist, the model lacks a layer, a record is malformed,
        features of another input would be replaced, or all saved parts of another run would be removed.
    """
    settings = inference_settings(config, 'extract')
    options, folder = settings.extract, pathlib.Path(workdir)
    source = InputSource(settings.input, make_columns(options.field, options.pair_field, 'config.extract'))
    source.check()
    streaming = settings.input == STANDARD_INPUT and not options.format
    if streaming and options.part:
        found = f'{options.part}, but texts are processed as they arrive'
        fix = 'set config.extract.format to write a file, or leave this key at 0'
        raise UserError('config.extract.part', found, '0', fix)
    _check_storage(options, streaming)
    if options.format == 'parquet':
        import_arrow('config.extract.format')
    with lock_workdir(folder, results_only=True):
        if streaming:
            with data_output() as out:
                _extract_stream(settings, folder, source, out)
            return
        target = _target(settings, folder, source)
        extractor = _make_extractor(settings, folder)
        is_file = settings.input != STANDARD_INPUT
        with contextlib.nullcontext(source) if is_file else spool_standard_input(source, target.parent) as source:
            _extract_file(options, extractor, source, target)


def _check_storage(options: ExtractKeys, streaming: bool) -> None:
    """Raises a UserError for a storage option that has no effect on the output."""
    format = 'JSON lines' if streaming else options.format or _DEFAULT_FORMAT
    for name in ('precision', 'calibration', 'shard'):
        value, where = getattr(options, name), f'config.extract.{name}'
        if value == getattr(ExtractKeys, name):
            continue
        if format != 'npy':
            raise UserError(where, f'{value!r} with {format}', 'the format npy', 'set --config.extract.format=npy')
        if options.pool == 'none':
            raise UserError(where, f'{value!r} with pool=none', 'one vector per text', 'choose a pooling')


def _make_extractor(settings: TextKeys, folder: pathlib.Path) -> Extractor:
    runner = load_runner(settings, folder)
    model = runner.model
    keys = {name: getattr(settings.extract, name) for name in ENCODING_OPTIONS}
    if keys['prompt'] == 'None':  # from the command line
        keys['prompt'] = None
    with name_keys('extract'):
        encoding = resolve_encoding(model, **keys)
    prompts = model.sentence_modules.prompts if model.sentence_modules else {}
    if keys['prompt'] is None and encoding.pool != 'none' and not encoding.prompt and any(prompts.values()):
        names = ', '.join(name for name, prompt in prompts.items() if prompt)
        print(f'the texts get no prompt; the model has prompts for {names}: see config.extract.prompt')
    if encoding.prompt and encoding.pool == 'none':
        found, fix = f'{encoding.prompt!r} with pool=none', 'choose a pooling, or omit the prompt'
        expected = "one vector per text, because a prompt's tokens have no span in the text"
        raise UserError('config.extract.prompt', found, expected, fix)
    return Extractor(runner, encoding)


def _extract_stream(settings: TextKeys, folder: pathlib.Path, source: InputSource, out: TextIO) -> None:
    extractor, id = _make_extractor(settings, folder), settings.extract.id
    pieces = extractor.runner.model.tokenizer.pieces
    for items in stream_batches(source.items(), settings.batch_size):
        columns = [item_columns(item, source, id) for item in items]
        out.write(''.join(format_json_rows(extractor.compute_part(items), columns, pieces)))
        out.flush()
        if not has_reader(out):
            return


def _target(settings: TextKeys, folder: pathlib.Path, source: InputSource) -> pathlib.Path:
    target = folder / 'features' / f'{source.name}.{settings.extract.format or _DEFAULT_FORMAT}'
    if pathlib.Path(source.origin) in (target.resolve(), target.with_name(f'{target.name}.json').resolve()):
        found = f'{settings.input}, which would be replaced'
        raise UserError('config.input', found, 'a file elsewhere', 'move the file, or give another --workdir')
    return target


def _extract_file(options: ExtractKeys, extractor: Extractor, source: InputSource, target: pathlib.Path) -> None:
    with name_keys('extract'):
        extraction = Extraction(extractor, source, target, options)
    texts = extraction.read()
    if extraction.is_done():
        print(f'{target} already has the features of these texts, computed by this model')
        return
    extraction.check()
    with show_progress('texts', texts, lines=True) as advance:
        extraction.compute(advance)
    for line in extraction.write(extractor.encoding.facts):
        print(line)
