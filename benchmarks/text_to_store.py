"""Text to a token store: bertjax with one and two workers beside google-research/bert, in turn.

    python benchmarks/text_to_store.py --corpus='texts/*.txt' --tokenizer=vocab.txt --google=bert

Ours reads, cuts sentences, encodes, finds duplicates and writes the store. Theirs (`create_training_instances` of
create_pretraining_data.py, from a checkout outside of this one) is given sentences that are cut already, of the first
--google_megabytes of the same text; it encodes and makes pairs and masks once, and writes nothing. Times are those of
processors, of all processes of a side together, so that other work on the machine does not count; wall time stands
beside. Each build is a process of its own. Needs the extra `fast` for the figures of the docs.
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
_GOOGLE = flags.DEFINE_string('google', '', 'A checkout of google-research/bert; empty leaves it out.')
_GOOGLE_MB = flags.DEFINE_float('google_megabytes', 2.0, 'How much text it is given.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Builds of each.')
_SIDE = flags.DEFINE_string('side', '', 'Of a process that this program starts: what it does.')


def _measured(size: float, began: float) -> dict[str, float]:
    """What the process used, and its children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        'MB': size / 1e6,
        'wall': time.perf_counter() - began,
        'parent': usage[0].ru_utime + usage[0].ru_stime,
        'workers': usage[1].ru_utime + usage[1].ru_stime,
        'memory': max(one.ru_maxrss for one in usage) / 1e3,
    }


def _ours(workers: int) -> dict[str, float]:
    tokenizer, before = load_tokenizer(_TOKENIZER.value), time.process_time()
    encode_shards, together = encoding.encode_shards, []

    def timed(*arguments: object) -> None:
        start = time.process_time()
        encode_shards(*arguments)
        together.append(time.process_time() - start)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(encoding, 'encode_shards', timed):
        began = time.perf_counter()
        build_store(_CORPUS.value, folder, tokenizer, CorpusOptions(workers=workers), progress=False)
        found = _measured(sum(map(os.path.getsize, glob.glob(_CORPUS.value))), began)
    parent = found['parent'] - before  # without what it imported
    return {**found, 'parent': parent, 'alone': parent - sum(together)}


def _path(run: dict[str, float], workers: int) -> float:
    """Seconds that would pass with a core for each worker: each takes the next shard, so they end together."""
    return run['alone'] + (run['parent'] - run['alone'] + run['workers']) / workers


def _theirs() -> dict[str, float]:
    from peers.google_bert import load_checkout

    create, tokenization = load_checkout(_GOOGLE.value)
    tokenizer = tokenization.FullTokenizer(vocab_file=_TOKENIZER.value, do_lower_case=True)
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
        size = 0
        for number, paragraph in enumerate(iter_texts(_CORPUS.value)):
            size += len(paragraph.encode()) + 1
            file.write('\n'.join(split_sentences(paragraph)) + '\n' + '\n' * (number % 15 == 14))  # as long as articles
            if size > _GOOGLE_MB.value * 1e6:
                break
        file.flush()
        before, began = time.process_time(), time.perf_counter()
        create.create_training_instances(
            [file.name], tokenizer, max_seq_length=128, dupe_factor=1, short_seq_prob=0.1, masked_lm_prob=0.15,
            max_predictions_per_seq=20, rng=create.random.Random(0),
        )  # fmt: skip
        found = _measured(size, began)
    return {**found, 'parent': found['parent'] - before}


def main(argv: list[str]) -> None:
    """Runs the sides in turn, and prints medians and ratios."""
    if _SIDE.value:
        print(json.dumps(_theirs() if _SIDE.value == 'google' else _ours(int(_SIDE.value))))
        return
    sides = ['1', '2', *(['google'] if _GOOGLE.value else [])]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(_ROUNDS.value):
        for side in sides:
            command = [sys.executable, *argv, *(f'--{f.name}={f.value}' for f in (_CORPUS, _TOKENIZER, _GOOGLE))]
            command += [f'--google_megabytes={_GOOGLE_MB.value}', f'--side={side}']
            found[side].append(json.loads(subprocess.check_output(command, text=True).splitlines()[-1]))
    print(f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {_ROUNDS.value} rounds')
    for side, runs in found.items():
        cpu = [run['MB'] / (run['parent'] + run['workers']) for run in runs]
        wall = statistics.median(run['MB'] / run['wall'] for run in runs)
        name = side if side == 'google' else f'{side} worker{"s" * (side != "1")}'
        memory = max(run['memory'] for run in runs)
        print(
            f'{name:>9}: {runs[0]["MB"]:6.1f} MB; {statistics.median(cpu):6.2f} MB a second of one core '
            f'({min(cpu):.2f} to {max(cpu):.2f}), {wall:6.2f} of wall time; {memory:.0f} MB of memory at most'
        )
    ratios = [_path(one, 1) / _path(two, 2) for one, two in zip(found['1'], found['2'], strict=True)]
    walls = [one['wall'] / two['wall'] for one, two in zip(found['1'], found['2'], strict=True)]
    print(
        f'two workers: {statistics.median(ratios):.2f} times one ({min(ratios):.2f} to {max(ratios):.2f}) by processor '
        f'time, {statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f}) by the clock of this machine'
    )
    for side in ('1', '2'):
        alone, first, others = (
            statistics.median(values)
            for values in zip(
                *((r['alone'], r['parent'] - r['alone'], r['workers']) for r in found[side]), strict=True
            )
        )  # fmt: skip
        print(f'{side}: {alone:.2f} s alone; together {first:.2f} s of the first process, {others:.2f} s of the others')


if __name__ == '__main__':
    app.run(main)
