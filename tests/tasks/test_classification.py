"""Classification and regression of any table: records, labels, long texts, pooling, figures, reports, and mistakes."""

import importlib.util
import io
import json
import pathlib

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION, REGRESSION
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params
from bertjax.tasks.classification import ClassificationTask, held_out
from bertjax.tasks.registry import build_task
from bertjax.tasks.text_features import text_features
from bertjax.tasks.text_task import Example, Scores
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

LETTERS = 'abcdefghijklmnopqrstuvwxyz'
HAM = ['meet at noon', 'call me', 'the report is here', 'lunch', 'see you soon', 'ok']
SPAM = ['win cash now', 'free prize', 'cheap pills']
MAILS = [(mail, 'ham') for mail in HAM] + [(mail, 'spam') for mail in SPAM]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A piece a letter: a word of one letter is a token."""
    path = tmp_path_factory.mktemp('vocabulary') / 'vocab.txt'
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *LETTERS, *(f'##{letter}' for letter in LETTERS)]
    path.write_text(''.join(f'{piece}\n' for piece in pieces))
    return load_tokenizer(path)


@pytest.fixture
def mails(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with train.csv and dev.jsonl."""
    (tmp_path / 'train.csv').write_text('label,text\n' + ''.join(f'{label},{mail}\n' for mail, label in MAILS))
    rows = [{'text': 'win a prize', 'label': 'spam'}, {'text': 'see me', 'label': 'ham'}]
    (tmp_path / 'dev.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return tmp_path


def learned(data, **options) -> ClassificationTask:
    task = ClassificationTask(str(data), options.pop('seq_len', 32), **options)
    task.learn(task.records('train'))
    return task


def sequences(features, tokenizer: Tokenizer) -> list[str]:
    """The tokens of each row as a string, its special tokens as ( | )."""
    rows = np.split(features.tokens, features.offsets[1:-1])
    marks = {'[CLS]': '(', '[SEP]': '|'}
    return [''.join(marks.get(tokenizer.pieces[i], tokenizer.pieces[i]) for i in row) for row in rows]


def right(task: ClassificationTask, records, wrong: tuple[int, ...] = ()) -> list[Scores]:
    """Sure predictions of the true labels, but for the numbers in `wrong`: there the next label."""
    width = len(task.labels)
    best = [(task.labels.index(r.label) + (i in wrong)) % width for i, r in enumerate(records)]
    return [Scores(4.0 * np.eye(width)[i]) for i in best]


def test_spam(mails, capsys):
    task = learned(mails)
    assert task.labels == ['ham', 'spam'] and list(task.splits()) == ['train', 'dev']
    said = capsys.readouterr().out
    assert '9 records for training, 2 labels' in said and 'spam          3   33.3%' in said
    assert "always 'ham' would be right in 66.7%" in said and "warning: only 3 of 9 are 'spam'" in said
    assert task.records('dev') == [Example('win a prize', None, 'spam'), Example('see me', None, 'ham')]
    assert task.records('train')[1].where == f'{mails / "train.csv"}:3'
    assert (task.score, task.objective) == ('accuracy', CLASSIFICATION)

    other = ClassificationTask(str(mails), 32)
    other.restore(json.loads(json.dumps(task.learned())))
    assert other.labels == task.labels
    assert other.huggingface() == (
        'BertForSequenceClassification',
        {
            'id2label': {'0': 'ham', '1': 'spam'},
            'label2id': {'ham': 0, 'spam': 1},
            'problem_type': 'single_label_classification',
        },
    )


def test_from_text_to_prediction(mails, tokenizer):
    """A real model: padded by other rows or alone, a record gets the same answer."""
    task = learned(mails)
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.row['labels'].dtype == np.int32 and features.row['labels'].tolist() == [0] * 6 + [1] * 3
    assert sequences(features, tokenizer)[1] == '(c##a##l##lm##e|'
    config = BertConfig(vocab_size=tokenizer.vocab_size, num_layers=1, width=16, num_heads=2, mlp_dim=32)
    model = task.model(config)
    batch = features.batch(np.arange(len(features)), 32, tokenizer.pad_id)
    inputs = [batch[name] for name in task.objective.inputs]
    params = init_params(model, jax.random.key(0), *inputs)
    params = jax.tree.map(lambda x: getattr(x, 'value', x), params, is_leaf=lambda x: hasattr(x, 'value'))
    outputs = model.apply({'params': params}, *inputs, deterministic=True)
    losses = task.objective.losses(outputs, batch)
    assert np.isfinite(float(losses['loss'][0])) and float(losses['loss'][1]) == len(records)
    predictions = task.predictions(records, features, {'logits': list(np.asarray(outputs['logits']))})
    assert [prediction.logits.shape for prediction in predictions] == [(2,)] * len(records)
    rows = list(task.rows(records, predictions))
    assert set(rows[0]) == {'label', 'probabilities', 'true'} and set(rows[0]['probabilities']) == {'ham', 'spam'}
    assert sum(rows[0]['probabilities'].values()) == pytest.approx(1)
    assert rows[0]['label'] == max(rows[0]['probabilities'], key=rows[0]['probabilities'].get)
    json.dumps(rows)


def test_figures_and_report(mails):
    task = learned(mails)
    records = task.records('train')
    predictions = right(task, records, wrong=(0, 7, 8))  # 1 of 6 ham for spam, 2 of 3 spam for ham
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
    assert task.collapsed(records, [Scores(np.array([1.0, 0.0]))] * len(records))
    assert task.official_files('test', records, predictions) == {}


def test_many_labels_show_the_most_frequent_confusions(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't{i}\tlabel {i % 25}\n' for i in range(75)))
    task = learned(tmp_path, dev_fraction=0.0)
    records = task.records('train')
    report = task.report(records, right(task, records, wrong=(3, 28)))
    assert 'label 3 taken for label 4: 2' in report and 'label 2 taken' not in report


