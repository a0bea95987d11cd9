"""Tests that tagging schemes are detected by majority, read as IOB2 and written back unchanged."""

import pathlib
import random

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.metrics.entities import (
    WITH_ENDS,
    score_entities,
    spans,
    split_tag,
    to_iob2,
    to_scheme,
    total_score,
)
from bertjax.tasks.exported import build_task_for_class
from bertjax.tasks.tagging.columns import Sentence, TagFormat, read_columns, write_columns
from bertjax.tasks.tagging.predictions import Tags
from bertjax.tasks.tagging.schemes import ENTITIES
from bertjax.tasks.tagging.task import TaggingTask
from bertjax.text.tokenizer import Tokenizer

WRITTEN = {
    'iob1': 'I-X I-X B-X O I-Y I-X I-X I-X',
    'iob2': 'B-X I-X B-X O B-Y B-X I-X I-X',
    'bioes': 'B-X E-X S-X O S-Y B-X I-X E-X',
    'bilou': 'B-X L-X U-X O U-Y B-X I-X L-X',
    'bmes': 'B-X E-X S-X O S-Y B-X M-X E-X',
    'ioe2': 'I-X E-X E-X O E-Y I-X I-X E-X',
    'ioe1': 'I-X E-X I-X O I-Y I-X I-X I-X',
}


def file_of(*sentences: str) -> str:
    """Returns the lines of a file, with one word for each tag."""
    return '\n'.join(''.join(f'w{i} {tag}\n' for i, tag in enumerate(tags.split())) for tags in sentences) + '\n'


def read(text: str, **options) -> list:
    return read_columns(text, 'file', TagFormat(**options), tagged=True)


@pytest.mark.parametrize('scheme', ENTITIES)
def test_every_scheme_is_detected_read_as_iob2_and_written_back(scheme: str):
    text = file_of(WRITTEN[scheme], 'O O')
    sentences = read(text)
    assert {sentence.scheme for sentence in sentences} == {scheme}
    assert ' '.join(sentences[0].tags) == WRITTEN['iob2']
    written = write_columns(sentences, [sentence.tags for sentence in sentences], scheme='')
    pairs = zip(f'{WRITTEN[scheme]} O O'.split(), f'{WRITTEN["iob2"]} O O'.split(), strict=True)
    assert [line.split()[1:] for line in written.splitlines() if line] == [
        [tag, tag, iob2, iob2] if scheme in WITH_ENDS else [tag, tag] for tag, iob2 in pairs
    ]
    assert to_scheme(WRITTEN['iob2'].split(), scheme) == WRITTEN[scheme].split()


@pytest.mark.parametrize('scheme', ENTITIES)
def test_the_accuracy_is_that_of_the_tags_in_the_file(scheme: str):
    """The accuracy of IOB2, which the program computes with, would differ: the tag of a first word may."""
    # One entity has an additional word, two are merged, one is missing and one has another type.
    answers = ['B-X I-X I-X O O B-Y I-Y O', 'B-X I-X B-X O B-Y B-X I-X I-X']
    sentences = read(file_of(WRITTEN[scheme], WRITTEN[scheme].replace('Y', 'Z')))
    predictions = [Tags(tuple(tags.split()), (1.0,) * 8) for tags in answers]
    task = TaggingTask('x', 12)
    accuracy = task.metrics(sentences, predictions)['accuracy']
    written = task.official_files('dev', sentences, predictions)['dev.txt']
    last = -3 if scheme in WITH_ENDS else -1  # Two columns in IOB2 follow.
    rows = [[line.split() for line in block.split('\n')] for block in written.strip().split('\n\n')]
    true, predicted = ([[row[column] for row in block] for block in rows] for column in (last - 1, last))
    assert [' '.join(tags) for tags in true] == [WRITTEN[scheme], WRITTEN[scheme].replace('Y', 'Z')]
    assert accuracy == accuracy_of_conlleval(true, predicted)
    (row, _) = task.rows(sentences, predictions)
    assert row['true'] == sentences[0].tags and ' '.join(row['true']) == WRITTEN['iob2']


