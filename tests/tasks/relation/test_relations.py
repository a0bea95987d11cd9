"""Tests relation extraction: both layouts, errors in them, and how sequences mark the entities."""

import dataclasses
import json
import pathlib
import types

import jax
import numpy as np
import pytest
from json_tokenizers import write_tokenizer
from text_world import LETTERS, sequences

from bertjax.convert.huggingface.config import check_head_exportable
from bertjax.errors import UserError
from bertjax.finetune.results import write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.inference.task_methods import text_records
from bertjax.model.config import BertConfig
from bertjax.tasks.reading.texts import number_lines
from bertjax.tasks.relation.features import describe_marks, encode_relations
from bertjax.tasks.relation.files import MarkedEntity, Relation, parse_marked_text
from bertjax.tasks.relation.task import RelationTask
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

ROW = {'id': '7', 'token': ['x', 'ab', 'c', 'd', 'ef', '.'], 'relation': 'per:title', 'subj_type': 'PERSON'}
ROW |= {'subj_start': 4, 'subj_end': 4, 'obj_start': 1, 'obj_end': 2, 'obj_type': 'JOB_TITLE'}
OTHER = {**ROW, 'relation': 'no_relation', 'subj_start': 0, 'subj_end': 0}


@pytest.fixture(scope='module')
def slots(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer with one piece per letter and four unused pieces."""
    path = tmp_path_factory.mktemp('slots') / 'vocab.txt'
    unused = [f'[unused{i}]' for i in range(4)]
    pieces = [
        '[PAD]',
        *unused,
        '[UNK]',
        '[CLS]',
        '[SEP]',
        '[MASK]',
        *'@#*^<>[]',
        *LETTERS,
        *('##' + x for x in LETTERS),
    ]
    path.write_text(''.join(f'{piece}\n' for piece in pieces))
    return load_tokenizer(path)


@pytest.fixture
def tacred(tmp_path: pathlib.Path) -> RelationTask:
    for name, rows in (('train', [ROW, OTHER, ROW]), ('dev', [ROW]), ('test', [OTHER])):
        (tmp_path / f'{name}.json').write_text(json.dumps(rows))
    return RelationTask(str(tmp_path), 32)


def test_rows_of_tacred_are_read_and_evaluated(tacred: RelationTask):
    first, second, _ = tacred.records('train')
    assert first == Relation(
        'x ab c d ef .', (MarkedEntity(9, 11, 'PERSON'), MarkedEntity(2, 6, 'JOB_TITLE')), 'per:title'
    )
    assert (first.mention(0), first.mention(1)) == ('ef', 'ab c')
    assert first.first == 'x [[ ab c ]] d << ef >> .' and second.first == '<< x >> [[ ab c ]] d ef .'
    assert tacred.splits() == ['train', 'dev', 'test']
    tacred.learn(tacred.records('train'))
    assert tacred.labels == ['no_relation', 'per:title']
    with pytest.raises(UserError, match="negative: found 'no_relations', expected one of no_relation, per:title"):
        dataclasses.replace(tacred, negative='no_relations').learn(tacred.records('train'))
    with pytest.raises(UserError, match="negative: found 'no_relations'"):
        dataclasses.replace(tacred, negative='no_relations').restore(tacred.learned_state())
    scores = [np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([2.0, 1.0])]
    figures = tacred.metrics(tacred.records('train'), scores)
    assert (figures['precision'], figures['recall']) == (1 / 2, 1 / 2) and next(iter(figures)) == 'micro_f1'
    assert tacred.official_files('dev', [], scores) == {'dev.txt': 'per:title\nper:title\nno_relation\n'}
    row = next(tacred.rows([first], scores[:1]))
    assert (row['subject'], row['object'], row['label'], row['true']) == ('ef', 'ab c', 'per:title', 'per:title')


def test_a_blank_line_of_plain_text_is_no_record_of_the_file_for_the_scorer(tacred, tmp_path: pathlib.Path):
    tacred.learn(tacred.records('train'))
    items = list(tacred.parse(number_lines('<<a>> b [[c]]\n\n<<d>> e [[f]]\n'), 'rel.txt'))
    split = TaskSplit([items[0], items[2]], None)
    write_predictions(tmp_path, tacred, 'rel', split, [np.array([0.0, 1.0])] * 2, items)
    assert (tmp_path / 'rel' / 'rel.txt').read_text() == 'per:title\n' * 2


@pytest.mark.parametrize(
    ('text', 'plain', 'subject', 'object'),
    [
        ('<< a >> b [[ c d ]].', 'a b c d.', 'a', 'c d'),
        ('[[c]]-e <<a b>>', 'c-e a b', 'a b', 'c'),
        ('<< a [[ b ]] c >> d', 'a b c d', 'a b c', 'b'),  # One entity is inside the other.
        ('x >> << a >> [[ b ]]', 'x >> a b', 'a', 'b'),
        ('<< a >> [[ [3H]b ]] >>', 'a [3H]b >>', 'a', '[3H]b'),
        ('<< a\nb >> [[ c ]] d', 'a\nb c d', 'a\nb', 'c'),
        ('x << y\n<< a >> [[ b ]]', 'x << y\na b', 'a', 'b'),
    ],
)
def test_marked_texts_are_parsed(text: str, plain: str, subject: str, object: str):
    parsed, entities = parse_marked_text(text, 'a.txt')
    record = Relation(parsed, entities, None)
    assert parsed == plain and (record.mention(0), record.mention(1)) == (subject, object)


def test_marked_texts_have_the_types_of_their_fields(tmp_path: pathlib.Path):
    row = {'text': '<< ab >> c [[ d ]]', 'label': 'x', 'subj_type': 'A', 'obj_type': 'B'}
    for split, rows in (('train', [row, {**row, 'label': 'y'}]), ('dev', [row])):
        (tmp_path / f'{split}.jsonl').write_text(''.join(json.dumps(fields) + '\n' for fields in rows))
    task = RelationTask(str(tmp_path), 32, markers='typed')
    (record,) = task.records('dev')
    assert record.entities == (MarkedEntity(0, 2, 'A'), MarkedEntity(5, 6, 'B'))
    assert record.fields == row and task.records('train')[0].fields is None


@pytest.mark.parametrize('markers', ['typed', 'mask'])
def test_a_record_without_types_is_refused_where_types_are_marked(tacred: RelationTask, markers: str):
    untyped = {name: value for name, value in ROW.items() if name != 'obj_type'}
    (pathlib.Path(tacred.data) / 'dev.json').write_text(json.dumps([ROW, untyped]))
    task, text = dataclasses.replace(tacred, markers=markers), '<< ab >> c [[ d ]]'
    with pytest.raises(UserError, match=rf'1\]: found no obj_type, .*\.markers={markers}.* with .*\.markers=entity'):
        task.records('dev')
    with pytest.raises(UserError, match='input:1: found no subj_type'):
        list(task.parse([(1, text)], 'input'))
    with pytest.raises(UserError, match='input:2: found no subj_type'):
        list(task.parse([(1, json.dumps(ROW)), (2, json.dumps({**ROW, 'subj_type': ' '}))], 'input'))
    with pytest.raises(UserError, match=r'texts\[0\]: found no subj_type'):
        text_records(types.SimpleNamespace(task=task, where='model'), [text], None)


def test_the_model_card_tells_how_to_mark_the_entities(slots: Tokenizer, tokenizer: Tokenizer, tmp_path: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason='tokenizes as a pipeline does')
    facts = RelationTask('', 32).card_facts(slots)['Input']
    assert facts['text'] == describe_marks(slots, 'entity')
    slots.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    marked = '[unused0] ab [unused1] c [unused2] d [unused3]'
    assert '[unused0]' not in theirs.tokenize(marked)
    eval(facts['before the first use'].strip('`'), {'tokenizer': theirs})
    ((tokens, *_),) = encode_relations([RECORD_IN_ORDER], slots, 64, 'entity')
    assert theirs(marked, add_special_tokens=False)['input_ids'] == tokens.tolist()
    assert 'before the first use' not in RelationTask('', 32).card_facts(tokenizer)['Input']


def test_an_empty_relation_means_no_label(tacred: RelationTask, tmp_path: pathlib.Path):
    (tmp_path / 'test.json').write_text(json.dumps([{**OTHER, 'relation': ' '}]))
    assert [record.label for record in tacred.records('test')] == [None] and tacred.splits() == ['train', 'dev']
    (tmp_path / 'test.json').write_text(json.dumps([{**OTHER, 'relation': ' '}, ROW]))
    with pytest.raises(UserError, match=r'test\.json\[0\]: found no label'):
        tacred.splits()
    (tmp_path / 'train.json').write_text(json.dumps([ROW, {**OTHER, 'relation': ''}]))
    with pytest.raises(UserError, match='found no label'):
        tacred.records('train')


def test_invalid_rows_and_texts_are_refused(tacred: RelationTask, tmp_path: pathlib.Path):
    for changes, expected in (
        ({'subj_end': 9}, 'subj_end 9, expected a number from 0 to 5'),
        ({'obj_start': 3}, 'obj_start 3 after obj_end 2'),
        ({'obj_end': None}, 'obj_end None'),
        ({'token': 'x ab'}, 'found a str, expected a list of one or more strings'),
        ({'token': []}, 'found a list, expected a list of one or more strings'),
        ({'token': ['x', 'ab', 'c', 'd', '', '.']}, 'an empty subj, expected an entity with text'),
        ({'relation': None}, 'no label'),
        ({'relation': ['a']}, 'the name of a relation'),
    ):
        (tmp_path / 'train.json').write_text(json.dumps([ROW, {**ROW, **changes}]))
        with pytest.raises(UserError, match=expected) as error:
            tacred.records('train')
        assert error.value.where.startswith(str(tmp_path / 'train.json')) and '1' in error.value.where
    (tmp_path / 'train.json').unlink()
    (tmp_path / 'train.jsonl').write_text('{"text": "<< a >> b", "label": "x"}\n')
    with pytest.raises(UserError, match=r'train\.jsonl:1: found no entity between \[\[ and \]\]'):
        tacred.records('train')
    (tmp_path / 'train.jsonl').write_text('{"sentence": "<< a >> [[ b ]]", "label": "x"}\n')
    with pytest.raises(UserError, match=r"'sentence'.*expected token and subj_start …, or text.*config\.task\.text_a"):
        tacred.records('train')
    with pytest.raises(UserError, match='2 entities between << and >>'):
        parse_marked_text('<< a >> << b >> [[ c ]]', 'a.txt')
    with pytest.raises(UserError, match='no file of the dev split'):
        (tmp_path / 'dev.json').unlink()
        tacred.records('dev')


RECORD_IN_ORDER = Relation('ab c d', (MarkedEntity(0, 2), MarkedEntity(5, 6)), None)
RECORD = Relation('x ab y cd z', (MarkedEntity(7, 9, 'PERSON'), MarkedEntity(2, 4, 'A_B')), None)


@pytest.mark.parametrize(
    ('markers', 'expected'),
    [
        ('entity', '(x[unused2]a##b[unused3]y[unused0]c##d[unused1]z|'),
        ('typed', '(x#^ab^a##b#y@*p##e##r##s##o##n*c##d@z|'),
        ('mask', '(x[unused2]aby[unused0]p##e##r##s##o##nz|'),
        ('words', '(x[[a##b]]y<<c##d>>z|'),
    ],
)
def test_entities_are_marked_in_sequences(slots: Tokenizer, markers: str, expected: str):
    features = RelationTask('', 64, markers=markers).features([RECORD], slots, training=False)
    assert sequences(features, slots) == [expected]
    subject, object = features.row['starts'][0]
    opening = {'entity': '[unused0]', 'typed': '@', 'mask': '[unused0]', 'words': '<'}[markers]
    assert slots.pieces[features.tokens[subject]] == opening and object == 2
    assert opening in describe_marks(slots, markers)


@pytest.mark.parametrize(
    ('markers', 'expected'),
    [
        ('entity', '[unused2][unused3][unused0][unused1]'),
        ('typed', '#^ab^#@*p##e##r##s##o##n*@'),
        ('mask', '[unused2]ab[unused0]p##e##r##s##o##n'),
        ('words', '[[]]<<>>'),
    ],
)
def test_marks_are_fixed_tokens_for_augmentation(slots: Tokenizer, markers: str, expected: str):
    long = dataclasses.replace(RECORD, text=RECORD.text + ' q' * 60)
    for record in (RECORD, long):
        task = RelationTask('', 48, markers=markers)
        features = task.features([record, record], slots, training=False)
        fixed = task.fixed_tokens([record, record], features, slots)
        assert fixed.shape == features.tokens.shape
        if markers != 'typed' or record is RECORD:
            pieces = ''.join(slots.pieces[i] for i in features.tokens[fixed])
            assert pieces.replace('##b', 'b') == 2 * expected.replace('##b', 'b')


@pytest.mark.parametrize('markers', ['entity', 'typed', 'words'])
def test_words_beside_marks_have_the_pieces_of_words_in_a_text(tmp_path: pathlib.Path, markers: str):
    write_tokenizer('modern', ['Ann runs Acme in Rome'] * 9, tmp_path, size=300)
    tokenizer = load_tokenizer(tmp_path)
    opening = '<<' if markers == 'words' else '@'
    assert f' by {opening}' in describe_marks(tokenizer, markers) and 'Ġ' not in describe_marks(tokenizer, markers)
    for text, start in (('Ann runs Acme in Rome', ' '), ('in Rome Ann runs Acme', '')):
        entities = tuple(MarkedEntity(text.index(name), text.index(name) + len(name), 'X') for name in ('Ann', 'Acme'))
        record = Relation(text, entities, None)
        ((tokens, _, fixed, _),) = encode_relations([record], tokenizer, 64, markers)
        assert tokens[~fixed].tolist() == tokenizer.encode([start + text])[0].tolist()


def test_without_unused_pieces_the_marks_are_punctuation(tokenizer: Tokenizer, slots: Tokenizer):
    assert 'marked by [unused0] … [unused1] and [unused2] … [unused3]' in describe_marks(slots, 'entity')
    assert 'unused' not in describe_marks(tokenizer, 'entity')


def test_a_long_sentence_keeps_both_entities(slots: Tokenizer):
    """Words outside the entities are removed first, then the middle between them, then the ends of the entities."""
    text = 'a b c d e f g h i j k l m n'
    record = Relation(text, (MarkedEntity(6, 9), MarkedEntity(20, 23)), None)  # The entities are "d e" and "k l".

    def truncated(length: int) -> str:
        features = RelationTask('', length, markers='entity').features([record], slots, training=False)
        (sequence,) = sequences(features, slots)
        starts = features.row['starts'][0]
        assert [slots.pieces[features.tokens[i]] for i in starts] == ['[unused0]', '[unused2]']
        for i, mark in enumerate('<>{}'):
            sequence = sequence.replace(f'[unused{i}]', mark)
        return sequence

    assert truncated(20) == '(abc<de>fghij{kl}mn|'
    assert truncated(18) == '(bc<de>fghij{kl}m|'
    assert truncated(15) == '(<de>fghij{kl}|'
    assert truncated(12) == '(<de>fj{kl}|'
    assert truncated(8) == '(<d>{k}|'
    with pytest.raises(UserError, match='marks that do not fit in 5 pieces'):
        truncated(5)


def test_logits_with_pool_starts_depend_on_the_positions_of_the_marks(slots: Tokenizer):
    """No class of transformers has this head."""
    task = RelationTask('', 32, pool='starts', labels=('a', 'b', 'c'))
    config = BertConfig(
        vocab_size=slots.vocab_size, num_layers=1, width=8, num_heads=2, mlp_dim=8, max_positions=32, dropout=0.0
    )
    model, features = task.build_module(config), task.features([RECORD], slots, training=False)
    batch = features.batch(np.array([0]), 32, slots.pad_id)
    inputs = [batch[name] for name in task.objective.inputs]

    @jax.jit
    def both(*inputs):
        outputs, params = model.init_with_output(jax.random.key(0), *inputs)
        return outputs['logits'], model.apply(params, *inputs[:-1], inputs[-1] + 1)['logits']

    logits, moved = both(*inputs)
    assert logits.shape == (1, 3) and not np.allclose(logits, moved)
    with pytest.raises(UserError, match='no class for the head BertForRelation'):
        check_head_exportable(model, task.head)
    assert RelationTask('', 32).head.architecture == 'BertForSequenceClassification'


def test_marked_texts_and_rows_are_accepted_as_input(tacred: RelationTask, capsys):
    lines = [(1, '<< a >> b [[ c ]]'), (2, ''), (3, '[[ c ]]\t<< d >>')]
    first, blank, last = tacred.parse(lines, 'standard input')
    assert 'read as one text per line' in capsys.readouterr().out
    assert (first.mention(0), last.mention(0)) == ('a', 'd') and blank.where == 'standard input:2'
    (row,) = tacred.parse([(1, json.dumps(ROW))], 'standard input')
    assert list(tacred.parse([(1, json.dumps([ROW, ROW]))], 'standard input')) == [row, row]
    assert row.label is None and row.fields['id'] == '7'
    model = types.SimpleNamespace(task=tacred, where='model')
    (from_python,) = text_records(model, ['<< a >> b [[ c ]]'], None)
    assert from_python == first
    with pytest.raises(UserError, match='give a single text'):
        text_records(model, ['<< a >> b [[ c ]]'], ['d'])


def test_chemprot_is_read(shared: pathlib.Path):
    task = RelationTask(str(shared / 'domain' / 'chemprot'), 128)
    records = task.records('train')
    assert len(records) == 4169 and len(task.records('dev')) == 2427 and len(task.records('test')) == 3469
    assert records[0].mention(0) == 'Epidermal growth factor receptor' and records[0].mention(1) == 'gefitinib'
    assert not any('<<' in record.text or ']]' in record.text for record in records)
