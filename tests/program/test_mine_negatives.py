"""run=mine_negatives on files of one's own, a BEIR folder and SQuAD; a training on what it writes."""

import json
import os
import pathlib

import numpy as np
import pytest
from embedding_runs import write_rows
from marks import mostly_slow
from running import Program, results, rows

import bertjax
from bertjax.inference import extraction
from bertjax.tasks.embedding.task import EmbeddingTask

RECIPE = {'recipe': 'configs/mine_negatives.py', 'small': False}
WORDS = ('river', 'stone', 'bird', 'light', 'house', 'field', 'wind', 'old', 'green', 'runs', 'falls')
DRAW = np.random.default_rng(0)
TEXTS = list(dict.fromkeys(' '.join(DRAW.choice(WORDS, 2 + i % 7)) for i in range(60)))
# Two anchors have two positives, a positive is also an anchor, and one pair occurs twice.
PAIRS = [
    *zip(TEXTS[:12], TEXTS[12:24], strict=True),
    (TEXTS[0], TEXTS[30]),
    (TEXTS[1], TEXTS[12]),
    (TEXTS[12], TEXTS[0]),
]
PAIRS += PAIRS[:1]


@pytest.fixture
def mine(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """mine(input, *changes) -> the rows that the verb writes; mine.stdout is its output."""

    def run(source: pathlib.Path, *changes: str) -> list[dict]:
        ask = (f'--workdir={tmp_path / "out"}', f'--config.init={trained}', f'--config.input={source}')
        run.stdout = program.run(*ask, *(f'--config.mine_negatives.{change}' for change in changes), **RECIPE).stdout
        return rows(tmp_path / 'out' / 'negatives' / f'{source.name.partition(".")[0]}.jsonl')

    return run


@pytest.fixture
def pairs(tmp_path: pathlib.Path) -> pathlib.Path:
    records = [{'anchor': a, 'positive': b} for a, b in PAIRS]
    return write_rows(tmp_path / 'pairs.jsonl', [{**records[0], 'negative': [TEXTS[40]]}, *records[1:]])


def mined_by_a_loop(bert: bertjax.Bert, corpus: list[str], count: int, first: int, last: int, highest) -> dict:
    """{pair: scores of its negatives} by a plain loop; highest(score of the positive) -> the highest of a negative."""
    found = {}
    for anchor, positive in dict.fromkeys(PAIRS):
        positives = {b for a, b in PAIRS if a == anchor}
        scores = dict(zip(corpus, bert.similarity(anchor, corpus).tolist(), strict=True))
        others = sorted((text for text in corpus if text not in positives | {anchor}), key=lambda text: -scores[text])
        chosen = [text for text in others[first:last] if scores[text] <= highest(scores[positive])]
        found[anchor, positive] = [scores[text] for text in chosen[:count]]
    return found


CASES = {
    'default': ((), 3, 0, 100, lambda score: 9),
    'ranks': (('range_min=2', 'range_max=6', 'num_negatives=4'), 4, 2, 6, lambda score: 9),
    'both margins': (
        ('absolute_margin=0.01', 'relative_margin=0.02'), 3, 0, 100, lambda score: min(score - 0.01, 0.98 * score)
    ),
}  # fmt: skip


@pytest.mark.parametrize('case', mostly_slow(CASES, 'both margins'))
def test_negatives_are_those_of_a_plain_loop(mine, trained, pairs, tmp_path, case):
    changes, *numbers = CASES[case]
    further = write_rows(tmp_path / 'corpus.jsonl', [{'body': text} for text in (*TEXTS[36:], *TEXTS[:3], ' ')])
    found = mine(pairs, f'corpus={further}', 'field=body', *changes)
    corpus = list(dict.fromkeys([PAIRS[0][1], TEXTS[40], *(b for _, b in PAIRS[1:]), *TEXTS[36:], *TEXTS[:3]]))
    bert = bertjax.load(trained)
    expected = mined_by_a_loop(bert, corpus, *numbers)
    assert len(found) == len(expected)  # the pair that occurs twice once
    for row in found:
        np.testing.assert_allclose(row['scores'][1:], expected[row['anchor'], row['positive']], atol=1e-6)
        texts = [row['positive'], *row['negative']]
        np.testing.assert_allclose(row['scores'], bert.similarity(row['anchor'], texts), atol=1e-6)


def test_the_input_is_not_replaced(mine, tmp_path):
    source = write_rows(tmp_path / 'out' / 'negatives' / 'pairs.jsonl', [{'anchor': 'a', 'positive': 'b'}])
    before = source.read_bytes()
    with pytest.raises(AssertionError, match='which would be replaced, expected a file elsewhere'):
        mine(source)
    assert source.read_bytes() == before


def test_the_result_is_read_for_training(mine, pairs, tmp_path):
    found = mine(pairs)
    task = EmbeddingTask(str(tmp_path / 'out' / 'negatives' / 'pairs.jsonl'), 16)
    records = task.records('train')
    assert [(record.form, record.texts) for record in records] == [
        ('pairs', (row['anchor'], row['positive'], *row['negative'])) for row in found
    ]


def test_labels_of_pairs_are_not_read(mine, tmp_path):
    source = write_rows(tmp_path / 'pairs.jsonl', [{'anchor': a, 'positive': b, 'label': 1} for a, b in PAIRS[:3]])
    found = mine(source, 'negative=hard')
    assert 'no record has a negative in the field hard' in mine.stdout and all(row['hard'] for row in found)
    assert [(row['anchor'], row['positive']) for row in found] == PAIRS[:3]


def test_a_run_that_was_interrupted_goes_on(mine, pairs, tmp_path, monkeypatch):
    complete = mine(pairs)
    target = tmp_path / 'out' / 'negatives' / 'pairs.jsonl'
    content = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    assert sorted(content) == ['pairs.json', 'pairs.jsonl']
    assert mine(pairs) == complete  # nothing to do
    target.unlink()
    monkeypatch.setattr(extraction, 'PART_SIZE', 8)
    encode, calls = extraction.encode, []

    def fail_third(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError
        return encode(*arguments, **options)

    monkeypatch.setattr(extraction, 'encode', fail_third)
    with pytest.raises(BaseException):  # noqa: B017
        mine(pairs)
    assert len([*target.with_suffix('.parts').iterdir()]) == 2
    assert mine(pairs) == complete and len(calls) == 3 + 2  # 13 anchors and 15 documents are 4 parts
    assert not target.with_suffix('.parts').exists()


def test_a_beir_folder_and_squad(mine, program, trained, tmp_path):
    folder = tmp_path / 'beir'
    queries, documents = [*TEXTS[:10], '', TEXTS[0]], [*TEXTS[10:30], ' ']
    for name, texts in (('queries', queries), ('corpus', documents)):
        write_rows(folder / f'{name}.jsonl', [{'_id': f'{name[0]}{i}', 'text': text} for i, text in enumerate(texts)])
    (folder / 'qrels').mkdir()
    lines = [f'q{i}\tc{j}\t1\n' for i in range(10) for j in (i, i + 10)]
    lines += ['q0\tc20\t1\n', 'q10\tc0\t1\n', 'q11\tc5\t1\n']  # a blank document, a blank and a repeated query
    (folder / 'qrels' / 'train.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(lines))
    found = mine(folder, 'num_negatives=18')
    assert '2 pairs with a blank text are left out' in mine.stdout
    pairs = {text: [TEXTS[10 + i], TEXTS[20 + i]] for i, text in enumerate(TEXTS[:10])}
    pairs[TEXTS[0]].append(TEXTS[15])
    assert [(row['anchor'], row['positive']) for row in found] == [(a, b) for a in pairs for b in pairs[a]]
    for row in found:  # all other texts
        assert {*row['negative']} == {*TEXTS[10:30]} - {*pairs[row['anchor']]}
    squad = write_squad(tmp_path / 'squad.json')
    found = mine(squad, 'num_negatives=2')
    assert [(row['anchor'], row['positive']) for row in found] == [(TEXTS[0], TEXTS[10]), (TEXTS[2], TEXTS[11])]
    assert {*found[0]['negative']} == {TEXTS[11], TEXTS[12]}  # also a paragraph without an answer


def write_squad(path: pathlib.Path) -> pathlib.Path:
    """Three paragraphs; the second question and the fourth have no answer."""

    def question(i: int, context: str) -> dict:
        answers = [] if i % 2 else [{'text': context[:3], 'answer_start': 0}]
        return {'id': f'i{i}', 'question': TEXTS[i], 'answers': answers, 'is_impossible': i % 2 == 1}

    paragraphs = [
        {'context': TEXTS[10], 'qas': [question(0, TEXTS[10]), question(1, TEXTS[10])]},
        {'context': TEXTS[11], 'qas': [question(2, TEXTS[11])]},
        {'context': TEXTS[12], 'qas': [question(3, TEXTS[12])]},
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({'version': 'v2.0', 'data': [{'title': 'a', 'paragraphs': paragraphs}]}))
    return path


@pytest.mark.slow
def test_squad_trains_and_evaluates_embeddings(program, trained, tmp_path):
    data = tmp_path / 'squad'
    for name in ('train-v2.0.json', 'dev-v2.0.json'):
        write_squad(data / name)
    program.run(
        f'--workdir={tmp_path / "run"}', f'--config.init={trained}', f'--config.data={data}', '--config.steps=1',
        '--config.batch_size=2', '--config.seq_len=16', '--config.max_padded_lengths=1', '--config.export_formats=hf',
        recipe='configs/embed.py', small=False,
    )  # fmt: skip
    bert = bertjax.load(tmp_path / 'run')
    ranks = [[hit['index'] for hit in bert.search(TEXTS[i], TEXTS[10:13])].index(i // 2) for i in (0, 2)]
    figures = results(tmp_path / 'run')['splits']['dev']
    assert figures['mrr_10'] == pytest.approx(np.mean([1 / (rank + 1) for rank in ranks]))


def test_wrong_input_is_reported_before_the_computation(program: Program, trained, pairs, tmp_path):
    def line(*changes: str, source: pathlib.Path = pairs) -> str:
        ask = (f'--workdir={tmp_path / "w"}', f'--config.init={trained}', f'--config.input={source}')
        return program.error(*ask, *(f'--config.mine_negatives.{change}' for change in changes), **RECIPE)

    assert 'range_max: found 4 with range_min=2, expected at least range_min plus num_negatives=3' in line(
        'range_max=4', 'range_min=2'
    )
    assert 'no such file' in line('corpus=nowhere.txt')
    assert 'config.mine_negatives: found two fields named anchor' in line('negative=anchor')
    assert 'config.mine_negatives: found two fields named scores' in line('positive=scores')
    scored = write_rows(tmp_path / 'scored.jsonl', [{'text_a': 'a', 'text_b': 'b', 'score': 1}])
    message = (
        "found the columns 'text_a', 'text_b', 'score', expected query and positive; name the columns, for example"
    )
    assert f'{message} --config.mine_negatives.anchor=question' in line('anchor=query', source=scored)
    lists = write_rows(tmp_path / 'lists.jsonl', [{'anchor': 'a', 'positive': ['b']}])
    assert 'name another field in config.mine_negatives' in line(source=lists)
    os.mkfifo(tmp_path / 'pipe')
    assert f'config.mine_negatives.corpus: found {tmp_path / "pipe"}, a pipe' in line(f'corpus={tmp_path / "pipe"}')
    assert 'config.input: found nothing' in line(source='')
    expected = 'expected a file that can be read more than once; give a file'
    assert f'config.input: found -, standard input, {expected}' in line(source='-')
    assert line(source=tmp_path).endswith(
        "no file of the train split among 'lists.jsonl', 'pairs.jsonl', 'scored.jsonl', expected train.csv, "
        'train.jsonl …; add or rename the file'
    )
    assert not (tmp_path / 'w').exists()