def test_an_explicit_scheme_is_also_that_of_the_accuracy():
    """For example, a model of BIOES is evaluated on BIO."""
    sentences = read(file_of(WRITTEN['iob2']), scheme='bioes')
    predictions = [Tags(sentence.tags, (1.0,) * 8) for sentence in sentences]
    assert TaggingTask('x', 12, scheme='bioes').metrics(sentences, predictions)['accuracy'] == 1


def accuracy_of_conlleval(true: list[list[str]], predicted: list[list[str]]) -> float:
    """Returns the accuracy of conlleval.pl and seqeval: the share of tags whose letter and type are right."""
    tags, predictions = ([split_tag(tag) for sentence in split for tag in sentence] for split in (true, predicted))
    return sum(a == b for a, b in zip(tags, predictions, strict=True)) / len(tags)


def chunks_of_conlleval(tags: list[str]) -> int:
    """Returns the number of chunk starts by conlleval.pl's rules, which have none for S, L, U, M or a B after E."""
    chunks, before, before_type = 0, 'O', ''
    for prefix, type in map(split_tag, tags):
        chunks += before + prefix in ('BB', 'IB', 'OB', 'OI', 'OE', 'EE', 'EI') or (
            prefix != 'O' and type != before_type
        )
        before, before_type = prefix, type
    return chunks


@pytest.mark.parametrize('tags', ['S-X S-X', 'B-X E-X B-X E-X', 'U-X U-X B-X L-X', 'S-X B-X M-X E-X', 'B-X I-X S-X O'])
def test_the_last_two_columns_have_the_entities_that_conlleval_reads(tags: str):
    stray = 'S-X' in tags and 'I-X' in tags
    sentences = read(file_of(tags), scheme='iob2' if stray else 'auto')
    written = write_columns(sentences, [sentence.tags for sentence in sentences], scheme='')
    rows = [line.split() for line in written.splitlines() if line]
    original, last = [row[1] for row in rows], [row[-2] for row in rows]
    assert chunks_of_conlleval(last) == len(spans(original)) > chunks_of_conlleval(original)
    assert last == [row[-1] for row in rows]


def test_iobes_and_bio_are_names_of_bioes_and_iob2():
    assert read(file_of(WRITTEN['bioes']), scheme='iobes')[0].scheme == 'bioes'
    assert read(file_of(WRITTEN['iob2']), scheme='bio')[0].scheme == 'iob2'


@pytest.mark.parametrize(
    ('usual', 'stray', 'strays'),
    [('I-X O I-Y', 'O B-X', 2), ('B-X I-X O', 'O I-X O I-Y', 1), ('S-X B-Y E-Y', 'B-X O', 3)],
)
def test_a_few_deviating_tags_do_not_change_the_scheme(
    usual: str, stray: str, strays: int, capsys: pytest.CaptureFixture
):
    """In the official CoNLL-2003, for example, 2 of 23,427 entities start differently from the others."""
    text = file_of(*[usual] * 400, *[stray] * strays, *[usual] * 400)
    sentences = read(text)
    scheme = {'I': 'iob1', 'B': 'iob2', 'S': 'bioes'}[usual[0]]
    assert {sentence.scheme for sentence in sentences} == {scheme}
    entities = spans(to_iob2(stray.split()))
    assert spans(sentences[400].tags) == entities
    output = capsys.readouterr().out
    deviating = strays * len(entities)
    total = 800 * len(spans(usual.split())) + deviating
    assert (
        f'file: read as {scheme.upper()}; {deviating:,} of {total:,} entities deviate from this scheme, at ' in output
    )
    line = 400 * (len(usual.split()) + 1) + entities[0].start + 1
    assert f' at {line}' in output


def test_no_scheme_that_fits_99_percent_is_an_error():
    text = file_of(*['B-X I-X'] * 180, *['I-Y O'] * 2)
    with pytest.raises(
        UserError, match=r'file:541: found an entity with the tags I-Y, one of 2 that are not IOB2, expec'
    ):
        read(text)
    assert len(read(text, scheme='iob2')) == 182