def test_regression(tmp_path, tokenizer, capsys):
    rows = [('a b', 'c', 1), ('b', 'd', 2.5), ('e', 'f', '4'), ('g', 'h', -1)]
    (tmp_path / 'train.jsonl').write_text(''.join(json.dumps({'s': a, 't': b, 'score': y}) + '\n' for a, b, y in rows))
    task = learned(tmp_path, regression=True, text_a='s', text_b='t', label='score', metric='pearson', dev_fraction=0.0)
    assert 'scores from -1 to 4' in capsys.readouterr().out
    assert (task.score, task.objective, list(task.splits())) == ('pearson', REGRESSION, ['train'])
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.row['labels'].dtype == np.float32 and features.row['labels'].tolist() == [1, 2.5, 4, -1]
    assert sequences(features, tokenizer)[0] == '(ab|c|' and features.second[0] == 4
    predictions = [Scores(np.array([record.label * 2.0 + 1])) for record in records]
    figures = task.metrics(records, predictions)
    assert list(figures) == ['pearson', 'spearman', 'mse']
    assert figures['pearson'] == pytest.approx(1) and figures['mse'] == pytest.approx(np.mean([4, 12.25, 25, 0]))
    assert next(task.rows(records, predictions)) == {'score': 3.0, 'true': 1.0}
    assert not task.collapsed(records, predictions)
    flat = [Scores(np.array([2.0 + i * 1e-4])) for i in range(4)]
    assert task.collapsed(records, flat)
    same = [Scores(np.array([2.0]))] * 4
    assert task.metrics(records, same)['pearson'] is None
    assert 'mean absolute error' in task.report(records, predictions)
    assert task.huggingface()[1]['problem_type'] == 'regression' and len(task.huggingface()[1]['id2label']) == 1


def test_labels_are_sorted_numbers_first_and_can_be_given(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't\t{y}\n' for y in ('10', 'b', '2', 'a', '2')))
    assert learned(tmp_path, dev_fraction=0.0).labels == ['2', '10', 'a', 'b']
    given = ('b', 'a', '2', '10', 'never')
    assert learned(tmp_path, dev_fraction=0.0, labels=given).labels == list(given)


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
    assert held_out(Example('Text  7', None, None), 0.5) == held_out(Example('text 7', None, None), 0.5)
    with pytest.raises(UserError, match='no record'):
        (tmp_path / 'train.tsv').write_text('text\tlabel\na\t1\n')
        task.records('train'), task.records('dev')


def test_one_file_is_enough(tmp_path):
    path = tmp_path / 'SMSSpamCollection'
    path.write_text(''.join(f'{label}\t{mail}\n' for mail, label in MAILS))
    options = {'format': 'tsv', 'columns': ('label', 'text'), 'dev_fraction': 0.3}
    task = learned(path, **options)
    assert task.labels == ['ham', 'spam'] and list(task.splits()) == ['train', 'dev']
    assert len(task.records('train')) + len(task.records('dev')) == len(MAILS)
    (tmp_path / 'other.txt').write_text('ham\tgood\n')
    assert learned(path, **options, test='other.txt').records('test')[0].label == 'ham'


