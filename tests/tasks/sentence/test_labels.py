"""Tests the labels of classification: which are found, refused, reported, and weighted."""

import numpy as np
import pytest
from text_world import learned

from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION
from bertjax.tasks.sentence.classification import ClassificationTask, is_held_out
from bertjax.tasks.sentence.task import Example


def test_labels_are_sorted_with_numbers_first_unless_they_are_configured(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't\t{y}\n' for y in ('10', 'b', '2', 'a', '2')))
    assert learned(tmp_path, dev_fraction=0.0).labels == ['2', '10', 'a', 'b']
    labels = ('b', 'a', '2', '10', 'never')
    assert learned(tmp_path, dev_fraction=0.0, labels=labels).labels == list(labels)


def test_a_label_that_only_the_dev_share_of_train_has_is_known(tmp_path):
    rows = [f't{i}\tlabel {i // 40}\n' for i in range(80)]
    held_out = next(row for row in rows if is_held_out(Example(row.split('\t')[0], None, ''), 0.1))
    rows[rows.index(held_out)] = held_out.replace('label', 'rare')
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(rows))
    task = learned(tmp_path)
    (rare,) = (label for label in task.labels if label.startswith('rare'))
    assert len(task.labels) == 3 and rare not in {record.label for record in task.records('train')}
    assert rare in {record.label for record in task.records('dev')}


def test_unknown_labels_are_refused(mails, tokenizer):
    task = learned(mails)
    (mails / 'dev.jsonl').write_text('{"text": "a", "label": "ham"}\n{"text": "b", "label": "eggs"}\n')
    with pytest.raises(UserError) as caught:
        task.records('dev')
    assert caught.value.where == f'{mails / "dev.jsonl"}:2' and 'ham, spam' in caught.value.expected
    # The records may also be read before the labels are known.
    early = ClassificationTask(str(mails), 32)
    records = early.records('dev')
    early.learn(early.records('train'))
    with pytest.raises(UserError, match='eggs'):
        early.features(records, tokenizer, training=False)


def test_a_test_file_with_only_some_labels_is_refused(mails):
    (mails / 'test.jsonl').write_text('{"text": "a", "label": "ham"}\n{"text": "b"}\n')
    with pytest.raises(UserError) as caught:
        learned(mails).records('test')
    assert caught.value.where.endswith('test.jsonl:2')


def test_a_single_label_and_scores_are_refused_as_labels(tmp_path):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + 'a\tx\n' * 9)
    with pytest.raises(UserError, match='only the label'):
        learned(tmp_path, dev_fraction=0.0)
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f'a\t{i / 7}\n' for i in range(60)))
    with pytest.raises(UserError, match='regression=True'):
        learned(tmp_path, dev_fraction=0.0)


@pytest.mark.parametrize(
    ('labels', 'where', 'message'),
    [
        (('a', 'b', 'nan', 'a'), 4, "the label 'nan' of 1 records, expected a label"),
        (
            ('1', '0', '1', '1.0'),
            5,
            "the label '1.0' of 1 records, expected a single form of each number; 2 records have '1', such as",
        ),
        (('a', '<NA>', '<NA>', 'b'), 3, "the label '<NA>' of 2 records"),
    ],
)
def test_labels_that_look_like_mistakes_are_refused(tmp_path, labels: tuple[str, ...], where: int, message: str):
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't{i}\t{y}\n' for i, y in enumerate(labels)))
    with pytest.raises(UserError) as caught:
        learned(tmp_path, dev_fraction=0.0)
    assert caught.value.where == f'{tmp_path}/train.tsv:{where}' and message in str(caught.value), str(caught.value)
    unique = list(dict.fromkeys(labels))
    assert learned(tmp_path, dev_fraction=0.0, labels=tuple(unique)).labels == unique


def test_odd_labels_are_reported(tmp_path, capsys):
    labels = ['Spam', 'spam', 'none'] + ['ham', 'Spam', 'spam', 'none'] * 300
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + ''.join(f't{i}\t{y}\n' for i, y in enumerate(labels)))
    learned(tmp_path, dev_fraction=0.0)
    output = capsys.readouterr().out
    assert "warning: 'Spam' and 'spam' are different labels" in output
    assert f"301 records have the label 'none', the first at {tmp_path}/train.tsv:4; is it a missing value?" in output


@pytest.mark.parametrize('no_label', ['', '-1', '-1.0'])
def test_a_test_file_may_have_no_labels(mails, no_label: str):
    task = learned(mails)
    (mails / 'test.csv').write_text(f'id,text,label\n7,a b,{no_label}\n8,c,{no_label}\n')
    assert list(task.splits()) == ['train', 'dev']
    records = task.records('test')
    assert [record.label for record in records] == [None, None] and records[0].fields['id'] == '7'
    (mails / 'test.csv').write_text(f'id,text,label\n7,a b,{no_label}\n8,c,ham\n')
    for read in (task.splits, lambda: task.records('test')):
        with pytest.raises(UserError, match=r'test.csv:2: found no label'):
            read()


def test_class_weights_are_balanced_given_or_refused(mails, capsys):
    task = learned(mails, class_weights='balanced')
    weights = pytest.importorskip('sklearn.utils.class_weight', reason='compares with it')
    theirs = weights.compute_class_weight('balanced', classes=np.array([0, 1]), y=[0] * 6 + [1] * 3)
    assert task._weights == pytest.approx(theirs.tolist())
    assert 'weights in the loss: ham 0.75, spam 1.5' in capsys.readouterr().out
    assert learned(mails, class_weights='spam=2.5')._weights == (1.0, 2.5)
    assert learned(mails, class_weights='{"spam": 4, "ham": 2}')._weights == (2.0, 4.0)
    assert learned(mails).objective is CLASSIFICATION and task.objective is not CLASSIFICATION
    other = ClassificationTask(str(mails), 32, class_weights='balanced')
    other.restore(task.learned_state())
    assert other.objective is CLASSIFICATION  # A finished model is not trained.
    refused = ('spam=2,spam=3', 'spam=1e39', 'spam=1e-46', f'{{"spam": {10**400}}}')
    for invalid in ('blanced', 'spam', 'spam=0', 'spam=nan', 'spam=x', '{"spam": []}', '{"spam"', '[1]', *refused):
        with pytest.raises(UserError, match=r'config\.task\.class_weights'):
            ClassificationTask(str(mails), 32, class_weights=invalid)
    with pytest.raises(UserError, match="a weight of 'egg', expected one of ham, spam"):
        learned(mails, class_weights='egg=2')
    with pytest.raises(UserError, match='scores have no labels'):
        ClassificationTask(str(mails), 32, class_weights='balanced', regression=True)
