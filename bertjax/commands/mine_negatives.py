"""run=mine_negatives: add hard negatives from a corpus to the pairs of texts that train embeddings."""

import dataclasses
import hashlib
import json
import pathlib

from ml_collections import ConfigDict

from bertjax.config.inference import MineNegativesKeys, inference_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile
from bertjax.finetune.results import json_lines
from bertjax.inference.encode import DOCUMENT, QUERY, find_prompt, resolve_encoding
from bertjax.inference.extraction import Extractor, compute_vectors
from bertjax.inference.input import InputSource, make_columns
from bertjax.inference.overwrite_guard import ResultFiles
from bertjax.inference.runner import load_runner
from bertjax.progress import show_progress
from bertjax.remote.paths import user_path
from bertjax.tasks.embedding.files import ROLES
from bertjax.tasks.embedding.mining import SCORES, collect_texts, mine_negatives
from bertjax.tasks.embedding.splits import EmbeddingSplits
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.splits import STEMS
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='mine_negatives')


def run(config: ConfigDict, workdir: str) -> None:
    """Writes the pairs of config.input with negatives to WORKDIR/negatives/NAME.jsonl, and metadata to NAME.json.

    NAME is the name of config.input without suffixes. The negatives are chosen from config.mine_negatives.corpus and
    from config.input: all positives and known negatives of records, all documents of a BEIR folder, or all paragraphs
    of a SQuAD file. After a kill, the same command continues after the last saved part of the vectors.

    Raises:
      UserError: The model or a file does not exist, a record is malformed, the options contradict each other, or the
        results of another input would be replaced.
    """
    settings = inference_settings(config, 'mine_negatives')
    options: MineNegativesKeys = settings.mine_negatives
    if options.range_max - options.range_min < options.num_negatives:
        found = f'{options.range_max} with range_min={options.range_min}'
        expected = f'at least range_min plus num_negatives={options.num_negatives}'
        raise UserError('config.mine_negatives.range_max', found, expected, 'increase it')
    names = options.anchor, options.positive, options.negative, SCORES
    if repeated := [name for name in names if names.count(name) > 1]:
        expected = f'different names for anchor, positive and negative, none of them {SCORES!r}'
        raise UserError('config.mine_negatives', f'two fields named {repeated[0]}', expected, 'rename the field')
    source, folder = InputSource(settings.input, (), allows_stdin=False), pathlib.Path(workdir)
    source.check()
    if not user_path(settings.input, 'config.input').exists():
        expected = 'a file of pairs or of SQuAD, or a folder of BEIR'
        raise UserError('config.input', repr(settings.input), expected, 'check the path')
    columns = {role: getattr(options, role, role) for role in ROLES}
    splits = EmbeddingSplits(settings.input, dict.fromkeys(STEMS, ''), columns, 'config.mine_negatives')
    queries = splits.queries('train')
    has_negatives = any(len(query.candidates) > len(query.relevant) for query in queries)
    if options.negative != MineNegativesKeys.negative and not has_negatives:
        print(f'no record has a negative in the field {options.negative}, which names only the mined negatives')
    queries, documents, relevant = collect_texts(queries, _read_corpus(options))
    with lock_workdir(folder, results_only=True):
        runner = load_runner(settings, folder)
        model = runner.model
        files = ResultFiles(folder / 'negatives', source.name, source.origin)
        prompts, default = (QUERY, DOCUMENT), {'pool': 'auto', 'normalize': None, 'layers': (-1,)}
        try:
            encodings = [resolve_encoding(model, prompt=find_prompt(model, names), **default) for names in prompts]
        except UserError as error:  # the fix of `error` is for callers of `encode`
            raise UserError(error.where, error.found, error.expected, 'give another model') from None
        extractors = [Extractor(runner, encoding) for encoding in encodings]
        content = json.dumps([queries, documents, relevant, dataclasses.asdict(options)]).encode()
        identity = hashlib.sha256(b''.join(extractor.identity for extractor in extractors) + content).hexdigest()
        if files.read(identity):
            print(f'{files.target} exists already, with the negatives that this model found for these texts')
            return
        with show_progress('texts', len(queries) + len(documents), lines=True) as advance:
            vectors = [
                compute_vectors(extractor, texts, files.parts, advance)
                for extractor, texts in zip(extractors, (queries, documents), strict=True)
            ]
        counts = []
        with AtomicFile(files.target) as file:
            for record in mine_negatives(queries, documents, relevant, *vectors, options):
                counts.append(len(record[options.negative]))
                file.write(json_lines([record]).encode())
        few = sum(count < options.num_negatives for count in counts)
        results = {'queries': len(queries), 'documents': len(documents), 'pairs': len(counts), 'negatives': sum(counts)}
        files.write_facts(model=model.where, **results, incomplete=few, identity=identity)
        print(f'{sum(counts):,} negatives of {len(counts):,} pairs, from {len(documents):,} different texts')
        if few:
            print(f'{few:,} pairs have fewer than {options.num_negatives} negatives: see config.mine_negatives')
        print(f'{files.target}\n{files.facts}')


def _read_corpus(options: MineNegativesKeys) -> list[str]:
    if not options.corpus:
        return []
    columns = make_columns(options.field, '', 'config.mine_negatives')
    corpus = InputSource(options.corpus, columns, key='config.mine_negatives.corpus')
    corpus.check()
    return [item.values[0] for item in corpus.items() if isinstance(item, Row)]