def test_the_test_split_may_have_no_labels(mails):
    task = learned(mails)
    (mails / 'test.tsv').write_text('text\na b\n"c\n')
    assert list(task.splits()) == ['train', 'dev']
    assert task.records('test') == [Example('a b', None, None), Example('"c', None, None)]
    (mails / 'test.tsv').write_text('text\tlabel\na b\tham\n')
    assert list(task.splits()) == ['train', 'dev', 'test']


# Long texts: tokens are letters, seq_len 12 leaves 10 of one text and 9 of two.
LONG = ' '.join(LETTERS)


def long_rows(tokenizer, first, second=None, **options) -> list[str]:
    pairs = None if second is None else [second]
    options = {'seq_len': 12, 'long': 'truncate', 'stride': 0, **options}
    return sequences(text_features([first], pairs, None, tokenizer, **options), tokenizer)


def test_long_texts(tokenizer):
    assert long_rows(tokenizer, LONG) == ['(abcdefghij|']
    assert long_rows(tokenizer, LONG, long='head_tail') == ['(abctuvwxyz|']
    windows = ['(abcdefghij|', '(fghijklmno|', '(klmnopqrst|', '(pqrstuvwxy|', '(qrstuvwxyz|']
    assert long_rows(tokenizer, LONG, long='windows') == windows
    assert long_rows(tokenizer, LONG, long='windows', stride=10) == [windows[0], windows[2], windows[4]]
    for how in ('truncate', 'head_tail', 'windows'):  # what fits stays whole
        assert long_rows(tokenizer, LONG[:19], long=how) == ['(abcdefghij|']
        assert long_rows(tokenizer, '', long=how) == ['(|']


def test_head_and_tail_have_128_and_382_of_510(tokenizer):
    text = 'a ' * 128 + 'b ' * 1000 + 'c ' * 382
    assert long_rows(tokenizer, text, seq_len=512, long='head_tail') == ['(' + 'a' * 128 + 'c' * 382 + '|']


def test_long_pairs(tokenizer):
    assert long_rows(tokenizer, 'x y', LONG, long='head_tail') == ['(xy|abvwxyz|']
    assert long_rows(tokenizer, LONG, 'x y', long='head_tail') == ['(abvwxyz|xy|']
    assert long_rows(tokenizer, 'x y', LONG[:21], long='windows', stride=3) == [
        '(xy|abcdefg|',
        '(xy|defghij|',
        '(xy|efghijk|',
    ]
    # The shorter one keeps at most half.
    assert long_rows(tokenizer, LONG[:11], LONG, long='windows', stride=5)[0] == '(abcd|abcde|'


@pytest.mark.parametrize(
    'lengths', [(3, 20), (20, 3), (20, 20), (5, 5), (20, 21), (21, 20), (4, 9), (5, 6), (0, 20), (10, 4)]
)
@pytest.mark.parametrize('seq_len', [11, 12])
def test_pairs_are_cut_as_transformers_does(tokenizer, tmp_path, lengths: tuple[int, int], seq_len: int):
    transformers = pytest.importorskip('transformers')
    tokenizer.save(tmp_path / 'saved')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'saved'))
    first, second = (' '.join(LETTERS[:n]) for n in lengths)
    encoded = theirs(first, second, truncation=True, max_length=seq_len)
    options = {'seq_len': seq_len, 'long': 'truncate', 'stride': 0}
    features = text_features([first], [second], None, tokenizer, **options)
    assert features.tokens.tolist() == encoded['input_ids']
    assert len(features.tokens) - features.second[0] == sum(encoded['token_type_ids'])


def test_windows_share_the_weight_and_are_averaged(tokenizer, tmp_path):
    (tmp_path / 'train.jsonl').write_text(
        json.dumps({'text': LONG, 'label': 'x'}) + '\n' + json.dumps({'text': 'a b', 'label': 'y'}) + '\n'
    )
    task = learned(tmp_path, seq_len=12, long='windows', dev_fraction=0.0)
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.record.tolist() == [0] * 5 + [1] and features.row['labels'].tolist() == [0] * 5 + [1]
    np.testing.assert_allclose(features.row['weights'], [0.2] * 5 + [1])
    logits = np.array([[1, 0], [2, 0], [3, 0], [4, 0], [-5, 0], [0, 7]], np.float32)
    first, second = task.predictions(records, features, {'logits': list(logits)})
    assert first.logits.tolist() == [1, 0] and first.best == 0
    assert second.logits.tolist() == [0, 7]


