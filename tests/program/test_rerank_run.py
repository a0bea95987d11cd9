"""Rerankers from files to figures, scores and a folder that CrossEncoder of sentence-transformers loads."""

import json
import pathlib
import shutil
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from embedding_runs import SHORT, sentences, write_rows
from json_tokenizers import write_modernbert
from running import Program, results, rows

import bertjax
from bertjax.api import Bert
from bertjax.inference.task_methods import score_pairs
from bertjax.metrics.classification import spearman
from bertjax.model.heads import BertForTask

QUICK = (*SHORT, '--config.seq_len=32')


def lists(count: int, seed: int, *, teacher: bool = False) -> list[dict]:
    """Queries whose positive has their words in another order, with one to three negatives."""
    draw, records = np.random.default_rng(seed), []
    for i, text in enumerate(sentences(count, seed)):
        positive = ' '.join(draw.permutation(text[:-1].split())) + '.'
        record = {'anchor': text, 'positive': positive, 'negative': sentences(1 + i % 3, seed + 100 + i)}
        records.append(record | ({'score': [2.0] + [-1.0] * (1 + i % 3)} if teacher else {}))
    return records


def scored(count: int, seed: int) -> list[dict]:
    draw, texts = np.random.default_rng(seed), zip(sentences(count, seed), sentences(count, seed + 50), strict=True)
    return [{'text_a': a, 'text_b': b, 'score': int(draw.integers(0, 2))} for a, b in texts]


def train(program: Program, start: pathlib.Path, data: pathlib.Path, *changes: str, recipe='configs/rerank.py'):
    workdir = data.parent / 'run'
    given = (f'--workdir={workdir}', f'--config.init={start}', f'--config.data={data}', *QUICK)
    return workdir, program.run(*given, *changes, recipe=recipe, small=False).stdout


def scores(bert: Bert, queries: list[str], texts: list[str]) -> np.ndarray:
    return np.array(score_pairs(bert._runner, queries, texts))


def losses(workdir: pathlib.Path) -> list[float]:
    return [row['loss'] for row in rows(workdir / 'metrics.jsonl') if row.get('split') == 'train']


@pytest.fixture(scope='module')
def ranker(once: Callable, program: Program, trained: pathlib.Path) -> pathlib.Path:
    """The workdir of a reranker that is trained and evaluated with lists; its data are beside it."""

    def fill(folder: pathlib.Path) -> None:
        write_rows(folder / 'data' / 'train.jsonl', lists(24, 1))
        write_rows(folder / 'data' / 'dev.jsonl', lists(12, 2))
        _, stdout = train(program, trained, folder / 'data', '--config.steps=20')
        assert 'with the loss softmax' in stdout

    return once('ranker', fill) / 'run'


@pytest.fixture(scope='module')
def scorer(once: Callable, program: Program, trained: pathlib.Path) -> pathlib.Path:
    """The workdir of a reranker that is trained and evaluated with scored pairs."""

    def fill(folder: pathlib.Path) -> None:
        for split, seed in (('train', 1), ('dev', 2)):
            write_rows(folder / 'data' / f'{split}.jsonl', scored(16, seed))
        _, stdout = train(program, trained, folder / 'data')
        assert 'with the loss bce' in stdout

    return once('scorer', fill) / 'run'


@pytest.mark.slow
def test_lists(program: Program, ranker: pathlib.Path, scorer: pathlib.Path, tmp_path: pathlib.Path):
    workdir, dev = shutil.copytree(ranker, tmp_path / 'run'), lists(12, 2)
    assert losses(workdir)[-1] < losses(workdir)[0]
    found = results(workdir)
    assert found['score'] == 'ndcg_10' and set(found['splits']['dev']) == {'ndcg_10', 'mrr_10'}
    predicted, bert = rows(workdir / 'predictions' / 'dev.jsonl'), bertjax.load(workdir)
    assert 'scores of pairs of texts' in repr(bert)
    for record, row in zip(dev, predicted, strict=True):
        texts = [record['positive'], *record['negative']]
        mine = np.sort(scores(bert, [record['anchor']] * len(texts), texts))[::-1]
        np.testing.assert_allclose([document['score'] for document in row['documents']], mine, atol=1e-5)
    ranks = [1 + [x['relevance'] for x in row['documents']].index(1) for row in predicted]
    assert found['splits']['dev']['mrr_10'] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert found['splits']['dev']['ndcg_10'] == pytest.approx(np.mean([1 / np.log2(1 + rank) for rank in ranks]))
    again = program.run(
        f'--workdir={workdir}', f'--config.data={ranker.parent / "data"}', '--config.run=evaluate',
        recipe='configs/rerank.py', small=False,
    )  # fmt: skip
    assert 'ndcg_10 *' in again.stdout and results(workdir)['splits'] == found['splits']
    # Another config.init, whose activation is a sigmoid, does not change the finished run.
    learned = (workdir / 'task.json').read_bytes()
    _, stdout = train(program, scorer, ranker.parent / 'data', f'--workdir={workdir}', '--config.steps=20')
    assert 'all 20 steps are done' in stdout and (workdir / 'task.json').read_bytes() == learned


