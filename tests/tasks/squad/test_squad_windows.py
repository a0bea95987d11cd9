"""Tests windows and targets against plain loops and cases worked out by hand."""

import tracemalloc

import numpy as np
import pytest
from squad_world import ask, letters_tokenizer

from bertjax.errors import UserError
from bertjax.metrics.squad import normalize
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.squad.windows import answer_tokens, choose_windows, find_answer, window_bounds
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.vocabulary import train_sentencepiece


@pytest.fixture(scope='module')
def letters():
    return letters_tokenizer()


def features_of(questions, tokenizer, *, seq_len=40, stride=8, max_query=10, training=False):
    task = SquadTask('', seq_len, stride=stride, max_query=max_query)
    return task.features(questions, tokenizer, training=training)


def pieces_of(features, row, tokenizer):
    return [tokenizer.pieces[i] for i in features.tokens[features.offsets[row] : features.offsets[row + 1]]]


def target_text(features, row, question):
    tokens = slice(features.offsets[row], features.offsets[row + 1])
    start, end = (features.token[name][tokens] for name in ('token_first', 'token_last'))
    return question.context[start[features.row['start'][row]] : end[features.row['end'][row]]]


@pytest.mark.parametrize(('size', 'stride'), [(1, 1), (5, 2), (5, 5), (5, 9), (8, 3)])
def test_windows_advance_by_the_stride_until_the_end(size, stride):
    for length in range(30):
        expected, start = [], 0
        while True:
            expected.append((start, min(start + size, length)))
            if start + size >= length:
                break
            start += min(size, stride)
        starts, ends = window_bounds(length, size, stride)
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected


def test_each_token_answers_in_the_window_with_most_context():
    # As in run_squad.py, "bought" has more context in C "and bought a gallon of" than in B "to the store and bought".
    starts, ends = np.array([0, 3, 6]), np.array([5, 8, 11])
    assert choose_windows(starts, ends, 11).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    for length, size, stride in ((17, 5, 2), (40, 12, 5), (9, 12, 3), (20, 6, 6)):
        starts, ends = window_bounds(length, size, stride)
        for token, window in enumerate(choose_windows(starts, ends, length)):
            best, most = None, -1.0
            for w, (start, end) in enumerate(zip(starts, ends, strict=True)):
                if start <= token < end:
                    context = min(token - start, end - 1 - token) + 0.01 * (end - start)
                    if context > most:
                        best, most = w, context
            assert window == best


def test_a_row_has_the_question_the_text_and_the_target(letters):
    question = SquadQuestion('q', 'Who is it?', 'it is the Red fox', ('Red fox',), (10,))
    features = features_of([question], letters)
    assert pieces_of(features, 0, letters) == [
        '[CLS]', 'who', 'is', 'it', '?', '[SEP]', 'it', 'is', 'the', 'red', 'f', '##o', '##x', '[SEP]',
    ]  # fmt: skip
    assert not features.notes and features.second.tolist() == [6] and features.record.tolist() == [0]
    assert (features.row['start'].tolist(), features.row['end'].tolist()) == ([9], [12])
    assert features.row['start'].dtype == features.row['end'].dtype == np.int32
    assert features.token['token_first'].tolist() == [-1] * 6 + [0, 3, 6, 10, 14, 15, 16, -1]
    assert features.token['token_last'].tolist() == [-1] * 6 + [2, 5, 9, 13, 15, 16, 17, -1]
    training = features_of([question], letters, training=True)
    assert not training.token and training.tokens.tolist() == features.tokens.tolist()


def test_windows_without_all_of_the_answer_point_to_cls(letters):
    question = ask('red ' * 20 + 'fox' + ' red' * 20, 'fox')
    features = features_of([question], letters, seq_len=20, stride=6)
    complete = 0
    for row in range(len(features)):
        pieces = pieces_of(features, row, letters)
        start, end = int(features.row['start'][row]), int(features.row['end'][row])
        if all(piece in pieces for piece in ('f', '##o', '##x')):
            assert pieces[start : end + 1] == ['f', '##o', '##x']
            complete += 1
        else:
            assert (start, end) == (0, 0)
    assert 2 <= complete < len(features)
    # Every piece is in a window, and an answer can start at it in exactly one window.
    first = features.token['token_first']
    assert sorted(first[first >= 0].tolist()) == sorted({*range(0, 80, 4), 80, 81, 82, *range(84, 164, 4)})
    assert features.lengths.max() == 20


