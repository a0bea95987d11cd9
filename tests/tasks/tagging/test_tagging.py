"""Tests the features, predictions, metrics and files of tagging."""

import dataclasses
import json
import pathlib
import random
import tracemalloc

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.losses import TOKENS
from bertjax.metrics.entities import to_scheme
from bertjax.model.config import BertConfig
from bertjax.tasks.tagging.columns import Sentence, read_columns
from bertjax.tasks.tagging.features import WORDS, windows, word_pieces
from bertjax.tasks.tagging.files import split_words
from bertjax.tasks.tagging.predictions import aggregate, predict_tags
from bertjax.tasks.tagging.task import TaggingTask
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import train_sentencepiece

TRAIN = """-DOCSTART- O

ada I-PER
b I-PER
cat O
dog I-LOC

e O
f I-LOC

-DOCSTART- O

gh O
"""


@pytest.fixture
def task(tmp_path: pathlib.Path):
    """task(**options) -> a task that has learned the tags of TRAIN, with S=12."""
    (tmp_path / 'train.txt').write_text(TRAIN)

    def make(**options) -> TaggingTask:
        tagging = TaggingTask(**{'data': str(tmp_path), 'seq_len': 12, **options})
        tagging.learn(tagging.records('train'))
        return tagging

    return make


def text_of(row: np.ndarray, tokenizer: Tokenizer) -> str:
    return ' '.join(tokenizer.pieces[i] for i in row)


def sequences(features, array: np.ndarray) -> list[np.ndarray]:
    return np.split(array, features.offsets[1:-1])


def oracle(task: TaggingTask, records, features, wrong: float = 0.0) -> dict[str, list[np.ndarray]]:
    """Returns logits that are right at the words to tag, except for a fraction `wrong`, and random elsewhere."""
    draw = np.random.default_rng(0)
    rows = []
    for record, words in zip(features.record, sequences(features, features.token[WORDS]), strict=True):
        logits = draw.normal(size=(len(words), len(task.labels))).astype(np.float32)
        for at in np.flatnonzero(words):
            if draw.random() >= wrong:
                logits[at, task.labels.index(records[record].tags[words[at] - 1])] = 20
        rows.append(logits)
    return {'token_logits': rows}


def sentence(words: list[str], tags: list[str] | None = None, document: int = 0) -> Sentence:
    columns = tuple(zip(words, tags, strict=True)) if tags else tuple((word,) for word in words)
    return Sentence('x:1', tuple(words), tuple(tags) if tags else None, document, columns, ((),))


def test_a_task_learns_the_tags_of_the_training_data(task, capsys: pytest.CaptureFixture):
    tagging = task()
    assert tagging.labels == ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    assert '3 sentences for training, 7 words: LOC 2, PER 1' in capsys.readouterr().out
    other = TaggingTask(tagging.data, 12)
    other.restore(json.loads(json.dumps(tagging.learned_state())))
    assert other.learned_state() == tagging.learned_state() and tagging.learned_state()['scheme'] == 'iob1'
    assert tagging.splits() == ['train'] and tagging.score == 'f1' and tagging.objective is TOKENS


def test_the_first_piece_of_a_word_carries_its_tag(task, tokenizer: Tokenizer):
    tagging = task()
    features = tagging.features(tagging.records('train'), tokenizer, training=True)
    rows = [text_of(row, tokenizer) for row in sequences(features, features.tokens)]
    assert rows == ['[CLS] a ##d ##a b c ##a ##t d ##o ##g [SEP]', '[CLS] e f [SEP]', '[CLS] g ##h [SEP]']
    assert features.record.tolist() == [0, 1, 2]
    weights, labels = features.token['token_weights'], features.token['token_labels']
    assert sequences(features, weights)[0].tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    assert sequences(features, labels)[0][[1, 4, 5, 8]].tolist() == [3, 4, 0, 1]
    assert labels.sum() == 3 + 4 + 1 + 1 and weights.sum() == 7


def test_a_word_without_pieces_is_unknown(tokenizer: Tokenizer):
    ids, first = word_pieces(['ab', '\x07', '\u200b', '中', 'c'], tokenizer)
    assert ids.tolist()[2:5] == [tokenizer.unk_id] * 3 and first.tolist() == [0, 2, 3, 4, 5, 6]