@pytest.mark.slow
def test_a_teachers_scores(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The teacher's margin is 3, and the reranker's margin is 0 at first."""
    write_rows(tmp_path / 'data' / 'train.jsonl', lists(24, 1, teacher=True))
    workdir, stdout = train(program, trained, tmp_path / 'data', '--config.export=False')
    assert 'with the loss margin_mse' in stdout and losses(workdir)[0] == pytest.approx(9, abs=0.5)
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    program.run(f'--workdir={workdir}', '--config.run=report', recipe='configs/rerank.py', small=False)
    page = (workdir / 'report.html').read_text(encoding='utf-8')
    assert ' · 2, -1' in page and ' · 2, -1, 0' not in page  # no scores of missing texts


def test_scored_pairs(program: Program, scorer: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(scorer, tmp_path / 'run')
    predicted = rows(workdir / 'predictions' / 'dev.jsonl')
    mine, true = ([row[name] for row in predicted] for name in ('score', 'true'))
    assert results(workdir)['splits']['dev']['spearman'] == spearman(true, mine) and 0 < min(mine) < max(mine) < 1
    dev = scored(16, 2)
    columns = [[row[name] for row in dev] for name in ('text_a', 'text_b')]
    np.testing.assert_allclose(scores(bertjax.load(workdir), *columns), mine, atol=1e-6)
    np.testing.assert_allclose(scores(bertjax.load(workdir, step=6), *columns), mine, atol=1e-6)
    (tmp_path / 'mine.txt').write_text(f'{columns[0][0]}\t{columns[1][0]}\n')
    predict = ('--config.run=predict', f'--config.input={tmp_path / "mine.txt"}')
    program.run(f'--workdir={workdir}', *predict, recipe='configs/rerank.py', small=False)
    (row,) = rows(workdir / 'predictions' / 'input' / 'mine.jsonl')
    assert row == {'score': pytest.approx(mine[0], abs=1e-6)}


@pytest.mark.slow
def test_a_reranker_teaches_another(program: Program, trained, ranker: pathlib.Path, tmp_path: pathlib.Path):
    given = (f'--workdir={tmp_path / "student"}', f'--config.init={trained}', f'--config.distill.teacher={ranker}')
    given += (f'--config.data={ranker.parent / "data"}', '--config.distill.student_init=init', *QUICK)
    stdout = program.run(*given, recipe='configs/distilbert.py:rerank', small=False).stdout
    assert 'losses: 1 x soft, 1 x hard\n' in stdout  # squared errors have no temperature
    assert {'soft_loss', 'label_loss'} <= rows(tmp_path / 'student' / 'metrics.jsonl')[0].keys()
    card = (tmp_path / 'student' / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')
    assert 'distillation, soft' in card and 'temperature' not in card


@pytest.mark.slow
def test_packed_lists_have_the_losses_of_padded_ones(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Also with two parts of a batch."""
    clone, found = BertForTask.clone, []
    for name in ('packed', 'alone'):
        data = tmp_path / name / 'data'
        write_rows(data / 'train.jsonl', lists(24, 1))
        changes = (
            '--config.packing=on',
            '--config.grad_accum_steps=2',
            '--config.batch_size=16',
            '--config.export=False',
        )
        alone = mock.patch.object(BertForTask, 'clone', lambda self, packing=None, **new: clone(self, **new))
        with alone if name == 'alone' else mock.patch.dict({}):
            given = (f'--workdir={data.parent / "run"}', f'--config.init={trained}', f'--config.data={data}', *QUICK)
            program.run(*given, *changes, recipe='configs/rerank.py', small=False)
        found.append(losses(data.parent / 'run'))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['bert', 'modern'])
