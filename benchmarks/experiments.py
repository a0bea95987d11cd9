"""The fine-tunings of docs/performance.md: recipes, data and settings, and functions that make subsets of the data.

The data does not come with bertjax: the folders glue/, squad/, ner/ and multiple_choice/ contain the files of the
benchmarks. Hashes and counts select the subsets, so the subsets are always the same.
"""

import dataclasses
import gzip
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

Make = Callable[[pathlib.Path, pathlib.Path], None]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A fine-tuning that both frameworks run from the same arguments.

    Attributes:
      name: The short name.
      title: The title in the table.
      recipe: The value of --config.
      folder: The folder of the data, in OUT/data if `make` writes the data, else in --data.
      figures: {(split, metric): the published figures}. The first entry is the score of the comparison.
      settings: {config key: its value}.
      seeds: The number of seeds, from 0.
      make: A function of (--data, folder) that writes the data; None if --data has it.
      minutes: The approximate time of a run on 2 cores.
    """

    name: str
    title: str
    recipe: str
    folder: str
    figures: dict[tuple[str, str], str]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 1
    make: Make | None = None
    minutes: float = 10.0

    def settings_of(self, seed: int, steps: int) -> dict[str, Any]:
        """Returns the config keys of a run, except those with paths."""
        return {'seed': seed, **self.settings, **({'steps': steps} if steps else {})}

    def data(self, source: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
        """Returns the folder of the data; makes it if needed."""
        if self.make is None:
            return source / self.folder
        target = out / 'data' / self.folder
        if not target.exists():
            temporary = target.with_name(f'.{target.name}.tmp')
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            self.make(source, temporary)
            temporary.rename(target)
        return target


def _sst2_tenth(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes every tenth row of train, and dev."""
    header, *rows = (source / 'glue/SST-2/train.tsv').read_text(encoding='utf-8').splitlines(keepends=True)
    (target / 'train.tsv').write_text(''.join([header, *rows[::10]]), encoding='utf-8')
    shutil.copyfile(source / 'glue/SST-2/dev.tsv', target / 'dev.tsv')


def _mnli(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the subset of MNLI to the official file names."""
    names = {'train.tsv': 'train.tsv', 'dev_matched.tsv': 'dev_matched.tsv'}
    for name, official in {**names, 'dev_mismatched_1000.tsv': 'dev_mismatched.tsv'}.items():
        shutil.copyfile(source / 'glue/MNLI' / name, target / official)


def _squad1(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes 3,000 questions of squadshifts_reddit for training, and the English XQuAD for dev."""
    with gzip.open(source / 'squad/squadshifts_reddit_v1.0.json.gz', 'rt', encoding='utf-8') as file:
        articles = json.load(file)['data']
    _write_squad(target / 'train-v1.1.json', _select_questions(articles, 3000), '1.1')
    shutil.copyfile(source / 'squad/xquad.en.json', target / 'dev-v1.1.json')


def _squad2(source: pathlib.Path, target: pathlib.Path) -> None:
    """Splits cs224n-dev by article: every fourth article for dev, 3,000 questions of the others for training."""
    articles = json.loads((source / 'squad/cs224n-dev-v2.0.json').read_text(encoding='utf-8'))['data']
    tested = articles[3::4]
    _write_squad(target / 'train-v2.0.json', _select_questions([a for a in articles if a not in tested], 3000), 'v2.0')
    _write_squad(target / 'dev-v2.0.json', tested, 'v2.0')


def _select_questions(articles: Sequence[dict], count: int) -> list[dict]:
    """Returns the articles with only the `count` questions that have the lowest hashes."""
    ids = [qa['id'] for article in articles for paragraph in article['paragraphs'] for qa in paragraph['qas']]
    selected_ids = set(sorted(ids, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])
    result = []
    for article in articles:
        paragraphs = [{**p, 'qas': [qa for qa in p['qas'] if qa['id'] in selected_ids]} for p in article['paragraphs']]
        result.append({**article, 'paragraphs': [paragraph for paragraph in paragraphs if paragraph['qas']]})
    return result


def _write_squad(path: pathlib.Path, articles: Sequence[dict], version: str) -> None:
    path.write_text(json.dumps({'version': version, 'data': articles}), encoding='utf-8')


def _glue(name: str, title: str, metric: str, published: str, *, part: str = '', **fields: Any) -> Experiment:
    fields = {'folder': f'glue/{title}', 'figures': {('dev', metric): published}, **fields}
    settings = {'learning_rate': 5e-5, 'batch_size': 32, 'epochs': 3.0}
    return Experiment(name, f'{title}{part}', f'configs/glue.py:{name}', settings=settings, **fields)


_SQUAD = {'seq_len': 256, 'learning_rate': 1e-4, 'batch_size': 16, 'epochs': 2.0}

# The published figures are those of BERT base / large, '-' for none; docs/performance.md has their sources.
EXPERIMENTS = (
    _glue('rte', 'RTE', 'accuracy', '69.3 / 70.4', seeds=3, minutes=7),
    _glue('cola', 'CoLA', 'matthews', '56.3 / 60.6', seeds=6, minutes=6),
    _glue('stsb', 'STS-B', 'spearman', '89.0 / 90.0', seeds=6, minutes=8),
    _glue('sst2', 'SST-2', 'accuracy', '92.7 / 93.2', part=', a tenth of train', folder='sst2_tenth', make=_sst2_tenth,
          minutes=5),
    _glue('mnli', 'MNLI', 'accuracy', '', part=', 9,888 of train', folder='mnli', make=_mnli, minutes=16,
          figures={('dev', 'accuracy'): '84.7 / 86.6', ('dev_mismatched', 'accuracy'): '-'}),
    Experiment(
        'squad1', 'SQuAD 1.1, 3,000 questions of reddit, tested on XQuAD', 'configs/squad.py:v1', 'squad1',
        {('dev', 'f1'): '88.5 / 90.9', ('dev', 'exact'): '80.8 / 84.1'}, _SQUAD, make=_squad1, minutes=20,
    ),
    Experiment(
        'squad2', 'SQuAD 2.0, 3,000 questions, tested on other articles', 'configs/squad.py:v2', 'squad2',
        {('dev', 'best_f1'): '- / 81.9', ('dev', 'best_exact'): '- / 78.7'}, _SQUAD, make=_squad2, minutes=20,
    ),
    Experiment(
        'ner', 'NCBI-disease', 'configs/ner.py', 'ner/NCBI-disease', {('test', 'f1'): '85.6 / -', ('dev', 'f1'): '-'},
        {'learning_rate': 1e-4, 'epochs': 3.0}, seeds=3, minutes=9,
    ),
    Experiment(
        'ner_features', 'NCBI-disease, features of a frozen encoder',
        'configs/ner.py:features=concat_last_four,units=256', 'ner/NCBI-disease',
        {('test', 'f1'): '-', ('dev', 'f1'): '-'}, {'epochs': 5.0}, minutes=15,
    ),
    Experiment(
        'codah', 'CODAH', 'configs/swag.py:codah', 'multiple_choice',
        {('test', 'accuracy'): '- / 67.5', ('dev', 'accuracy'): '-'}, {'learning_rate': 5e-5, 'epochs': 3.0}, minutes=9,
    ),
)  # fmt: skip
