"""Embedding models from data files to metrics and vectors."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from embedding_runs import embed, pairs, sentences, unit, write_rows
from running import Program, results, rows

import bertjax
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, module_files
from bertjax.metrics.classification import spearman


def test_pairs_with_negatives_are_learned_and_ranked(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = tmp_path / 'data'
    write_rows(data / 'train.jsonl', pairs(24, 1))
    dev = [*pairs(12, 2), {'anchor': 'the bird.', 'positive': 'the wind.'}, {'anchor': 'the bird.', 'positive': 'a'}]
    write_rows(data / 'dev.jsonl', dev)
    workdir, _ = embed(
        program, trained, data, '--config.task.matryoshka_dims=(32,8)', '--config.task.symmetric=True',
        '--config.grad_accum_steps=2', '--config.task.pool=max', '--config.task.normalize=False', '--config.steps=30',
    )  # fmt: skip
    found = results(workdir)
    assert found['score'] == 'ndcg_10' and set(found['splits']['dev']) == {
        'ndcg_10', 'mrr_10', 'recall_1', 'recall_10', 'recall_100',
    }  # fmt: skip
    losses = [row['loss'] for row in rows(workdir / 'metrics.jsonl') if row.get('split') == 'train']
    assert losses[-1] < 0.8 * losses[0]
    predicted = rows(workdir / 'predictions' / 'dev.jsonl')
    assert [row['text'] for row in predicted] == list(dict.fromkeys(record['anchor'] for record in dev))
    assert sum(row['relevance'] for row in predicted[-1]['documents']) == 2  # this anchor has two positives

    # The model loaded in Python ranks the texts by the same cosines.
    bert = bertjax.load(workdir)
    texts = []
    for record in dev:
        negative = record.get('negative', [])
        texts += [record['positive'], *([negative] if isinstance(negative, str) else negative)]
    texts = list(dict.fromkeys(texts))
    vectors = bert.encode(texts)
    assert not np.allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-2)  # normalize=False
    np.testing.assert_allclose(vectors, bert.encode(texts, pool='max'), atol=1e-6)
    prompted = bert.encode([f'the wind {text}' for text in texts])
    np.testing.assert_array_equal(bert.encode(texts, prompt='the wind '), prompted)
    np.testing.assert_allclose(vectors, bertjax.load(workdir, step=30).encode(texts), atol=1e-6)
    cosines = unit(bert.encode([row['text'] for row in predicted])) @ unit(vectors).T
    for row, own in zip(predicted, cosines, strict=True):
        own[[text == row['text'] for text in texts]] = -1  # a search among all other texts
        best = np.sort(own)[::-1]
        scores = [document['score'] for document in row['documents']]
        np.testing.assert_allclose(scores, best[: len(scores)], atol=1e-5)
        assert all(abs(own[int(x['id'][1:])] - x['score']) < 1e-5 for x in row['documents'])
    lines = (workdir / 'predictions' / 'dev' / 'dev.trec').read_text().splitlines()
    same = sum(row['text'] in texts for row in predicted)
    assert len(lines) == len(predicted) * len(texts) - same and lines[0].split()[::3] == ['q0', '1']
    evaluated = program.run(
        f'--workdir={workdir}', f'--config.data={data}', '--config.run=evaluate', recipe='configs/embed.py', small=False
    )
    assert '' not in evaluated.stdout.splitlines()  # the task has no report
    assert 'ndcg_10 *' in evaluated.stdout and results(workdir)['splits'] == found['splits']


@pytest.mark.slow
def test_scored_pairs_of_stsb_are_learned_and_predicted(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    data = tmp_path / 'data'
    data.mkdir()
    header = 'index\tgenre\tsentence1\tsentence2\tscore\n'
    for split, seed in (('train', 1), ('dev', 2), ('test', 3)):
        draw = np.random.default_rng(seed)
        texts = zip(sentences(16, seed), sentences(16, seed + 9), strict=True)
        lines = [f'{i}\tnews\t{a}\t{b}\t{draw.integers(0, 11) / 2:.3f}\n' for i, (a, b) in enumerate(texts)]
        if split == 'test':
            lines = [line.rpartition('\t')[0] + '\n' for line in lines]
        (data / f'{split}.tsv').write_text((header if split != 'test' else header[:-7] + '\n') + ''.join(lines))
    workdir, stdout = embed(program, trained, data, recipe='configs/embed.py:stsb')
    assert 'with the loss cosent' in stdout
    found, predicted = results(workdir), rows(workdir / 'predictions' / 'dev.jsonl')
    assert found['score'] == 'spearman' and set(found['splits']) == {'dev'}
    similar, true = ([row[name] for row in predicted] for name in ('similarity', 'true'))
    assert found['splits']['dev']['spearman'] == spearman(true, similar)
    bert, texts = bertjax.load(workdir), (sentences(16, 2), sentences(16, 11))
    vectors = [bert.encode(side) for side in texts]
    np.testing.assert_allclose(np.linalg.norm(vectors[0], axis=-1), 1, atol=1e-6)
    np.testing.assert_allclose((vectors[0] * vectors[1]).sum(-1), similar, atol=1e-6)
    (tmp_path / 'mine.txt').write_text('the bird.\tthe wind.\n')
    for changes in (['--config.split=test'], [f'--config.input={tmp_path / "mine.txt"}']):
        program.run(
            f'--workdir={workdir}', f'--config.data={data}', '--config.run=predict', *changes,
            recipe='configs/embed.py:stsb', small=False,
        )  # fmt: skip
    assert len(rows(workdir / 'predictions' / 'test.jsonl')) == 16
    (mine,) = rows(workdir / 'predictions' / 'input' / 'mine.jsonl')
    assert mine['similarity'] == pytest.approx(float(np.dot(*bert.encode(['the bird.', 'the wind.']))), abs=1e-6)


@pytest.mark.slow
def test_a_beir_folder_is_learned_and_ranked(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = tmp_path / 'beir'
    documents, queries = sentences(40, 5), sentences(12, 6)
    names = [{3: 'c7', 4: 'c4'}.get(i, f'x{i}') for i in range(12)]  # c4 is relevant to the query c4
    write_rows(data / 'corpus.jsonl', [{'_id': f'c{i}', 'title': 'a', 'text': x} for i, x in enumerate(documents)])
    write_rows(data / 'queries.jsonl', [{'_id': name, 'text': x} for name, x in zip(names, queries, strict=True)])
    (data / 'qrels').mkdir()
    for split, numbers in (('train', range(8, 12)), ('test', range(8))):
        lines = [f'{names[i]}\tc{j}\t{g}\n' for i in numbers for j, g in ((i, 2), (i + 9, 1), (i + 20, 0))]
        (data / 'qrels' / f'{split}.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(lines))
    workdir, stdout = embed(program, trained, data)
    assert '8 records for training with the loss info_nce' in stdout
    found, predicted = results(workdir)['splits'], rows(workdir / 'predictions' / 'test.jsonl')
    assert set(found) == {'test'} and len(predicted) == 8
    assert 'c7' not in [x['id'] for x in predicted[3]['documents']]  # BEIR ignores a document with the id of the query
    bert = bertjax.load(workdir)
    scores = bert.encode(queries[:8]) @ bert.encode([f'a {x}' for x in documents]).T
    scores[3, 7] = -2
    order = np.argsort(-scores, axis=1)
    gains = [{i: 2, i + 9: 1} for i in range(8)]
    discounts = 1 / np.log2(np.arange(10) + 2)
    ndcg = [
        sum(g.get(d, 0) * w for d, w in zip(row, discounts, strict=False)) for row, g in zip(order, gains, strict=True)
    ]
    assert found['test']['ndcg_10'] == pytest.approx(np.mean(ndcg) / (2 + discounts[1]), abs=1e-9)
    recall = np.mean([len({*row[:10]} & {*g}) / 2 for row, g in zip(order, gains, strict=True)])
    assert found['test']['recall_10'] == pytest.approx(recall, abs=1e-9)


@pytest.mark.slow
def test_plain_texts_are_learned_with_dropout(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    write_rows(tmp_path / 'data' / 'train.jsonl', [{'text': text} for text in sentences(24, 4)])
    start = shutil.copytree(trained / 'export' / 'hf', tmp_path / 'start')
    for name, content in module_files(SentenceModules(24, pool='mean_sqrt_len_tokens'), 32, 2).items():
        (start / name).parent.mkdir(exist_ok=True)
        (start / name).write_bytes(content)
    workdir, stdout = embed(program, start, tmp_path / 'data', recipe='configs/embed.py:simcse')
    assert 'with the loss info_nce' in stdout and 'nothing will be evaluated' in stdout
    # The run keeps its pooling if it is repeated with another config.init.
    learned = (workdir / 'task.json').read_bytes()
    assert json.loads(learned)['learned']['pool'] == 'mean_sqrt_len_tokens'
    _, stdout = embed(program, trained, tmp_path / 'data', recipe='configs/embed.py:simcse')
    assert 'all 6 steps are done' in stdout and (workdir / 'task.json').read_bytes() == learned
    losses = [row['loss'] for row in rows(workdir / 'metrics.jsonl') if row.get('split') == 'train']
    assert all(0 < loss < np.log(8) for loss in losses)  # dropout gives two vectors for each text
    rates = ('--config.model.dropout=0', '--config.model.attention_dropout=0')
    places = (f'--workdir={tmp_path / "other"}', f'--config.init={trained}', f'--config.data={tmp_path / "data"}')
    message = program.error(*places, *rates, recipe='configs/embed.py:simcse', small=False)
    assert 'config.model.dropout: found 0 with single texts' in message


def test_wrong_settings_are_errors(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    write_rows(tmp_path / 'train.jsonl', pairs(8, 1))
    flags = (f'--workdir={tmp_path / "run"}', f'--config.data={tmp_path}')
    student = f'--config.init={trained}'
    line = program.error(*flags, student, '--config.trainable=head', recipe='configs/embed.py', small=False)
    assert "config.trainable: found 'head'" in line
    teacher = f'--config.distill.teacher={trained}'
    line = program.error(*flags, teacher, recipe='configs/distilbert.py:embed', small=False)
    assert "config.task.kind: found 'embed', expected a kind of task whose outputs have a distillation loss" in line
    for task in ('rerank', 'glue:stsb'):
        options = {'recipe': f'configs/distilbert.py:{task}', 'small': False}
        line = program.error(*flags, teacher, '--config.distill.temperature=4', **options)
        assert 'config.distill.temperature: found 4 for a task with scores, expected no value' in line


@pytest.mark.slow
def test_runs_that_train_together_do_not_mix_batches(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Each run has the same losses as when it trains alone."""
    losses = []
    for together in (1, 2):
        data = tmp_path / str(together) / 'data'
        write_rows(data / 'train.jsonl', pairs(24, 1))
        write_rows(data / 'dev.jsonl', pairs(8, 2))
        sweep = ('--config.sweep.seeds=(0,1)', f'--config.sweep.together={together}', '--config.grad_accum_steps=2')
        workdir, _ = embed(program, trained, data, *sweep, '--config.export=False')
        files = sorted((workdir / 'trials').glob('*/metrics.jsonl'))
        losses.append([[row['loss'] for row in rows(file) if row.get('split') == 'train'] for file in files])
    assert np.shape(losses) == (2, 2, 3) and losses[0][0] != losses[0][1]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