def test_the_export_is_a_cross_encoder(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, kind: str):
    package = pytest.importorskip('sentence_transformers', reason='reads the export')
    start = trained
    if kind == 'modern':
        start = tmp_path / 'start'
        start.mkdir()
        write_modernbert('modern', program.corpus.read_text().split('\n'), start, size=400)
    queries, texts = [*sentences(5, 8), 'bird'], [*sentences(5, 9), ' '.join(sentences(12, 9))]  # the last is too long
    for name, records in (('lists', lists(16, 1)),) if kind == 'modern' else (('scored', scored(16, 1)),):
        data = tmp_path / name / 'data'
        write_rows(data / 'train.jsonl', records)
        workdir, _ = train(program, start, data, '--config.steps=4')
        bert = bertjax.load(workdir)
        mine = scores(bert, queries, texts)
        bertjax.load(workdir, step=4).save(workdir / 'saved')
        for folder in (workdir / 'export' / 'hf', workdir / 'saved'):
            theirs = package.CrossEncoder(str(folder), device='cpu')
            assert theirs.max_seq_length == 32 and theirs.num_labels == 1
            assert json.loads((folder / 'tokenizer_config.json').read_text())['model_max_length'] == 32
            settings = json.loads((folder / 'config_sentence_transformers.json').read_text())
            config = json.loads((folder / 'config.json').read_text())
            assert config['sentence_transformers'] == {'activation_fn': settings['activation_fn']}
            np.testing.assert_allclose(theirs.predict([*zip(queries, texts, strict=True)]), mine, rtol=1e-6, atol=1e-6)
        # Their folder, which has no task.json, gives the same scores, and starts a training or an evaluation.
        theirs.save(str(tmp_path / name / 'theirs'))
        assert not (tmp_path / name / 'theirs' / 'task.json').exists()
        np.testing.assert_allclose(
            scores(bertjax.load(tmp_path / name / 'theirs'), queries, texts), mine, rtol=1e-6, atol=1e-6
        )
        bertjax.load(tmp_path / name / 'theirs').save(tmp_path / name / 'again')
        theirs = package.CrossEncoder(str(tmp_path / name / 'again'), device='cpu')
        np.testing.assert_allclose(theirs.predict([*zip(queries, texts, strict=True)]), mine, rtol=1e-6, atol=1e-6)
        data = tmp_path / name / 'evaluated' / 'data'
        pairs = [{'text_a': a, 'text_b': b, 'score': i} for i, (a, b) in enumerate(zip(queries, texts, strict=True))]
        write_rows(data / 'test.jsonl', pairs)
        evaluated = ('--config.run=evaluate', '--config.split=test')
        workdir, _ = train(program, tmp_path / name / 'theirs', data, *evaluated)
        predicted = [row['score'] for row in rows(workdir / 'predictions' / 'test.jsonl')]
        np.testing.assert_allclose(predicted, mine, rtol=1e-6, atol=1e-6)


def test_a_batch_is_truncated_as_the_scored_pairs_are(scorer: pathlib.Path):
    bert, query, text = bertjax.load(scorer), 'the bird', ' '.join(['the river runs'] * 20)
    logits = np.asarray(bert.apply(bert.params, bert.batch(query, text))['logits'])
    np.testing.assert_allclose(1 / (1 + np.exp(-logits[0])), scores(bert, [query], [text]), rtol=1e-5)


def test_a_folder_without_marks_is_a_regression(trained: pathlib.Path, scorer: pathlib.Path, tmp_path: pathlib.Path):
    """Its logits are the scores, and other models do not score pairs."""
    plain = shutil.copytree(scorer / 'export' / 'hf', tmp_path / 'plain')
    for name in ('task.json', 'modules.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'):
        (plain / name).unlink()
    config = json.loads((plain / 'config.json').read_text())
    # Versions 4 and 5 of sentence-transformers read these two, and none of the removed files.
    assert config.pop('sentence_transformers') == {'activation_fn': 'torch.nn.modules.activation.Sigmoid'}
    assert json.loads((plain / 'tokenizer_config.json').read_text())['model_max_length'] == 32
    assert config['id2label'] == {'0': 'LABEL_0'}
    (plain / 'config.json').write_text(json.dumps(config))
    expected = scores(bertjax.load(scorer), ['the bird'], ['a river'])
    np.testing.assert_allclose(1 / (1 + np.exp(-scores(bertjax.load(plain), ['the bird'], ['a river']))), expected)
    assert score_pairs(bertjax.load(trained)._runner, ['a'], ['b']) is None
