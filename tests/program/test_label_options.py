"""Several labels per text, weights of labels, and questions with three or four endings, up to the export."""

import json
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
from golden_runs import COLORS, PLACES
from running import Program, results, rows

from bertjax.training.predict import Predictor

SHORT = (
    '--config.seq_len=32',
    '--config.max_padded_lengths=1',
    '--config.batch_size=8',
    '--config.steps=6',
    '--config.learning_rate=3e-3',
    '--config.log_every=1',
    '--config.eval_every=0',
    '--config.model.dropout=0.0',
    '--config.model.attention_dropout=0.0',
)


def texts(count: int) -> list[tuple[str, list[str]]]:
    """Returns (text, labels) pairs; the labels tell whether the text names a color or a place."""
    found = []
    for i in range(count):
        labels = [name for k, name in enumerate(('color', 'place')) if (i + k * (i // 3)) % 3]
        words = [COLORS[i % 5] if 'color' in labels else 'the', 'bird', PLACES[i % 5] if 'place' in labels else 'sings']
        found.append((' '.join([*words, *(['runs'] * (i % 4))]), labels))
    return found


def load_peer(workdir: pathlib.Path, name: str):
    """Loads the export as this class of transformers; returns the model and its tokenizer."""
    transformers = pytest.importorskip('transformers', reason='loads the export')
    folder = workdir / 'export' / 'hf'
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


SEVERAL = {'recipe': 'configs/multi_label.py', 'small': False}


@pytest.fixture(scope='module')
def several(program: Program, trained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of a run over texts with several labels."""
    data = tmp_path_factory.mktemp('several')
    for split, count in (('train', 40), ('dev', 12)):
        lines = [json.dumps({'text': text, 'label': labels}) for text, labels in texts(count)]
        (data / f'{split}.jsonl').write_text('\n'.join(lines) + '\n')
    flags = (f'--workdir={data / "run"}', f'--config.init={trained}', f'--config.data={data}', *SHORT)
    with mock.patch.object(Predictor, 'outputs', autospec=True, side_effect=Predictor.outputs) as evaluated:
        out = program.run(*flags, '--config.task.metric=macro_f1', **SEVERAL).stdout
    assert evaluated.call_count == 1  # on dev, at the end
    assert '40 records for training, 2 labels' in out and 'micro average' in out
    assert 'records with all labels correct' in out
    return data / 'run'


@pytest.mark.slow
def test_several_labels_agree_with_transformers(several: pathlib.Path):
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    found = results(several)
    assert found['score'] == 'macro_f1' and set(found['splits']['dev']) >= {'micro_f1', 'macro_f1', 'exact'}

    predictions = rows(several / 'predictions' / 'dev.jsonl')
    model, tokenizer = load_peer(several, 'BertForSequenceClassification')
    assert model.config.problem_type == 'multi_label_classification'
    assert model.config.id2label == {0: 'color', 1: 'place'}
    inputs = tokenizer([text for text, _ in texts(12)], padding=True, return_tensors='pt')
    true = torch.tensor([[float(name in labels) for name in ('color', 'place')] for _, labels in texts(12)])
    with torch.no_grad():
        outputs = model(**inputs, labels=true)
    ours = np.array([[row['probabilities'][name] for name in ('color', 'place')] for row in predictions])
    np.testing.assert_allclose(ours, outputs.logits.sigmoid().numpy(), atol=2e-5)
    loss = -np.log(np.where(true.numpy() > 0, ours, 1 - ours)).mean()
    assert outputs.loss.item() == pytest.approx(loss, rel=1e-4)
    for row, (_, labels) in zip(predictions, texts(12), strict=True):
        assert row['true'] == labels and row['labels'] == [n for n, p in row['probabilities'].items() if p > 0.5]
    assert found['splits']['dev']['exact'] == sum(row['labels'] == row['true'] for row in predictions) / 12


@pytest.mark.slow
def test_another_threshold_changes_the_labels(program: Program, several: pathlib.Path, tmp_path: pathlib.Path):
    """The model does not change, and input files need no labels."""
    workdir = shutil.copytree(several, tmp_path / 'run')
    arguments = (f'--workdir={workdir}', '--config.task.threshold=0.99999')
    out = program.run(*arguments, '--config.run=evaluate', **SEVERAL).stdout
    assert 'dev\n' not in out  # a heading only for several splits
    found = results(workdir)
    assert found['splits'] == results(several)['splits']
    (other,) = found['other_data'].values()
    assert other['splits']['dev']['micro_recall'] == 0
    (tmp_path / 'own.txt').write_text('the old river\n')
    program.run(*arguments, '--config.run=predict', f'--config.input={tmp_path / "own.txt"}', **SEVERAL)
    assert rows(workdir / 'predictions' / 'input' / 'own.jsonl')[0]['labels'] == []
    program.run(f'--workdir={workdir}', '--config.run=export', **SEVERAL)
    line = program.error(f'--workdir={workdir}', '--config.run=evaluate', recipe='configs/classify.py', small=False)
    assert "config.task.kind: found 'classification', expected 'multi_label'" in line


@pytest.mark.slow
def test_the_loss_has_the_weights_of_labels(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The loss of the first step is that of PyTorch; the step is too small to change the exported parameters."""
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    table = [(text, '+'.join(labels) or 'none') for text, labels in texts(8)]
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in table))
    recipe = {'recipe': 'configs/classify.py', 'small': False}
    flags = (f'--workdir={tmp_path / "run"}', f'--config.init={trained}', f'--config.data={tmp_path}', *SHORT)
    flags += ('--config.task.dev_fraction=0.0', '--config.steps=1', '--config.learning_rate=1e-30')
    out = program.run(*flags, '--config.task.class_weights=balanced', **recipe).stdout
    assert 'weights in the loss: ' in out
    model, tokenizer = load_peer(tmp_path / 'run', 'BertForSequenceClassification')
    labels = torch.tensor([model.config.label2id[label] for _, label in table])
    counts = torch.bincount(labels)
    weight = len(labels) / (len(counts) * counts.float())
    with torch.no_grad():
        logits = model(**tokenizer([text for text, _ in table], padding=True, return_tensors='pt')).logits
    expected = torch.nn.functional.cross_entropy(logits, labels, weight=weight).item()
    plain = torch.nn.functional.cross_entropy(logits, labels).item()
    (row,) = rows(tmp_path / 'run' / 'metrics.jsonl', 'train')
    assert row['loss'] == pytest.approx(expected, rel=1e-4) and row['loss'] != pytest.approx(plain, rel=1e-4)
    line = program.error(*flags, '--config.task.class_weights=nobody=2', **recipe)
    assert "config.task.class_weights: found a weight of 'nobody'" in line


@pytest.mark.slow
def test_questions_with_three_and_four_endings_agree_with_transformers(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    torch = pytest.importorskip('torch', reason='compares with PyTorch')

    def question(i: int) -> dict:
        endings = [f'runs to the {PLACES[(i + j) % 5]}' for j in range(3 + i % 2)]
        return {'prompt': f'the wind falls on the {PLACES[i % 5]}', 'endings': endings, 'label': i % len(endings)}

    for split, count in (('train', 24), ('dev', 9)):
        (tmp_path / f'{split}.jsonl').write_text(''.join(json.dumps(question(i)) + '\n' for i in range(count)))
    recipe = {'recipe': 'configs/swag.py:jsonl', 'small': False}
    flags = (f'--workdir={tmp_path / "run"}', f'--config.init={trained}', f'--config.data={tmp_path}', *SHORT)
    out = program.run(*flags, **recipe).stdout
    assert '12 questions with 3 endings, 12 questions with 4 endings' in out
    predictions = rows(tmp_path / 'run' / 'predictions' / 'dev.jsonl')
    model, tokenizer = load_peer(tmp_path / 'run', 'BertForMultipleChoice')
    right = 0
    for i, row in enumerate(predictions):
        record = question(i)
        pairs = tokenizer(
            [record['prompt']] * len(record['endings']), record['endings'], padding=True, return_tensors='pt'
        )
        with torch.no_grad():
            probabilities = model(**{name: x[None] for name, x in pairs.items()}).logits.softmax(-1)[0].numpy()
        np.testing.assert_allclose(row['probabilities'], probabilities, atol=2e-5)
        right += row['prediction'] == record['label']
    assert results(tmp_path / 'run')['splits']['dev']['accuracy'] == right / 9
    program.run(f'--workdir={tmp_path / "run"}', '--config.run=evaluate', **recipe)
    assert results(tmp_path / 'run')['splits']['dev']['accuracy'] == right / 9
    (tmp_path / 'own.jsonl').write_text(''.join(json.dumps(question(i)) + '\n' for i in (0, 1)))
    arguments = ('--config.run=predict', f'--config.input={tmp_path / "own.jsonl"}')
    program.run(f'--workdir={tmp_path / "run"}', *arguments, **recipe)
    answers = rows(tmp_path / 'run' / 'predictions' / 'input' / 'own.jsonl')
    assert [len(row['probabilities']) for row in answers] == [3, 4]