def test_windows_tag_every_word_once_with_the_most_context():
    draw = random.Random(0)
    for _ in range(2000):
        lengths = [draw.choice([1, 1, 2, 3, draw.randrange(1, 30)]) for _ in range(draw.randrange(1, 40))]
        first = np.concatenate([[0], np.cumsum(lengths)])
        left = draw.randrange(len(lengths))
        end = draw.randrange(left + 1, len(lengths) + 1)
        tagged = (left, end)
        seen = draw.choice([tagged, (draw.randrange(left + 1), draw.randrange(end, len(lengths) + 1))])
        max_pieces = draw.randrange(1, 40)
        result = windows(first, tagged, seen, max_pieces=max_pieces, stride=draw.randrange(1, max_pieces + 1))
        assert sorted(word for _, _, words in result for word in words) == list(range(*tagged))
        for start, stop, words in result:
            assert 0 < stop - start <= max_pieces and first[seen[0]] <= start and stop <= first[seen[1]]
            for at in first[words]:
                context = min(at - start, stop - 1 - at)
                assert context == max(min(at - a, b - 1 - at) for a, b, _ in result)


def test_long_sentences_are_cut_at_words(task, tokenizer: Tokenizer):
    tagging = task(stride=5)
    words = ['ab'] * 12
    features = tagging.features([sentence(words), sentence(['c'])], tokenizer, training=False)
    assert features.record.tolist() == [0, 0, 0, 0, 0, 1]
    assert features.lengths.max() == 12
    assert all(text_of(row[1:2], tokenizer) == 'a' for row in sequences(features, features.tokens)[:5])
    numbers = [row[row > 0].tolist() for row in sequences(features, features.token[WORDS])[:5]]
    assert sorted(number for row in numbers for number in row) == list(range(1, 13))
    assert features.token['token_weights'].sum() == 0  # Words without tags are only predicted.


