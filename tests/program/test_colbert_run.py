"""Late interaction from files to figures, scores and a folder that MultiVectorEncoder loads."""

import json
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
from embedding_runs import sentences, write_rows
from json_tokenizers import write_modernbert
from running import ONE_LENGTH, Program, results, rows
from test_rerank_run import lists, losses, scored, scores, train

import bertjax
from bertjax.errors import UserError
from bertjax.model.heads import BertForTask

RECIPE = 'configs/colbert.py'
QUICK = ('--config.task.query_len=12', '--config.task.dim=16')


def colbert(program: Program, start: pathlib.Path, data: pathlib.Path, *changes: str):
    return train(program, start, data, *QUICK, *changes, recipe=RECIPE)


def assert_equal_cosines(x: np.ndarray, y: np.ndarray) -> None:
    """A score is the sum of at most 12 cosines."""
    np.testing.assert_allclose(x / 12, y / 12, rtol=0, atol=1e-6)


def test_pairs_with_negatives(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data, dev = tmp_path / 'data', lists(12, 2)
    write_rows(data / 'train.jsonl', lists(24, 1))
    write_rows(data / 'dev.jsonl', dev)
    workdir, stdout = colbert(program, trained, data, '--config.steps=20', '--config.grad_accum_steps=2',
                              '--config.export_formats=hf,orbax')  # fmt: skip
    assert 'with the loss info_nce' in stdout and losses(workdir)[-1] < losses(workdir)[0]
    found, predicted = results(workdir), rows(workdir / 'predictions' / 'dev.jsonl')
    assert found['score'] == 'ndcg_10' and len(predicted) == 12
    # The finished model scores the same pairs with the same numbers.
    texts = list(dict.fromkeys(text for record in dev for text in (record['positive'], *record['negative'])))
    bert = bertjax.load(workdir)
    assert 'vectors of tokens' in repr(bert)
    for row in predicted:
        mine = scores(bert, [row['text']] * len(texts), texts)
        order = np.argsort(-mine, kind='stable')
        np.testing.assert_allclose([x['score'] for x in row['documents']], mine[order][:10], rtol=1e-5)
    np.testing.assert_allclose(scores(bertjax.load(workdir, step=20), texts[:3], texts[3:6]),
                               scores(bert, texts[:3], texts[3:6]), rtol=1e-6)  # fmt: skip
    with pytest.raises(UserError, match='found a model that also reads token_roles, expected a model that reads only'):
        bert.batch(texts)
    with pytest.raises(UserError, match=r'max_length: found 8, .* the task allows \(config.task.query_len: found 12, '):
        bertjax.load(workdir, max_length=8)
    other, start = f'--workdir={tmp_path / "other"}', f'--config.init={workdir / "export" / "orbax"}'
    line = program.error(other, start, f'--config.data={data}', *QUICK, '--config.task.augment=False', recipe=RECIPE,
                         small=False)  # fmt: skip
    assert 'config.task.augment: found False for' in line and 'expected True, as in that model; set it' in line
    # A resumed run does not start from config.init, so another late-interaction model has no effect.
    shutil.copytree(workdir / 'export' / 'orbax', tmp_path / 'start')
    path = tmp_path / 'start' / 'task.json'
    path.write_text(path.read_text().replace('"augment": true', '"augment": false'))
    _, stdout = colbert(program, path.parent, data, '--config.steps=20', '--config.grad_accum_steps=2')
    assert 'all 20 steps are done' in stdout


@pytest.mark.slow
def test_a_teachers_scores(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    data = tmp_path / 'data'
    write_rows(data / 'train.jsonl', lists(24, 1, teacher=True))
    write_rows(data / 'dev.jsonl', scored(8, 2))
    workdir, stdout = colbert(program, trained, data, '--config.steps=20', '--config.export=False')
    assert 'with the loss kl' in stdout
    assert losses(workdir)[-1] < 0.9 * losses(workdir)[0] and results(workdir)['score'] == 'spearman'


@pytest.mark.slow
def test_packed_rows_have_the_losses_of_separate_rows(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The packed rows are on eight devices, the others on one: the negatives are those of all devices and parts."""
    clone, found = BertForTask.clone, []
    for name, devices in (('packed', 8), ('alone', 1)):
        data = tmp_path / name / 'data'
        write_rows(data / 'train.jsonl', lists(24, 1))
        changes = ('--config.packing=on', '--config.grad_accum_steps=2', '--config.model.dropout=0.0')
        alone = mock.patch.object(BertForTask, 'clone', lambda self, packing=None, **new: clone(self, **new))
        with alone if name == 'alone' else mock.patch.dict({}):
            given = (f'--workdir={data.parent / "run"}', f'--config.init={trained}', f'--config.data={data}')
            sizes = ('--config.seq_len=32', '--config.steps=4', '--config.log_every=1', '--config.learning_rate=1e-3')
            sizes += (ONE_LENGTH, '--config.batch_size=16', '--config.export=False')
            program.run(*given, *sizes, *QUICK, *changes, recipe=RECIPE, small=False, devices=devices)
        found.append(losses(data.parent / 'run'))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['bert', 'modern'])
def test_the_export_is_a_multi_vector_encoder(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, kind: str
):
    package = pytest.importorskip('sentence_transformers', reason='reads the export')
    start = trained
    if kind == 'modern':
        start = tmp_path / 'start'
        start.mkdir()
        write_modernbert('modern', program.corpus.read_text().split('\n'), start, size=400)
        config = json.loads((start / 'config.json').read_text())
        (start / 'config.json').write_text(json.dumps({**config, 'local_attention': 20}))
    queries, texts = [*sentences(5, 8), 'bird'], [*sentences(5, 9), ', '.join(sentences(12, 9))]  # the last is too long
    options = {
        'usual': (),
        'plain': ('--config.task.augment=False', '--config.task.skip_punctuation=False'),
    }
    if kind == 'modern':
        options = {'attend': ('--config.task.attend=True', "--config.task.query_prompt='query: '")}
    for name, changes in options.items():
        data = tmp_path / name / 'data'
        write_rows(data / 'train.jsonl', lists(16, 1))
        workdir, _ = colbert(program, start, data, '--config.steps=3', *changes)
        mine = scores(bertjax.load(workdir), queries, texts)
        bertjax.load(workdir, step=3).save(workdir / 'saved')
        for folder in (workdir / 'export' / 'hf', workdir / 'saved'):
            theirs = package.MultiVectorEncoder(str(folder), device='cpu')
            encoded = theirs.encode_query(queries), theirs.encode_document(texts)
            assert encoded[0][0].shape[1] == 16 and (name == 'plain') == (len(encoded[0][-1]) < 12)
            assert_equal_cosines(theirs.similarity_pairwise(*encoded).numpy(), mine)
        # Their folder, which has no task.json, gives the same scores, also after it is saved again.
        theirs.save(str(tmp_path / name / 'theirs'))
        loaded = bertjax.load(tmp_path / name / 'theirs')
        assert_equal_cosines(scores(loaded, queries, texts), mine)
        loaded.save(tmp_path / name / 'again')
        assert_equal_cosines(scores(bertjax.load(tmp_path / name / 'again'), queries, texts), mine)
    if kind == 'modern':
        return
    # A run starts from such a folder with its projection, if its options are the same.
    workdir = tmp_path / 'continued' / 'data'
    write_rows(workdir / 'train.jsonl', lists(16, 1))
    _, stdout = colbert(program, tmp_path / 'usual' / 'theirs', workdir, '--config.steps=1')
    assert 'newly initialized: nothing' in stdout
    message = program.error(
        f'--workdir={tmp_path / "other"}', f'--config.init={tmp_path / "usual" / "theirs"}', '--config.task.dim=8',
        f'--config.data={workdir}', '--config.task.query_len=12', recipe=RECIPE, small=False,
    )  # fmt: skip
    assert 'config.task.dim: found 8 for' in message and 'expected 16, as in that model' in message