def test_the_memory_for_a_long_text_is_linear(letters):
    tracemalloc.start()
    features = features_of([ask('red ' * 4000)], letters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (features.token['token_first'] >= 0).sum() == 4000
    assert peak < 8 * 4000 * len(features), peak  # bytes of an array of all pairs of a piece and a window


def test_no_answer_points_to_cls(letters):
    features = features_of([ask('red ' * 50), ask('it', 'it')], letters, training=True)
    assert not features.notes and features.row['start'].tolist() == features.row['end'].tolist()
    assert features.row['start'][:-1].tolist() == [0] * (len(features) - 1) and features.row['start'][-1] == 5
    assert features.row['weights'].tolist() == [1.0] * len(features)


@pytest.mark.parametrize(
    ('context', 'answer'),
    [
        ('the 😀 is\tred\r\nin 😀😀 house', 'red'),
        ('the 😀 is\tred\r\nin 😀😀 house', 'red\r\nin'),
        ('the 😀 is\tred\r\nin 😀😀 house', '😀'),
        ('the 😀 is\tred\r\nin 😀😀 house', '😀😀 house'),
        ('cafe\u0301s is cafe\u0301, red\u0301\u0323.', 'cafe\u0301s'),
        ('cafe\u0301s is cafe\u0301, red\u0301\u0323.', 'red\u0301\u0323'),
        ('\u0301red', 'red'),
        ('Ünder é', 'é'),
        ('\ufeffthe\u200bred\u00a0house\u2028it', 'house'),
        ('𝒳𝒴 red 𝒳', 'red 𝒳'),
        ('(red), "house" .', '"house"'),
        ('red' + 'x' * 200 + ' it', 'it'),
    ],
)
def test_targets_of_unusual_characters_are_the_original_text(letters, sentencepiece, context, answer):
    question = ask(context, answer)
    for tokenizer in (letters, sentencepiece):
        features = features_of([question], tokenizer, seq_len=400, stride=100, max_query=64)
        assert not features.notes and target_text(features, 0, question) == answer


@pytest.fixture(scope='module')
def sentencepiece():
    from pydoc_data.topics import topics

    texts = [*(topics[name] for name in sorted(topics)[:20]), '😀 é cafe\u0301 𝒳 "red" (house)']
    return train_sentencepiece(texts, vocab_size=600, model_type='unigram', lowercase=True, seed=0)


def test_truncated_questions_are_reported(letters):
    features = features_of([ask('red', 'red', question='what ' * 30, id='long'), ask('it', 'it')], letters)
    assert features.notes == ('questions truncated to their first 10 pieces: 1\n  long',)
    assert pieces_of(features, 0, letters) == ['[CLS]', *['what'] * 10, '[SEP]', 'red', '[SEP]']
    assert features.row['start'].tolist() == [12, 5]


@pytest.mark.parametrize('training', [False, True])
def test_answers_that_no_window_has_are_reported(letters, training):
    questions = [ask('the the the red fox', answer, id=answer) for answer in ('red fox', 'fox')]
    (note,) = features_of(questions, letters, seq_len=10, max_query=3, stride=8, training=training).notes
    effect = 'trained as unanswerable' if training else 'that may be missed'
    assert effect in note and 'config.task.stride' in note and note.endswith(': 1\n  red fox')
    assert not features_of(questions, letters, seq_len=10, max_query=3, stride=1, training=training).notes


def test_a_question_leaves_a_piece_of_the_text(letters, monkeypatch):
    monkeypatch.setattr(letters, 'separators', 2)
    features = features_of([ask('red', 'red', question='what ' * 30)], letters, seq_len=12, max_query=8)
    (row,) = features.row['weights']
    assert row == 1 and max(features.sequence_lengths) <= 12


def test_empty_texts_have_a_row(letters):
    questions = [ask(''), ask(' \r\n\t'), ask('red', 'red', question=''), SquadQuestion('q', '', '')]
    features = features_of(questions, letters)
    assert not features.notes and features.record.tolist() == [0, 1, 2, 3]
    assert [len(pieces_of(features, row, letters)) for row in range(4)] == [6, 6, 4, 3]
    assert pieces_of(features, 2, letters) == ['[CLS]', '[SEP]', 'red', '[SEP]']
    assert features.row['start'].tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ('context', 'answer', 'start', 'expected'),
    [
        ('a red house', 'red house', 2, ('exact', 2, 11)),
        ('a red\r\n\thouse', 'red house', 2, ('spaces', 2, 13)),
        ('a  red house', 'red house', 1, ('spaces', 3, 12)),
        ('a red house', ' red', 1, ('exact', 1, 5)),
        ('a red house', 'red  ', 2, ('spaces', 2, 5)),
        ('😀😀 red fox, red', 'red', 5, ('elsewhere', 3, 6)),
        ('red fox, red', 'red', 7, ('elsewhere', 9, 12)),
        ('reddish, red', 'red', 2, ('elsewhere', 9, 12)),
        ('reddish', 'red', 2, ('missing', 2, 0)),
        ('red', 'blue', 0, ('missing', 0, 0)),
        ('red (x+y)*', '(x+y)*', 0, ('elsewhere', 4, 10)),
        ('red', '', 1, ('missing', 1, 0)),
        ('red ', ' ', 3, ('missing', 3, 0)),
        ('😀東京は2010年', '京', 3, ('elsewhere', 2, 3)),
        ('😀東京は2010年', '2010', 0, ('elsewhere', 4, 8)),
        ('東京は2010年', '10', 0, ('missing', 0, 0)),
        ('北京是首都。人住在北京。', '北京', 27, ('elsewhere', 9, 11)),  # bytes
        ('北京是首都。人住在北京。北京很大。', '北京', 27, ('elsewhere', 9, 11)),
        ('red fox, red', 'red', -1, ('elsewhere', 0, 3)),
        ('red fox, red', 'd', -1, ('missing', 0, 0)),
        ('red fox, red', 'red', 99, ('elsewhere', 9, 12)),
        ('red fox, red', 'red', 10**30, ('elsewhere', 9, 12)),
    ],
)
def test_find_answer_corrects_the_start(context, answer, start, expected):
    assert find_answer(context, answer, start) == expected