INPUTS = {
    'JSON lines': ('x.jsonl', '{"text": "a b", "label": "spam"}\n{"text": "c"}\n'),
    'JSON lines from a pipe': ('standard input', '{"text": "a b"}\n{"text": "c", "id": 3}\n'),
    'TSV': ('x.tsv', 'label\ttext\nspam\ta b\n\tc\n'),
    'TSV from a pipe': ('standard input', '\ufeffid\ttext\r\n1\ta b\r\n2\tc\r\n'),
    'CSV': ('x.csv', 'text\n"a b"\nc\n'),
    'CSV from a pipe': ('standard input', 'text,more\n"a b",x\nc,y\n'),
    'lines': ('x.txt', 'a b\nc\n\n'),
    'lines without end': ('standard input', 'a b\nc'),
}


@pytest.mark.parametrize('name', INPUTS)
def test_texts_of_ones_own(mails, name: str, tokenizer, capsys):
    where, text = INPUTS[name]
    task = learned(mails)
    records = task.parse(io.StringIO(text), where)
    assert records == [Example('a b', None, None), Example('c', None, None)]
    assert f'{where}: read as {"a text a line" if name[:5] == "lines" else ""}' in capsys.readouterr().out
    assert records[1].where.startswith(where)
    features = task.features(records, tokenizer, training=False)
    assert 'labels' not in features.row and len(features) == 2
    rows = list(task.rows(records, [Scores(np.array([0.0, 1.0]))] * 2))
    assert 'true' not in rows[0]


def test_pairs_of_ones_own(tmp_path):
    task = ClassificationTask(str(tmp_path), 32, text_a='q', text_b='p', labels=('x', 'y'))
    plain = task.parse(io.StringIO('a b\tc\nd\te, f\n'), 'standard input')
    named = task.parse(io.StringIO('p,n,q\nc,1,a b\n"e, f",2,d\n'), 'standard input')
    assert plain == named == [Example('a b', 'c', None), Example('d', 'e, f', None)]


@pytest.mark.parametrize(
    ('where', 'text', 'place', 'said'),
    [
        ('-', '', '-', 'no text'),
        ('-', '\n\n', '-', 'no text'),
        ('-', 'a\n\nb\n', '-:2', 'a blank line'),
        ('-', 'a\nb\tc\n', '-:2', '1 tabs'),
        ('x.csv', 'txt\na\n', 'x.csv:1', "'txt'"),
        ('x.jsonl', '{"text": "a"}\n{}\n', 'x.jsonl:2', 'the fields none'),
        ('x.jsonl', '{"text": null}\n', 'x.jsonl:1', 'no text'),
    ],
)
def test_wrong_texts_of_ones_own(mails, where: str, text: str, place: str, said: str):
    with pytest.raises(UserError) as caught:
        learned(mails).parse(io.StringIO(text), where)
    assert caught.value.where == place and said in caught.value.found


def test_bytes_of_ones_own_that_are_no_utf8(mails):
    file = io.TextIOWrapper(io.BytesIO(b'a\n\xe9t\xe9\n'), encoding='utf-8')
    with pytest.raises(UserError, match='0xe9'):
        learned(mails).parse(file, 'x.txt')


@pytest.mark.parametrize(
    ('name', 'text', 'line', 'said'),
    [
        ('train.csv', 'text,label\na,x\nb,\n', 3, 'an empty label'),
        ('train.csv', 'text,label\na,x\nb,  \n', 3, 'an empty label'),
        ('train.csv', 'text,lable\na,x\n', 1, "'lable'"),
        ('train.csv', 'text,label\na,x\nb,y,z\n', 3, '3 columns'),
        ('train.jsonl', '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', 2, 'no label'),
        ('train.jsonl', '{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n', 2, 'no text'),
    ],
)
def test_malformed_records_are_errors_with_their_line(tmp_path, name: str, text: str, line: int, said: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        ClassificationTask(str(tmp_path), 32, dev_fraction=0.0).records('train')
    assert caught.value.where == f'{tmp_path / name}:{line}' and said in caught.value.found


def test_labels_that_are_not_known(mails, tokenizer):
    task = learned(mails)
    (mails / 'dev.jsonl').write_text('{"text": "a", "label": "ham"}\n{"text": "b", "label": "eggs"}\n')
    with pytest.raises(UserError) as caught:
        task.records('dev')
    assert caught.value.where == f'{mails / "dev.jsonl"}:2' and 'ham, spam' in caught.value.expected
    # The same for records that were read before the labels were found.
    early = ClassificationTask(str(mails), 32)
    records = early.records('dev')
    early.learn(early.records('train'))
    with pytest.raises(UserError, match='eggs'):
        early.features(records, tokenizer, training=False)


def test_a_test_file_has_all_labels_or_none(mails):
    (mails / 'test.jsonl').write_text('{"text": "a", "label": "ham"}\n{"text": "b"}\n')
    with pytest.raises(UserError) as caught:
        learned(mails).records('test')
    assert caught.value.where.endswith('test.jsonl:2')


def test_labels_that_can_be_none(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + 'a\tx\n' * 9)
    with pytest.raises(UserError, match='one label only'):
        learned(tmp_path, dev_fraction=0.0)
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f'a\t{i / 7}\n' for i in range(60)))
    with pytest.raises(UserError, match='regression=True'):
        learned(tmp_path, dev_fraction=0.0)


