"""Tests classification and regression of tables: records, labels, metrics, reports, and errors."""

import json
import types

import jax
import numpy as np
import pytest
from text_world import MAILS, learned, sequences

from bertjax.errors import UserError
from bertjax.finetune.results import json_lines, prediction_rows
from bertjax.inference.task_methods import text_records
from bertjax.losses import CLASSIFICATION, REGRESSION
from bertjax.model.config import BertConfig
from bertjax.tasks.sentence.classification import ClassificationTask, is_held_out
from bertjax.tasks.sentence.task import Example


def predict_true(task: ClassificationTask, records, wrong: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Returns confident predictions of the true labels; for the record numbers in `wrong`, of the next label."""
    width = len(task.labels)
    best = [(task.labels.index(r.label) + (i in wrong)) % width for i, r in enumerate(records)]
    return [4.0 * np.eye(width)[i] for i in best]


def test_a_table_of_spam_is_learned_and_restored(mails, capsys):
    task = learned(mails)
    assert task.labels == ['ham', 'spam'] and list(task.splits()) == ['train', 'dev']
    output = capsys.readouterr().out
    assert '9 records for training, 2 labels' in output and 'spam          3   33.3%' in output
    assert "always predicting 'ham' would be correct for 66.7%" in output
    assert "warning: only 3 of 9 records are 'spam'; check its recall" in output
    assert task.records('dev') == [Example('win a prize', None, 'spam'), Example('see me', None, 'ham')]
    assert task.records('train')[1].where == f'{mails / "train.csv"}:3'
    assert (task.score, task.objective) == ('accuracy', CLASSIFICATION)

    other = ClassificationTask(str(mails), 32)
    other.restore(json.loads(json.dumps(task.learned_state())))
    assert other.labels == task.labels
    assert other.head.architecture == 'BertForSequenceClassification'
    assert other.huggingface() == {
        'id2label': {'0': 'ham', '1': 'spam'},
        'label2id': {'ham': 0, 'spam': 1},
        'problem_type': 'single_label_classification',
    }


def test_a_model_predicts_from_texts(mails, tokenizer):
    task = learned(mails)
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.row['labels'].dtype == np.int32 and features.row['labels'].tolist() == [0] * 6 + [1] * 3
    assert sequences(features, tokenizer)[1] == '(c##a##l##lm##e|'
    config = BertConfig(vocab_size=tokenizer.vocab_size, num_layers=1, width=16, num_heads=2, mlp_dim=32)
    model = task.build_module(config)
    batch = features.batch(np.arange(len(features)), 32, tokenizer.pad_id)
    inputs = [batch[name] for name in task.objective.inputs]
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs)[0])
    outputs = {'logits': np.random.default_rng(0).normal(size=shapes['logits'].shape).astype(np.float32)}
    losses = task.objective.losses(outputs, batch)
    assert np.isfinite(float(losses['loss'][0])) and float(losses['loss'][1]) == len(records)
    predictions = task.predictions(records, features, outputs)
    assert [logits.shape for logits in predictions] == [(2,)] * len(records)
    rows = list(task.rows(records, predictions))
    assert set(rows[0]) == {'label', 'probabilities', 'true'} and set(rows[0]['probabilities']) == {'ham', 'spam'}
    assert sum(rows[0]['probabilities'].values()) == pytest.approx(1)
    assert rows[0]['label'] == max(rows[0]['probabilities'], key=rows[0]['probabilities'].get)
    json.dumps(rows)


def test_predictions_of_a_labeled_split_have_the_fields_of_its_rows(tmp_path):
    row = '{"id": 7, "text": "a", "label": "ham", "size": NaN, "more": [Infinity]}\n'
    for split, text in (('train', row + row.replace('ham', 'spam')), ('dev', row), ('test', row)):
        (tmp_path / f'{split}.jsonl').write_text(text)
    task = learned(tmp_path)
    assert [record.fields for record in task.records('train')] == [None, None]  # they may need much memory
    for split in ('dev', 'test'):
        (line,) = json_lines(prediction_rows(task, task.records(split), [np.array([0.0, 1.0])])).splitlines()
        predicted = json.loads(line, parse_constant=pytest.fail)
        assert {key: predicted[key] for key in ('label', 'true', 'input_label')} == {
            'label': 'spam', 'true': 'ham', 'input_label': 'ham',
        }  # fmt: skip
        assert (predicted['id'], predicted['text'], predicted['size'], predicted['more']) == (7, 'a', None, [None])


def test_metrics_and_report(mails):
    task = learned(mails)
    records = task.records('train')
    predictions = predict_true(task, records, wrong=(0, 7, 8))  # 1 of 6 ham and 2 of 3 spam are wrong.
    figures = task.metrics(records, predictions)
    assert set(figures) == {'accuracy', 'macro_f1', 'matthews', 'f1'}
    assert figures['accuracy'] == pytest.approx(6 / 9) and figures['f1'] == pytest.approx(2 * 1 / (3 + 2))
    report = task.report(records, predictions).splitlines()
    assert [line.split() for line in report[:3]] == [
        ['label', 'precision', 'recall', 'f1', 'true', 'predicted'],
        ['1', 'ham', '0.7143', '0.8333', '0.7692', '6', '7'],
        ['2', 'spam', '0.5000', '0.3333', '0.4000', '3', '2'],
    ]
    assert [line.split() for line in report[-2:]] == [['1', 'ham', '5', '1'], ['2', 'spam', '2', '1']]
    assert len({len(line) for line in report[:3]}) == 1
    assert not task.collapsed(records, predictions)
    assert task.collapsed(records, [np.array([1.0, 0.0])] * len(records))
    assert not task.collapsed(records[:1], predictions[:1])
    assert task.official_files('test', records, predictions) == {}


def test_the_report_of_many_labels_shows_the_most_frequent_confusions(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't{i}\tlabel {i % 25}\n' for i in range(75)))
    task = learned(tmp_path, dev_fraction=0.0)
    records = task.records('train')
    report = task.report(records, predict_true(task, records, wrong=(3, 28)))
    assert 'label 3 predicted as label 4: 2' in report and 'label 2 predicted' not in report


def test_scores_are_learned_and_evaluated(tmp_path, tokenizer, capsys):
    rows = [('a b', 'c', 1), ('b', 'd', 2.5), ('e', 'f', '4'), ('g', 'h', -1)]
    (tmp_path / 'train.jsonl').write_text(''.join(json.dumps({'s': a, 't': b, 'score': y}) + '\n' for a, b, y in rows))
    task = learned(tmp_path, regression=True, text_a='s', text_b='t', label='score', metric='pearson', dev_fraction=0.0)
    assert 'scores from -1 to 4' in capsys.readouterr().out
    assert (task.score, task.objective, list(task.splits())) == ('pearson', REGRESSION, ['train'])
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.row['labels'].dtype == np.float32 and features.row['labels'].tolist() == [1, 2.5, 4, -1]
    assert sequences(features, tokenizer)[0] == '(ab|c|' and features.second[0] == 4
    predictions = [np.array([record.label * 2.0 + 1]) for record in records]
    figures = task.metrics(records, predictions)
    assert list(figures) == ['pearson', 'spearman', 'mse']
    assert figures['pearson'] == pytest.approx(1) and figures['mse'] == pytest.approx(np.mean([4, 12.25, 25, 0]))
    assert next(task.rows(records, predictions)) == {'score': 3.0, 'true': 1.0}
    assert not task.collapsed(records, predictions)
    flat = [np.array([2.0 + i * 1e-4]) for i in range(4)]
    assert task.collapsed(records, flat) and not task.collapsed(records[:1], flat[:1])
    same = [np.array([2.0])] * 4
    assert task.metrics(records, same)['pearson'] is None
    assert task.report(records, predictions) == ''
    assert task.huggingface()['problem_type'] == 'regression' and len(task.huggingface()['id2label']) == 1


@pytest.mark.parametrize('regression', [True, False])
def test_a_model_of_single_texts_refuses_pairs(tmp_path, regression: bool):
    """A model of transformers does not say what it was trained on, and may be a cross-encoder or a model of MNLI."""
    (tmp_path / 'train.csv').write_text('text,label\na,1.5\nb,2\nc,3\nd,4\n')
    options = {'regression': regression, 'dev_fraction': 0.0}
    trained, other = learned(tmp_path, **options), ClassificationTask('', 8, **options)
    model = types.SimpleNamespace(task=other, where='model')
    assert len(text_records(model, ['a'], ['b'])) == 1
    other.restore(json.loads(json.dumps(trained.learned_state())))
    assert len(text_records(model, ['a'], None)) == 1
    with pytest.raises(UserError, match=r'model: found pairs, expected single texts, as in .*; give a model'):
        text_records(model, ['a'], ['b'])


@pytest.mark.parametrize('score', ['1e39', '-1e39', '1e300', '1e19', '1e999', '9' * 50])
def test_a_score_beyond_float32_is_refused(tmp_path, score: str):
    """A score whose square exceeds float32 is refused too, because the loss of its batch would be inf."""
    (tmp_path / 'train.csv').write_text(f'text,label\na,1.5\nb,{score}\n')
    with pytest.raises(UserError, match=r"train\.csv:3: found the score '.*', expected a finite number within ±1e\+15"):
        learned(tmp_path, regression=True, dev_fraction=0.0)


def test_a_score_with_a_decimal_comma_is_refused(tmp_path):
    (tmp_path / 'train.csv').write_text('text,label\na,"3,5"\n')
    with pytest.raises(UserError, match=r"train\.csv:2: found the score '3,5', .*write decimals with a point"):
        learned(tmp_path, regression=True, dev_fraction=0.0)


def test_the_dev_split_is_held_out_by_text(tmp_path):
    texts = [f'text {i}' for i in range(400)]
    write = lambda texts: (tmp_path / 'train.tsv').write_text(  # noqa: E731
        'text\tlabel\n' + ''.join(f'{text}\t{i % 2}\n' for i, text in enumerate(texts))
    )
    write(texts)
    task = ClassificationTask(str(tmp_path), 32)
    train, dev = ({r.first for r in task.records(split)} for split in ('train', 'dev'))
    assert not train & dev and train | dev == set(texts)
    assert 20 <= len(dev) <= 60
    write(['another', *texts, 'TEXT  7', 'Text 8'])
    train, more = ([r.first for r in task.records(split)] for split in ('train', 'dev'))
    assert dev <= set(more) and not set(train) & dev
    assert is_held_out(Example('Text  7', None, None), 0.5) == is_held_out(Example('text 7', None, None), 0.5)
    with pytest.raises(UserError, match=r'no record .*name a dev file in config\.task\.dev'):
        (tmp_path / 'train.tsv').write_text('text\tlabel\na\t1\n')
        task.records('train'), task.records('dev')


def test_data_may_be_a_single_file(tmp_path):
    path = tmp_path / 'SMSSpamCollection'
    path.write_text(''.join(f'{label}\t{mail}\n' for mail, label in MAILS))
    options = {'format': 'tsv', 'columns': ('label', 'text'), 'dev_fraction': 0.3}
    task = learned(path, **options)
    assert task.labels == ['ham', 'spam'] and list(task.splits()) == ['train', 'dev']
    assert len(task.records('train')) + len(task.records('dev')) == len(MAILS)
    (tmp_path / 'other.txt').write_text('ham\tgood\n')
    assert learned(path, **options, test='other.txt').records('test')[0].label == 'ham'
    assert learned(path, **options, train=path.name).labels == ['ham', 'spam']
    with pytest.raises(UserError, match=r"the suffix '', .*; rename it, or set config\.task\.format to one of tsv"):
        learned(path)
    with pytest.raises(UserError, match=r"task\.train: found 'other.txt', expected '', because config\.data is"):
        learned(path, **options, train='other.txt')


def test_the_test_split_may_have_no_labels(mails):
    task = learned(mails)
    (mails / 'test.tsv').write_text('text\na b\n"c\n')
    assert list(task.splits()) == ['train', 'dev']
    assert task.records('test') == [Example('a b', None, None), Example('"c', None, None)]
    (mails / 'test.tsv').write_text('text\tlabel\na b\tham\n')
    assert list(task.splits()) == ['train', 'dev', 'test']


@pytest.mark.parametrize(
    ('name', 'text', 'line', 'message'),
    [
        ('train.csv', 'text,label\na,x\nb,\n', 3, 'an empty label'),
        ('train.csv', 'text,label\na,x\nb,  \n', 3, 'an empty label'),
        ('train.csv', 'text,lable\na,x\n', 1, "'lable'"),
        ('train.csv', 'text,label\na,x\nb,y,z\n', 3, '3 columns'),
        ('train.jsonl', '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', 2, 'no label'),
        ('train.jsonl', '{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n', 2, 'no text'),
        ('train.jsonl', '{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n', 2, 'a JSON list'),
    ],
)
def test_malformed_records_are_errors_with_their_line(tmp_path, name: str, text: str, line: int, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        ClassificationTask(str(tmp_path), 32, dev_fraction=0.0).records('train')
    assert caught.value.where.split(', ')[0] == f'{tmp_path / name}:{line}' and message in caught.value.found
    assert message != "'lable'" or 'config.task.label' in caught.value.fix


def test_repeated_and_empty_texts_are_reported(tmp_path, capsys):
    (tmp_path / 'train.tsv').write_text('text\tlabel\na\tx\na\tx\na\ty\n\ty\n')
    learned(tmp_path, dev_fraction=0.0)
    output = capsys.readouterr().out
    repeated = '2 records repeat the text of an earlier record; 1 with another label'
    assert f'{repeated}, the first at {tmp_path}/train.tsv:4' in output
    assert f'1 records with an empty text, the first at {tmp_path}/train.tsv:5' in output


@pytest.mark.parametrize(
    ('options', 'where'),
    [
        ({'long': 'cut'}, 'config.task.long'),
        ({'stride': 5}, 'config.task.stride'),
        ({'stride': 32, 'long': 'windows'}, 'config.task.stride'),
        ({'seq_len': 4}, 'config.seq_len'),
        ({'labels': ('x',)}, 'config.task.labels'),
        ({'labels': ('x', 'x')}, 'config.task.labels'),
        ({'labels': (0, 1)}, 'config.task.labels'),
        ({'labels': ('x', 'y'), 'regression': True}, 'config.task.labels'),
        ({'metric': 'pearson'}, 'config.task.metric'),
        ({'metric': 'accuracy', 'regression': True}, 'config.task.metric'),
        ({'metric': 'mse', 'regression': True}, 'config.task.metric'),
        ({'dev_fraction': 1.0}, 'config.task.dev_fraction'),
        ({'bilstm_units': -1}, 'config.task.bilstm_units'),
        ({'format': 'xlsx'}, 'config.task.format'),
        ({'format': 'parquet'}, 'config.task.format'),
        ({'text_a': ''}, 'config.task.text_a'),
        ({'text_b': 'label'}, 'config.task'),
    ],
)
def test_invalid_options_are_refused(options: dict, where: str):
    with pytest.raises(UserError) as caught:
        ClassificationTask(**{'data': 'x', 'seq_len': 32, **options})
    assert caught.value.where == where and caught.value.expected and caught.value.fix


def test_the_metric_f1_needs_two_labels(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\na\tx\nb\ty\nc\tz\n')
    with pytest.raises(UserError, match='macro_f1'):
        learned(tmp_path, metric='f1', dev_fraction=0.0)
    task = ClassificationTask('', 32, metric='f1')
    task.restore({'labels': ['x', 'y', 'z']})  # of a model in config.init, with which run=predict needs no metric
    with pytest.raises(UserError, match='with 3 labels'):
        task.score  # noqa: B018


def test_the_error_of_a_missing_split_names_the_dataset(monkeypatch):
    monkeypatch.setattr('bertjax.tasks.reading.splits.dataset_splits', lambda name: {'train': 3})
    with pytest.raises(UserError, match=r'^imdb: found no file of the test split'):
        ClassificationTask('', 32, dataset='imdb').records('test')


def test_missing_files_are_errors(mails):
    task = ClassificationTask(str(mails), 32)
    with pytest.raises(UserError, match='no file of the test split'):
        task.records('test')
    with pytest.raises(UserError, match="'validation'"):
        task.records('validation')
    with pytest.raises(UserError, match='no such file'):
        ClassificationTask(str(mails), 32, train='tarin.csv').records('train')
    with pytest.raises(UserError, match='a folder'):
        ClassificationTask(str(mails / 'nowhere'), 32).records('train')
    with pytest.raises(UserError, match=r'config\.task\.dataset'):
        ClassificationTask('', 32).records('train')
    (mails / 'train.tsv').write_text('text\tlabel\na\tx\n')
    with pytest.raises(UserError, match=r'train\.csv and train\.tsv'):
        task.records('train')


def test_the_error_about_a_missing_header_shows_little_of_the_row(tmp_path):
    (tmp_path / 'train.csv').write_text(
        ','.join(f'"a long text of the first row {i} that is no name"' for i in range(30))
    )
    with pytest.raises(UserError) as caught:
        ClassificationTask(str(tmp_path), 32).records('train')
    assert caught.value.found.startswith("the columns 'a long text of the firs…', ") and len(caught.value.found) < 260
    assert caught.value.found.endswith('and 22 more')


@pytest.mark.parametrize(('scores', 'labeled'), [((-1.0, -1.0), False), ((-1.0, 0.5), True)])
def test_a_test_split_with_only_the_score_minus_one_is_unlabeled(tmp_path, scores, labeled):
    rows = [{'text': 'a', 'label': score} for score in scores]
    (tmp_path / 'train.jsonl').write_text('{"text": "a", "label": 2.5}\n{"text": "b", "label": 1}\n' * 10)
    (tmp_path / 'test.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    task = ClassificationTask(str(tmp_path), 16, regression=True)
    assert ('test' in task.splits()) == labeled
    assert [record.label for record in task.records('test')] == (list(scores) if labeled else [None, None])