def test_entities_of_any_tags_are_those_of_seqeval():
    """Random tags with E and S, valid or not, are read as seqeval reads them; strict scores in BIOES are equal."""
    metrics = pytest.importorskip('seqeval.metrics', reason='compares with its scores')
    from seqeval.metrics.sequence_labeling import get_entities
    from seqeval.scheme import IOBES

    draw = random.Random(0)
    tags = ['O', 'O', *(f'{letter}-{type}' for letter in 'BIES' for type in 'XY')]
    random_tags = [[draw.choice(tags) for _ in range(draw.randrange(1, 12))] for _ in range(300)]
    for sequence in random_tags:
        assert [(type, start, end - 1) for type, start, end in spans(sequence)] == get_entities(sequence)
    gold = [to_scheme(sequence, 'bioes') for sequence in random_tags]
    predictions = [[draw.choice(tags) if draw.random() < 0.2 else tag for tag in sequence] for sequence in gold]
    predictions = [to_scheme(sequence, 'bioes') for sequence in predictions]
    ours = total_score(score_entities([to_iob2(x) for x in gold], [to_iob2(x) for x in predictions]))
    assert ours.f1 == pytest.approx(metrics.f1_score(gold, predictions, mode='strict', scheme=IOBES), abs=1e-12)
    assert 0.3 < ours.f1 < 0.95


def test_a_task_predicts_in_the_scheme_of_its_input(tmp_path: pathlib.Path):
    (tmp_path / 'train.txt').write_text(file_of(WRITTEN['bioes'], 'O'))
    task = TaggingTask(str(tmp_path), 12)
    records = task.records('train')
    task.learn(records)
    assert task.labels == ['O', 'B-X', 'I-X', 'B-Y', 'I-Y'] and task.learned_state()['scheme'] == 'bioes'
    plain = next(task.parse([(1, 'a b')], 'in'))
    text = write_columns([plain], [('B-X', 'I-X')], scheme='bioes')
    assert text == 'a B-X\nb E-X\n\n'


def test_comments_of_conll_u_are_recognized(capsys: pytest.CaptureFixture):
    """A line before a sentence is a comment if it starts with # and lacks the columns of a word; # may be a word."""
    text = '# newdoc\n# text = a b\n1\ta\tO\n2\t#\tB-X\n\n# text = # 1\n1\t#\tO\n'
    sentences = read(text, word_column=1)
    assert [sentence.words for sentence in sentences] == [('a', '#'), ('#',)]
    assert 'file: 3 lines that precede sentences and begin with # are read as comments' in capsys.readouterr().out
    written = write_columns(sentences, [('O', 'B-X'), ('O',)], scheme='')
    assert written.splitlines()[:3] == ['# newdoc', '# text = a b', '1\ta\tO\tO'] and '# text = # 1\n1\t#' in written
    assert read('# O\na B-X\n')[0].words == ('#', 'a')
    with pytest.raises(
        UserError, match=r'file:2: found 3 columns .*a comment must precede the first word of a sentence'
    ):
        read('a O\n# more words\nb O\n')


@pytest.mark.parametrize(
    ('labels', 'gives_entities'),
    [
        ('O B-PER I-PER', True),
        ('O B-PER I-PER E-PER S-PER', True),
        ('O B-PER I-PER L-PER U-PER', True),
        ('DT NN O', False),
        ('O B-PER X', False),
    ],
)
def test_a_hugging_face_model_gives_entities_if_its_labels_mark_them(
    labels: str, gives_entities: bool, tmp_path: pathlib.Path, tokenizer: Tokenizer
):
    names = labels.split()
    values = {'architectures': ['BertForTokenClassification'], 'id2label': dict(enumerate(names))}
    tagging = build_task_for_class(values, 12, 'config.json')
    sentence = Sentence('a.txt:1', ('ab', 'cd', 'ef'), None)
    features = tagging.features([sentence], tokenizer, training=False)
    logits = [np.float32(10 * np.eye(len(names)))[np.resize([1, 2, 0], n)] for n in features.lengths]
    (row,) = tagging.rows([sentence], tagging.predictions([sentence], features, {'token_logits': logits}))
    assert ('entities' in row) == gives_entities
