"""Tests multiple choice: sequences, predictions, and options."""

import json
import pathlib

import jax
import numpy as np
import pytest
import tokenizers

from bertjax.errors import UserError
from bertjax.losses import CHOICES, CLASSIFICATION, cross_entropy
from bertjax.model.config import BertConfig
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.pairs import truncate_longest_first
from bertjax.text.tokenizer import Tokenizer


def question(context: str, *endings: str, label: int | None = 0, start: str = '') -> ChoiceQuestion:
    return ChoiceQuestion('x:1', context, start, endings, label)


def test_context_and_ending_are_one_sequence(swag: MultipleChoiceTask, tokenizer: Tokenizer):
    records = [
        question('ab', 'c', 'de', label=1, start='f'), question('g', 'h', 'i', label=None),
    ]  # fmt: skip
    features = swag.features(records, tokenizer, training=False)
    texts = [' '.join(tokenizer.pieces[i] for i in row) for row in np.split(features.tokens, features.offsets[1:-1])]
    assert texts == [
        '[CLS] a ##b [SEP] f c [SEP]', '[CLS] a ##b [SEP] f d ##e [SEP]', '[CLS] g [SEP] h [SEP]',
        '[CLS] g [SEP] i [SEP]',
    ]  # fmt: skip
    batch = features.batch(np.array([1, 0]), 9, tokenizer.pad_id)
    assert batch['input_ids'].shape == (2, 2, 9)
    assert batch['segment_ids'][1].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0]]
    assert batch['labels'].tolist() == [0, 1] and batch['weights'].tolist() == [0, 1]


def test_truncation_equals_longest_first_of_tokenizers(
    swag: MultipleChoiceTask, tokenizer: Tokenizer, tmp_path: pathlib.Path
):
    tokenizer.save(tmp_path / 'saved')
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / 'saved' / 'tokenizer.json'))
    for max_tokens in (2, 3, 8, 13):
        theirs.enable_truncation(max_tokens + 3, strategy='longest_first')
        for first in range(12):
            for second in range(12):
                types = theirs.encode(' '.join('a' * first), ' '.join('b' * second)).tokens
                assert truncate_longest_first(first, second, max_tokens) == (types.count('a'), types.count('b'))
    features = swag.features([question('abcdefghijkl', 'mnopqrstuvwx', 'y')], tokenizer, training=True)
    assert features.lengths.tolist() == [16]
    assert features.notes == ('1 of 2 pairs are longer than config.seq_len=16 and lose their end',)


def test_predictions_metrics_and_files(swag: MultipleChoiceTask, tokenizer: Tokenizer):
    records = swag.records('dev')
    swag.learn(records)
    swag.restore(json.loads(json.dumps(swag.learned_state())))
    features = swag.features(records, tokenizer, training=True)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, width=8, num_heads=2, mlp_dim=8, max_positions=16
    )
    batch = features.batch(np.array([0, 1, -1]), 16, tokenizer.pad_id)
    inputs = [batch[name] for name in CLASSIFICATION.inputs]
    model = swag.build_module(config)
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs)[0])
    outputs = {'logits': np.zeros(shapes['logits'].shape, np.float32)}
    assert outputs['logits'].shape == (3, 4) and CLASSIFICATION.losses(outputs, batch)['loss'][1] == 2

    predictions = swag.predictions(records, features, {'logits': np.array([[0, 2, 0, 0], [1, 0, 0, 0]], np.float32)})
    assert swag.metrics(records, predictions) == {'accuracy': 0.5}
    assert swag.official_files('test', records, predictions) == {'test_predictions.csv': ',pred\n0,1\n1,0\n'}
    rows = json.loads(json.dumps(list(swag.rows(records, predictions))))
    assert rows[0]['prediction'] == 1 and rows[0]['ending'] == 'says "no", twice.'
    assert [row['true'] for row in rows] == [record.label for record in records]
    assert rows[0]['probabilities'][1] == pytest.approx(np.exp(2) / (np.exp(2) + 3))
    assert not swag.collapsed(records, predictions) and swag.collapsed(records, predictions[:1] * 2)
    report = [line.split() for line in swag.report(records, predictions).splitlines()]
    assert ['gen-orig', '0.0000', '0', '1'] in report and ['1', '1.0000', '1', '1'] in report
    assert swag.head.architecture == 'BertForMultipleChoice' and swag.huggingface() == {}
    assert swag.metrics([], []) == {'accuracy': None}


def test_fewer_endings_are_masked(swag: MultipleChoiceTask, tokenizer: Tokenizer, capsys):
    """The loss and the prediction of a question do not depend on questions with more endings."""
    records = [question('a', 'b', 'c', label=1), question('d', 'e', 'f', 'gh', label=0)]
    swag.learn(records)
    assert '1 questions with 2 endings, 1 questions with 3 endings' in capsys.readouterr().out
    assert swag.objective is CHOICES
    features = swag.features(records, tokenizer, training=True)
    assert features.choices == 3 and features.sequence_lengths.tolist() == [5, 5, 0, 5, 5, 6]
    logits = np.array([[0.5, -1.0, 9.0], [0.2, 0.1, 0.7]], np.float32)  # The largest logit is for a missing ending.
    batch = features.batch(np.array([0, 1, -1]), 8, tokenizer.pad_id)
    losses = CHOICES.losses({'logits': np.concatenate([logits, np.zeros((1, 3), np.float32)])}, batch)
    expected = [float(cross_entropy(logits[0, :2], np.int32(1))), float(cross_entropy(logits[1], np.int32(0)))]
    assert float(losses['loss'][0]) == pytest.approx(sum(expected)) and float(losses['loss'][1]) == 2
    assert [float(x) for x in losses['accuracy']] == [0, 2]
    first, second = swag.predictions(records, features, {'logits': list(logits)})
    assert (first.argmax(), len(first), second.argmax()) == (0, 2, 2)
    assert sum(next(swag.rows(records, [first, second]))['probabilities']) == pytest.approx(1)
    assert swag.metrics(records, [first, second]) == {'accuracy': 0.0}
    assert 'endings' in swag.report(records, [first, second])
    swag.learn(records[:1])
    assert swag.objective is CLASSIFICATION  # All questions have the same number of endings.


@pytest.mark.parametrize(
    ('options', 'key'),
    [
        ({'layout': 'race'}, 'config.task.layout'),
        ({'dev_share': 0.0}, 'config.task.dev_share'),
        ({'dev_share': 0.5, 'test_share': 0.5}, 'config.task.test_share'),
        ({'test_share': 1.5}, 'config.task.test_share'),
        ({'seq_len': 4}, 'config.seq_len'),
    ],
)
def test_invalid_options_are_refused(options: dict, key: str):
    with pytest.raises(UserError, match=key.replace('.', r'\.')):
        MultipleChoiceTask(**{'data': 'x', 'seq_len': 12, **options})