def test_answer_tokens_cover_the_answer():
    starts, ends = np.array([0, 4, 5, 9], np.int32), np.array([3, 5, 8, 9], np.int32)
    assert answer_tokens(starts, ends, 0, 3) == (0, 0)
    assert answer_tokens(starts, ends, 4, 8) == (1, 2)
    assert answer_tokens(starts, ends, 1, 6) == (0, 2)  # The answer starts and ends inside a piece.
    assert answer_tokens(starts, ends, 3, 4) is None
    assert answer_tokens(starts[:0], ends[:0], 0, 3) is None


def test_answers_that_cannot_be_found_are_counted_listed_and_not_trained_on(letters, capsys):
    questions = [
        ask('it is red', 'red', id='fine'),
        ask('it is blue', 'red', start=6, id='gone'),
        ask('it is\nthe red', 'is the', start=3, id='line'),
        ask('it is red', 'red', start=2, id='moved'),
        ask('a \x00\x01 b', '\x00\x01', id='unwritten'),
        ask('it is', '', start=0, id='empty'),
        ask('\U0001f600 is red', 'red', start=12, id='utf-16'),
    ]
    task = SquadTask(data='', seq_len=40, max_query=10)
    task.learn(questions)
    output = capsys.readouterr().out
    assert '7 questions on 6 texts for training, 0 without an answer' in output
    assert "text at answer_start; this text is used: 1\n  line: 'is the' at 3, found at 3\n" in output
    moved = "  moved: 'red' at 2, found at 6\n  utf-16: 'red' at 12, found at 5\n"
    assert f'their nearest occurrence in the text is used: 2\n{moved}' in output
    assert "not used for training: 2\n  gone: 'red' at 6\n  empty: '' at 0\n" in output and 'fine' not in output
    training = task.features(questions, letters, training=True)
    (note,) = training.notes
    assert 'not used for training' in note and note.endswith(': 3\n  gone\n  unwritten\n  empty')
    assert training.record.tolist() == [0, 2, 3, 6] and 0 not in training.row['start']
    evaluated = task.features(questions, letters, training=False)
    assert evaluated.record.tolist() == list(range(7))
    assert evaluated.row['weights'].tolist() == [1, 0, 1, 1, 0, 0, 1]
    with pytest.raises(UserError, match='found 2 questions whose answers do not occur in their contexts'):
        task.features([questions[1], questions[5]], letters, training=True)


def test_a_list_of_over_100_questions_is_shortened(capsys):
    task = SquadTask(data='', seq_len=40, max_query=10)
    task.learn([ask('it', 'red', start=0, id=f'q{n}') for n in range(250)])
    output = capsys.readouterr().out
    assert (
        'used for training: 250\n' in output
        and 'q99:' in output
        and 'q100:' not in output
        and '… and 150 more' in output
    )


# The numbers of gold answers of the shared files, and of those that bert-base-uncased's pieces reproduce up to
# normalization. The others start or end within a piece ('Japan' in 'Japanese', '562' in '1562').
RECOVERED = {
    'cs224n-dev-v2.0.json': (10_052, 10_037),
    'xquad.en.json': (1_190, 1_189),
    'squadshifts_new_wiki_v1.0.json.gz': (22_794, 22_752),
    'squadshifts_reddit_v1.0.json.gz': (27_692, 27_667),
}


# The two SQuADShifts sets are by far the largest, so they run only with the slow tests.
@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=pytest.mark.slow) if 'shifts' in name else name for name in RECOVERED],
)
def test_gold_answers_are_reproduced_from_their_pieces(shared, name):
    tokenizer = load_tokenizer(shared / 'vocab' / 'bert-base-uncased-vocab.txt')
    version = '2.0' if 'v2' in name else '1.1'
    questions = SquadTask(data=str(shared / 'squad'), seq_len=384, version=version, dev_file=name).records('dev')
    contexts = list(dict.fromkeys(question.context for question in questions))
    offsets = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    total = equal = 0
    for question in questions:
        _, starts, ends = offsets[question.context]
        for answer, start in zip(question.answers, question.starts, strict=True):
            kind, first, end = find_answer(question.context, answer, start)
            a, b = answer_tokens(starts, ends, first, end)
            text = question.context[starts[a] : ends[b]]
            assert kind == 'exact' and answer.strip('\u200d ') in text
            total += 1
            equal += normalize(text) == normalize(answer)
    assert (total, equal) == RECOVERED[name]