def test_what_looks_wrong_is_said(tmp_path, capsys):
    (tmp_path / 'train.tsv').write_text('text\tlabel\na\tx\na\tx\na\ty\n\ty\n')
    learned(tmp_path, dev_fraction=0.0)
    said = capsys.readouterr().out
    assert (
        f'2 records have the text of an earlier one; 1 with another label, the first at {tmp_path}/train.tsv:4' in said
    )
    assert f'1 records with an empty text, the first at {tmp_path}/train.tsv:5' in said


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
        ({'format': 'xlsx'}, 'config.task.format'),
        ({'text_a': ''}, 'config.task'),
        ({'text_b': 'label'}, 'config.task'),
    ],
)
def test_wrong_options(options: dict, where: str):
    with pytest.raises(UserError) as caught:
        ClassificationTask(**{'data': 'x', 'seq_len': 32, **options})
    assert caught.value.where == where and caught.value.expected and caught.value.mend


def test_f1_needs_two_labels(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\na\tx\nb\ty\nc\tz\n')
    with pytest.raises(UserError, match='macro_f1'):
        learned(tmp_path, metric='f1', dev_fraction=0.0)


def test_files_that_are_not_there(mails):
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
    with pytest.raises(UserError, match=r'train\.tsv and .*train\.csv'):
        task.records('train')


@pytest.fixture(scope='module')
def reviews(tmp_path_factory) -> str:
    """The directory of a dataset with a train and a test split."""
    import tensorflow_datasets as tfds
    from etils import epath

    class Reviews(tfds.core.GeneratorBasedBuilder):
        """Some reviews."""

        name = 'reviews'
        pkg_dir_path = epath.Path(__file__).parent
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            label = tfds.features.ClassLabel(names=['neg', 'pos'])
            features = {'text': tfds.features.Text(), 'label': label, 'stars': np.int64, 'cost': np.float32}
            features['words'] = tfds.features.Sequence(tfds.features.Text())
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {'train': self._generate_examples(40), 'test': self._generate_examples(4)}

        def _generate_examples(self, count):
            for i in range(count):
                row = {'text': f'é {i}', 'label': i % 2, 'stars': i % 5, 'cost': i / 10, 'words': ['a', str(i)]}
                yield i, row

    builder = Reviews(data_dir=str(tmp_path_factory.mktemp('tfds')), file_format='array_record')
    builder.download_and_prepare()
    return str(builder.data_dir)


def test_any_dataset_of_tensorflow_datasets(reviews):
    task = learned('', dataset=reviews)
    assert task.labels == ['neg', 'pos'] and list(task.splits()) == ['train', 'dev', 'test']
    assert len(task.records('train')) + len(task.records('dev')) == 40
    told = {(record.first, record.label) for record in task.records('test')}
    assert told == {(f'é {i}', ('neg', 'pos')[i % 2]) for i in range(4)}
    words = learned('', dataset=reviews, text_a='words', label='stars')
    assert words.labels == ['0', '1', '2', '3', '4'] and words.records('test')[0].first.startswith('a ')
    costs = learned('', dataset=reviews, label='cost', regression=True, dev='test')
    assert {record.label for record in costs.records('dev')} == {0.0, 0.1, 0.2, 0.3}


def test_features_and_splits_that_a_dataset_lacks(reviews):
    with pytest.raises(UserError, match=r'the features .*text'):
        ClassificationTask('', 32, dataset=reviews, text_a='txet').records('train')
    with pytest.raises(UserError, match="no split 'dev2'"):
        ClassificationTask('', 32, dataset=reviews, dev='dev2').records('dev')
    with pytest.raises(UserError, match='cannot find'):
        ClassificationTask('', 32, dataset='no_such_dataset').records('train')


SICK = """pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r
1\tA group of "kids is playing\tA group of boys\t4.5\tNEUTRAL\r
2\tNobody\tSomebody sings\t1\tCONTRADICTION\r
3\tA man, singing\tA man sings\t4.9\tENTAILMENT\r
"""


def recipe(repository: pathlib.Path, name: str, argument: str):
    spec = importlib.util.spec_from_file_location(name, repository / 'configs' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def task_of(config, data):
    options = {name: value for name, value in config.task.items() if name != 'kind'}
    return build_task(config.task.kind, data=str(data), seq_len=config.seq_len, **options)


@pytest.mark.parametrize('part', ['e', 'r'])
def test_sick(tmp_path, repository, part: str):
    for name in ('train', 'trial', 'test_annotated'):
        (tmp_path / f'SICK_{name}.txt').write_bytes(SICK.encode())
    task = task_of(recipe(repository, 'sick', part), tmp_path)
    assert list(task.splits()) == ['train', 'dev', 'test']
    task.learn(task.records('train'))
    found = [(r.first, r.second, r.label) for r in task.records('dev')]
    labels = ['NEUTRAL', 'CONTRADICTION', 'ENTAILMENT'] if part == 'e' else [4.5, 1.0, 4.9]
    assert [label for *_, label in found] == labels
    assert found[0][:2] == ('A group of "kids is playing', 'A group of boys')
    assert task.score == ('accuracy' if part == 'e' else 'pearson')


def test_recipes_of_glue_and_classify(repository, mails):
    config = recipe(repository, 'glue', 'stsb,grid,seq=64,seeds=3')
    task = task_of(config, mails)
    assert (task.name, task.score, task.seq_len) == ('STS-B', 'spearman', 64)
    assert config.sweep.learning_rate == (5e-5, 4e-5, 3e-5, 2e-5) and config.sweep.batch_size == (16, 32)
    assert config.sweep.epochs == (3.0,) and config.sweep.seeds == (0, 1, 2)
    assert recipe(repository, 'glue', '').sweep.seeds == ()
    assert task_of(recipe(repository, 'classify', 'windows,seq=512'), mails).long == 'windows'
    assert task_of(recipe(repository, 'classify', 'regression'), mails).score == 'spearman'


def test_the_ten_lines_of_the_docstring_work(repository, tmp_path):
    spec = importlib.util.spec_from_file_location('classify', repository / 'configs' / 'classify.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.__doc__.split('\n')
    start = next(i for i, line in enumerate(lines) if line.strip().startswith('from bertjax'))
    end = next(i for i, line in enumerate(lines) if line.strip() == 'return config')
    code = '\n'.join(line[4:] for line in lines[start : end + 1])
    assert len([line for line in code.split('\n') if line]) <= 10
    space: dict = {}
    exec(code, space)
    (tmp_path / 'mails.tsv').write_text(''.join(f'{y}\t{mail} {i}\n' for mail, y in MAILS for i in range(20)))
    config = space['get_config']()
    task = task_of(config, tmp_path / config.data)
    task.learn(task.records('train'))
    assert task.score == 'f1' and task.labels == ['ham', 'spam'] and task.records('dev')


def test_chemprot_and_pubmedqa(shared, capsys):
    task = learned(shared / 'domain' / 'chemprot')
    assert [len(task.records(split)) for split in task.splits()] == [4169, 2427, 3469]
    assert len(task.labels) == 13 and "only 4 of 4,169 are 'AGONIST-INHIBITOR'" in capsys.readouterr().out
    path = shared / 'domain' / 'pubmedqa_ori_pqal.json'
    task = learned(path, text_a='QUESTION', text_b='CONTEXTS', label='final_decision', long='windows', seq_len=128)
    assert task.labels == ['maybe', 'no', 'yes']
    assert len(task.records('train')) + len(task.records('dev')) == 1000
    assert "['21645374']" in task.records('train')[0].where or "['21645374']" in task.records('dev')[0].where
    tokenizer = load_tokenizer(shared / 'vocab' / 'bert-base-uncased-vocab.txt')
    features = task.features(task.records('dev'), tokenizer, training=True)
    assert features.lengths.max() == 128 and len(features) > 2 * len(task.records('dev'))
    totals = np.bincount(features.record, features.row['weights'])
    np.testing.assert_allclose(totals, 1, rtol=1e-5)