def test_the_memory_for_a_long_sentence_is_linear(task, tokenizer: Tokenizer):
    tagging, records = task(stride=5), [sentence(['c'] * 4000)]
    tracemalloc.start()
    features = tagging.features(records, tokenizer, training=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (features.token[WORDS] > 0).sum() == 4000
    assert peak < 8 * 4000 * len(features), peak  # bytes of an array of all pairs of a word and a window


def test_context_fills_the_row_from_the_same_document(task, tokenizer: Tokenizer):
    tagging = task(context=True, seq_len=9)
    records = [
        sentence(['a', 'bcd'], ['O', 'B-LOC'], 1), sentence(['ef', 'g'], ['B-PER', 'O'], 1),
        sentence(['hi'], ['O'], 1), sentence(['jk', 'l'], ['O', 'O'], 2),
    ]  # fmt: skip
    features = tagging.features(records, tokenizer, training=True)
    rows = [text_of(row, tokenizer) for row in sequences(features, features.tokens)]
    assert rows == [
        '[CLS] a b ##c ##d e ##f g [SEP]',
        '[CLS] e ##f g h ##i [SEP]',  # All of 'bcd' would not fit.
        '[CLS] e ##f g h ##i [SEP]',
        '[CLS] j ##k l [SEP]',
    ]
    numbers = [row.tolist() for row in sequences(features, features.token[WORDS])]
    assert numbers == [
        [0, 1, 2, 0, 0, 0, 0, 0, 0], [0, 1, 0, 2, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0], [0, 1, 0, 2, 0],
    ]  # fmt: skip
    assert features.token['token_weights'].sum() == 7
    alone = tagging.features(records[2:3], tokenizer, training=True)
    assert text_of(alone.tokens, tokenizer) == '[CLS] h ##i [SEP]'


def test_context_without_document_boundaries_is_reported(task, tokenizer: Tokenizer):
    features = task(context=True).features([sentence(['a']), sentence(['b'])], tokenizer, training=False)
    assert 'all sentences are one document; -DOCSTART- lines' in features.notes[0]


@pytest.mark.parametrize('options', [{}, {'context': True}, {'seq_len': 5, 'stride': 1}])
def test_right_outputs_score_1_in_metrics_rows_and_files(task, tokenizer: Tokenizer, options: dict):
    tagging = task(**options)
    records = tagging.records('train')
    features = tagging.features(records, tokenizer, training=False)
    predictions = tagging.predictions(records, features, oracle(tagging, records, features))
    assert [prediction.tags for prediction in predictions] == [record.tags for record in records]
    assert min(p for prediction in predictions for p in prediction.probabilities) > 0.99
    assert tagging.metrics(records, predictions) == {'f1': 1, 'precision': 1, 'recall': 1, 'accuracy': 1}
    gold = [line and f'{line} {line.split()[-1]}' for line in TRAIN.split('\n')]
    assert tagging.official_files('dev', records, predictions) == {'dev.txt': '\n'.join(gold) + '\n'}
    assert not tagging.collapsed(records, predictions)
    row = next(iter(tagging.rows(records, predictions)))
    assert json.loads(json.dumps(row))['entities'] == [
        {'type': 'PER', 'start': 0, 'end': 2, 'text': 'ada b', 'score': pytest.approx(1, abs=0.01)},
        {'type': 'LOC', 'start': 3, 'end': 4, 'text': 'dog', 'score': pytest.approx(1, abs=0.01)},
    ]
    assert row['words'] == ('ada', 'b', 'cat', 'dog') and row['tags'] == ('B-PER', 'I-PER', 'O', 'B-LOC')
    all_line = tagging.report(records, predictions).splitlines()[-1].split()
    assert all_line == ['all', '1.0000', '1.0000', '1.0000', '3', '3', '3']


@pytest.mark.slow
def test_metrics_are_those_of_seqeval_on_the_official_file(shared: pathlib.Path):
    seqeval = pytest.importorskip('seqeval.metrics', reason='compares with its scores')
    tokenizer = load_tokenizer(shared / 'vocab' / 'bert-base-cased-vocab.txt')
    tagging = TaggingTask(str(shared / 'ner' / 'NCBI-disease'), 32)
    records = tagging.records('test')
    tagging.learn(records)
    features = tagging.features(records, tokenizer, training=False)
    assert features.lengths.max() == 32 and len(features) > len(records)
    predictions = tagging.predictions(records, features, oracle(tagging, records, features, wrong=0.2))
    all_metrics = []
    for scheme in ('iob1', 'iob2'):
        written = [in_scheme(record, scheme) for record in records]
        text = tagging.official_files('test', written, predictions)['test.txt']
        sentences = [[line.split('\t') for line in block.split('\n')] for block in text.strip().split('\n\n')]
        gold, predicted = ([[row[i] for row in rows] for rows in sentences] for i in (-2, -1))
        metrics = tagging.metrics(written, predictions)
        assert metrics['f1'] == pytest.approx(seqeval.f1_score(gold, predicted), abs=1e-12)
        assert metrics['accuracy'] == pytest.approx(seqeval.accuracy_score(gold, predicted), abs=1e-12)
        assert 0.3 < metrics['f1'] < 0.95
        all_metrics.append(metrics)
    assert all_metrics[0]['f1'] == all_metrics[1]['f1'] and all_metrics[0]['accuracy'] != all_metrics[1]['accuracy']
    again = read_columns(text, 'test.txt', tagging.format, tagged=True)  # The predictions are IOB2.
    assert {sentence.scheme for sentence in again} == {'iob2'}


def in_scheme(record: Sentence, scheme: str) -> Sentence:
    columns = tuple(zip(record.words, to_scheme(record.tags, scheme), strict=True))
    return dataclasses.replace(record, columns=columns, scheme=scheme)


def test_impossible_tags_are_read_as_conlleval_reads_them(task, tokenizer: Tokenizer):
    tagging = task()
    records = [sentence(['a', 'b', 'c', 'd'], ['B-PER', 'I-PER', 'O', 'B-LOC'])]
    features = tagging.features(records, tokenizer, training=False)
    logits = np.zeros((6, 5), np.float32)
    for at, label in zip(range(1, 5), ['I-PER', 'I-PER', 'O', 'I-LOC'], strict=True):
        logits[at, tagging.labels.index(label)] = 3
    prediction = tagging.predictions(records, features, {'token_logits': [logits]})[0]
    assert prediction.tags == records[0].tags
    assert prediction.probabilities[0] == pytest.approx(np.exp(3) / (np.exp(3) + 4))


def test_unseen_tags_are_reported_and_refused_in_training(task, tokenizer: Tokenizer):
    tagging = task()
    records = [sentence(['a', 'b', 'c'], ['B-NEW', 'I-NEW', 'B-PER'])]
    features = tagging.features(records, tokenizer, training=False)
    assert '2 words have tags that do not occur in the training data (B-NEW 1, I-NEW 1)' in features.notes[0]
    assert features.token['token_weights'].tolist() == [0, 0, 0, 1, 0]
    logits = np.zeros((5, 5), np.float32)
    logits[3, tagging.labels.index('B-PER')] = 9
    predictions = tagging.predictions(records, features, {'token_logits': [logits]})
    assert tagging.metrics(records, predictions)['recall'] == 0.5
    assert '2 words have tags that do not occur in the training data' in tagging.report(records, predictions)
    with pytest.raises(UserError, match="x:1: found the tag 'B-NEW', expected one of O, B-LOC"):
        tagging.features(records, tokenizer, training=True)


def test_equal_logits_are_collapsed(task, tokenizer: Tokenizer):
    tagging = task()
    records = tagging.records('train')
    features = tagging.features(records, tokenizer, training=False)
    zeros = [np.zeros((n, 5), np.float32) for n in features.lengths]
    predictions = tagging.predictions(records, features, {'token_logits': zeros})
    assert tagging.collapsed(records, predictions) and tagging.metrics(records, predictions)['f1'] == 0


def test_a_lone_space_piece_gives_its_tag_to_the_piece_after_it(task):
    tagging, text = task(), '王住在河边'
    tokenizer = train_sentencepiece(['王在河边住', '河边住王', '在王'] * 9, vocab_size=20, lowercase=False)
    words, offsets = split_words(text)
    records = [Sentence('x:1', words, ('B-PER', 'O', 'O', 'B-LOC', 'I-LOC'), text=text, offsets=offsets)]
    features = tagging.features(records, tokenizer, training=False)
    assert text_of(features.tokens[1:3], tokenizer) == '▁ 王'
    logits = oracle(tagging, records, features)['token_logits']
    pieces, logits = aggregate(records, features, logits, tokenizer, 'simple')
    assert pieces[0].words == words and pieces[0].offsets == offsets
    assert predict_tags(logits, tagging.labels, plain=False)[0].tags == records[0].tags


def test_plain_tags_have_accuracy_and_no_entities(tmp_path: pathlib.Path, tokenizer: Tokenizer):
    (tmp_path / 'train.txt').write_text('a DT\nb NN\n\nc I-x\n')
    tagging = TaggingTask(str(tmp_path), 12, scheme='plain')
    records = tagging.records('train')
    tagging.learn(records)
    features = tagging.features(records, tokenizer, training=True)
    predictions = tagging.predictions(records, features, oracle(tagging, records, features))
    assert tagging.metrics(records, predictions) == {'accuracy': 1} and tagging.score == 'accuracy'
    assert tagging.official_files('dev', records, predictions) == {'dev.txt': 'a DT DT\nb NN NN\n\nc I-x I-x\n\n'}
    assert 'entities' not in next(iter(tagging.rows(records, predictions)))
    assert tagging.report(records, predictions).startswith('tag')
    (tmp_path / 'train.txt').write_text('a NN\nb NN\n')
    with pytest.raises(
        UserError, match=r"config\.task\.tag_column: found only the tag 'NN', expected a column with two"
    ):
        tagging.learn(tagging.records('train'))


@pytest.mark.parametrize(('layers', 'units'), [('concat_last_four', 3), ('last', 0), ('sum_all', 0)])
def test_the_model_of_the_paper_takes_the_features(task, tokenizer: Tokenizer, layers: str, units: int):
    tagging = task(layers=layers, bilstm_units=units, frozen=True)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, num_layers=4, width=8, num_heads=2, mlp_dim=8, max_positions=16
    )
    records = tagging.records('train')
    features = tagging.features(records, tokenizer, training=True)
    batch = features.batch(np.array([0, 2, -1]), 12, tokenizer.pad_id)
    model = tagging.build_module(config)
    inputs = [batch[name] for name in TOKENS.inputs]
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs)[0])
    outputs = {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}
    assert outputs['token_logits'].shape == (3, 12, 5)
    loss, weight = TOKENS.losses(outputs, batch)['loss']
    assert np.isfinite(loss) and weight == 5
    fields = tagging.huggingface()
    assert tagging.head.architecture == 'BertForTokenClassification' and fields['label2id']['I-PER'] == 4
    assert fields['id2label']['1'] == 'B-LOC'


@pytest.mark.parametrize(
    ('options', 'key'),
    [
        ({'seq_len': 2}, 'config.seq_len'),
        ({'stride': 11}, 'config.task.stride'),
        ({'stride': -1}, 'config.task.stride'),
        ({'input_format': 'json'}, 'config.task.input_format'),
        ({'scheme': 'iob'}, 'config.task.scheme'),
        ({'bilstm_units': -1}, 'config.task.bilstm_units'),
    ],
)
def test_invalid_options_are_errors(options: dict, key: str):
    with pytest.raises(UserError, match=key.replace('.', r'\.')):
        TaggingTask(**{'data': 'x', 'seq_len': 12, **options})


def test_a_frozen_encoder_is_not_trained():
    frozen, tuned = (TaggingTask('x', 12, frozen=value) for value in (True, False))
    for train in ('all', 'last_2'):
        tuned.check_training(train)
        with pytest.raises(
            UserError, match=rf"config\.trainable: found '{train}' with config\.task\.frozen, expected 'head'"
        ):
            frozen.check_training(train)
    frozen.check_training('head')
