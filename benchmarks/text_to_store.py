"""Text to a token store: bertjax with one and two workers, compared with google-research/bert.

    python benchmarks/text_to_store.py --corpus='texts/*.txt' --tokenizer=vocab.txt --google=bert

bertjax reads the text, splits sentences, encodes, finds duplicates and writes the store. google-research/bert
(`create_training_instances` of create_pretraining_data.py, from a checkout) reads the first --google_megabytes of the
same text, already split into sentences. It encodes them, makes pairs and masks once, and writes nothing. The builds run
in turn, each in a new process. The script measures the CPU time of all processes, because other work on the machine
hardly affects it, and also prints the wall time. The figures in the documentation need the extra `fast`.
"""

import glob
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl import app, flags

from bertjax.corpus import workers as encoding
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.texts import iter_texts
from bertjax.text.sentences import split_sentences
from bertjax.text.tokenizer import load_tokenizer

_CORPUS = flags.DEFINE_string('corpus', None, 'A file or glob of plain text.', required=True)
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'A vocab.txt.', required=True)
_GOOGLE = flags.DEFINE_string('google', '', 'A checkout of google-research/bert; empty: none.')
_GOOGLE_MB = flags.DEFINE_float('google_megabytes', 2.0, 'The size of the text for google-research/bert.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'The number of builds per side.')
_SIDE = flags.DEFINE_string('side', '', 'Internal: the side that this process runs.')


def _measured(size: float, began: float) -> dict[str, float]:
    """Returns the times in seconds and the peak memory in MB of this process and its children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        'MB': size / 1e6,
        'wall': time.perf_counter() - began,
        'parent': usage[0].ru_utime + usage[0].ru_stime,
        'workers': usage[1].ru_utime + usage[1].ru_stime,
        'memory': max(one.ru_maxrss for one in usage) / 1e3,
    }


def _ours(workers: int) -> dict[str, float]:
    tokenizer, import_time = load_tokenizer(_TOKENIZER.value), time.process_time()
    encode_shards, encode_times = encoding.encode_shards, []

    def timed(*arguments: object) -> None:
        start = time.process_time()
        encode_shards(*arguments)
        encode_times.append(time.process_time() - start)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(encoding, 'encode_shards', timed):
        began = time.perf_counter()
        build_store(_CORPUS.value, folder, tokenizer, CorpusOptions(workers=workers), progress=False)
        results = _measured(sum(map(os.path.getsize, glob.glob(_CORPUS.value))), began)
    parent = results['parent'] - import_time
    return {**results, 'parent': parent, 'alone': parent - sum(encode_times)}


def _path(run: dict[str, float], workers: int) -> float:
    """Estimates the wall time in seconds with one core per worker, if all workers end at the same time."""
    return run['alone'] + (run['parent'] - run['alone'] + run['workers']) / workers


def _theirs() -> dict[str, float]:
    from peers.google_bert import load_checkout

    create, tokenization = load_checkout(_GOOGLE.value)
    tokenizer = tokenization.FullTokenizer(vocab_file=_TOKENIZER.value, do_lower_case=True)
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
        size = 0
        for number, paragraph in enumerate(iter_texts(_CORPUS.value)):
            size += len(paragraph.encode()) + 1
            # Every 15 paragraphs form a document.
            file.write('\n'.join(split_sentences(paragraph)) + '\n' + '\n' * (number % 15 == 14))
            if size > _GOOGLE_MB.value * 1e6:
                break
        file.flush()
        import_time, began = time.process_time(), time.perf_counter()
        create.create_training_instances(
            [file.name], tokenizer, max_seq_length=128, dupe_factor=1, short_seq_prob=0.1, masked_lm_prob=0.15,
            max_predictions_per_seq=20, rng=create.random.Random(0),
        )  # fmt: skip
        results = _measured(size, began)
    return {**results, 'parent': results['parent'] - import_time}


def main(argv: list[str]) -> None:
    if _SIDE.value:
        print(json.dumps(_theirs() if _SIDE.value == 'google' else _ours(int(_SIDE.value))))
        return
    sides = ['1', '2', *(['google'] if _GOOGLE.value else [])]
    results: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(_ROUNDS.value):
        for side in sides:
            command = [sys.executable, *argv, *(f'--{f.name}={f.value}' for f in (_CORPUS, _TOKENIZER, _GOOGLE))]
            command += [f'--google_megabytes={_GOOGLE_MB.value}', f'--side={side}']
            results[side].append(json.loads(subprocess.check_output(command, text=True).splitlines()[-1]))
    print(f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {_ROUNDS.value} rounds')
    for side, runs in results.items():
        cpu = [run['MB'] / (run['parent'] + run['workers']) for run in runs]
        wall = statistics.median(run['MB'] / run['wall'] for run in runs)
        name = side if side == 'google' else f'{side} worker{"s" * (side != "1")}'
        memory = max(run['memory'] for run in runs)
        print(
            f'{name:>9}: {runs[0]["MB"]:6.1f} MB; {statistics.median(cpu):6.2f} MB per second of one core '
            f'({min(cpu):.2f} to {max(cpu):.2f}), {wall:6.2f} of wall time; peak memory {memory:.0f} MB'
        )
    ratios = [_path(one, 1) / _path(two, 2) for one, two in zip(results['1'], results['2'], strict=True)]
    walls = [one['wall'] / two['wall'] for one, two in zip(results['1'], results['2'], strict=True)]
    print(
        f'two workers: {statistics.median(ratios):.2f} times one ({min(ratios):.2f} to {max(ratios):.2f}) by CPU '
        f'time, {statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f}) by wall time'
    )
    for side in ('1', '2'):
        alone, first, others = (
            statistics.median(values)
            for values in zip(
                *((r['alone'], r['parent'] - r['alone'], r['workers']) for r in results[side]), strict=True
            )
        )  # fmt: skip
        print(
            f'{side}: serial {alone:.2f} s; parallel {first:.2f} s in the first process, {others:.2f} s in the others'
        )


if __name__ == '__main__':
    app.run(main)
