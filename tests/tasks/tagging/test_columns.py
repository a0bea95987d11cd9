"""Tests reading and writing column files."""

import pathlib

import pytest

from bertjax.errors import UserError
from bertjax.metrics.entities import spans
from bertjax.tasks.reading.texts import Blank, number_lines
from bertjax.tasks.tagging.columns import TagFormat, read_columns, write_columns
from bertjax.tasks.tagging.files import TaggedFiles, read_input, split_words

CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
Jane NNP I-NP B-PER

-DOCSTART- -X- -X- O

BRUSSELS NNP I-NP I-LOC
1996-08-22 CD I-NP O
"""

NCBI = 'Ataxia\tB-Disease\n-\tI-Disease\n\n(\tO\nA\tB-Disease\n'


def read(text: str, **options) -> list:
    return read_columns(text, 'file', TagFormat(**options), tagged=True)


def files_of(data: object, **options) -> TaggedFiles:
    return TaggedFiles(str(data), TagFormat(**options))


def read_user_input(text: str, format: str, labels: list[str]) -> list:
    return list(read_input(list(number_lines(text)), 'in', TagFormat(), format, labels))


def with_gold(text: str) -> str:
    """Returns the file with its last column repeated, as conlleval reads it."""
    lines = text.rstrip('\n').split('\n')
    return '\n'.join(line and line + ('\t' if '\t' in line else ' ') + line.split()[-1] for line in lines) + '\n\n'


def test_a_column_file_outranks_other_formats_but_not_another_column_file(tmp_path):
    for name in ('dev.txt', 'dev.jsonl'):
        (tmp_path / name).write_text(NCBI)
    assert [path.name for path in files_of(tmp_path).find('dev')] == ['dev.txt']
    (tmp_path / 'eng.testa').write_text(NCBI)
    message = r'found dev.txt and eng.testa, expected one file of the dev split; move the others away'
    with pytest.raises(UserError, match=message):
        files_of(tmp_path).find('dev')


def test_conll_2003_is_read_as_iob1():
    sentences = read(CONLL)
    assert [sentence.words for sentence in sentences] == [
        ('EU', 'rejects', 'German', 'call'),
        ('Peter', 'Blackburn', 'Jane'),
        ('BRUSSELS', '1996-08-22'),
    ]
    assert [sentence.tags for sentence in sentences] == [
        ('B-ORG', 'O', 'B-MISC', 'O'),
        ('B-PER', 'I-PER', 'B-PER'),
        ('B-LOC', 'O'),
    ]
    assert [sentence.document for sentence in sentences] == [1, 1, 2]
    assert [sentence.where for sentence in sentences] == ['file:3', 'file:8', 'file:14']
    assert {sentence.scheme for sentence in sentences} == {'iob1'}


@pytest.mark.parametrize('text', [CONLL, NCBI, '\na B-X\nb O\n\nc O\n'], ids=['conll', 'ncbi', 'blank'])
def test_columns_are_written_as_they_were_read(text: str):
    sentences = read(text)
    tags = [sentence.tags for sentence in sentences]
    assert write_columns(sentences, tags, scheme='') == with_gold(text)


def test_a_word_that_starts_with_docstart_is_a_word():
    (sentence,) = read('a O\n-DOCSTART-ed B-X\n')
    assert sentence.words == ('a', '-DOCSTART-ed') and sentence.tags == ('O', 'B-X')


def test_all_written_lines_have_the_same_number_of_columns():
    sentences = read('-DOCSTART-\n\na x O\n\n-DOCSTART- -X-\n\nb x B-X\n')
    text = write_columns(sentences, [('B-X',), ('O',)], scheme='iob2')
    assert text == '-DOCSTART- O O O\n\na x O B-X\n\n-DOCSTART- -X- O O\n\nb x B-X O\n\n'


def test_true_tags_come_before_the_predicted():
    options = TagFormat(word_column=1, tag_column=0)
    sentences = read_columns('B-X a n\nO b n\n', 'file', options, tagged=True)
    assert sentences[0].words == ('a', 'b') and sentences[0].tags == ('B-X', 'O')
    assert write_columns(sentences, [('O', 'O')], scheme='') == 'B-X a n B-X O\nO b n O O\n\n'


def test_windows_line_ends_blanks_and_unusual_words():
    text = 'a\u00a0b  NN O  \r\n# NN\t B-X\r\n \t\r\n\r\n\u0085 \u2028 O'
    first, second = read(text)
    assert first.words == ('a\u00a0b', '#') and first.tags == ('O', 'B-X')
    assert second.words == ('\u0085',) and second.columns == (('\u0085', '\u2028', 'O'),)
    assert read('New York\tB-LOC\n')[0].words == ('New York',)  # Words separated by tabs may contain blanks.


def test_numbers_of_words_are_not_words():
    lines = '1\tAnna\tB-P\n2\tsingt\tO\n3\t.\tO\n'
    with pytest.raises(UserError, match=r'word_column: found 0, the numbers 1, 2, 3 … in file'):
        read(lines)
    assert read(lines, word_column=1)[0].words == ('Anna', 'singt', '.')
    universal = ''.join(f'{i}\t{word}\t_\tX\tY\t_\t0\troot\t_\t_\n' for i, word in enumerate('abc', 1))
    for column, advice in ((-1, r', and config\.task\.tag_column to 3 \(UPOS\) or 4 \(XPOS\)'), (3, '')):
        with pytest.raises(UserError, match=f'set it to 1, for example{advice}$'):
            read(universal, scheme='plain', tag_column=column)
    with pytest.raises(UserError, match=r'tag_column: found -1, the column MISC of CoNLL-U in file, .* 3 \(UPOS\)'):
        read(universal, scheme='plain', word_column=1)
    assert read(universal, scheme='plain', word_column=1, tag_column=3)[0].tags == ('X', 'X', 'X')
    assert read('a' + '\t_' * 9 + '\n', scheme='plain')[0].tags == ('_',)  # ten columns without numbers


def test_a_comment_with_as_many_columns_as_a_word_is_no_word():
    text = '# sent_id = 1\nEU NNP I-NP I-ORG\n'
    (sentence,) = read(text)
    assert sentence.words == ('EU',)


def test_comments_are_written_back():
    text = '# id 1 domain=en\na _ _ B-X\n# _ _ O\n\n# id 2\nb _ _ O\n'
    sentences = read(text, comment='# id')
    assert [sentence.words for sentence in sentences] == [('a', '#'), ('b',)]
    written = write_columns(sentences, [('B-X', 'O'), ('O',)], scheme='')
    assert written == '# id 1 domain=en\na _ _ B-X B-X\n# _ _ O O\n\n# id 2\nb _ _ O O\n\n'


def test_a_comment_does_not_determine_the_separator():
    (sentence,) = read('% a comment\nNew York\tB-LOC\n', comment='%')
    assert sentence.words == ('New York',) and sentence.separator == '\t'


def test_multiword_tokens_and_empty_nodes_of_conllu_are_no_words():
    lines = ['1-2 zum _', '1 zu ADP', '2 dem DET', '2.1 und CCONJ', '3 Arzt NOUN']
    text = ''.join('\t'.join([*line.split(' '), *['_'] * 7]) + '\n' for line in lines)
    (sentence,) = read(text, scheme='plain', word_column=1, tag_column=2)
    assert sentence.words == ('zu', 'dem', 'Arzt') and sentence.tags == ('ADP', 'DET', 'NOUN')


def test_the_plain_scheme_takes_any_tag():
    sentences = read('the DT\ndog NN-x\n', scheme='plain')
    assert sentences[0].tags == ('DT', 'NN-x') and sentences[0].scheme == 'plain'


def test_a_configured_scheme_reads_deviating_tags_as_conlleval(capsys: pytest.CaptureFixture):
    text = 'a B-X\nb O\nc I-X\nd I-Y\n'
    assert read(text, scheme='iob2')[0].tags == ('B-X', 'O', 'B-X', 'B-Y')
    assert 'file: read as IOB2; 2 of 3 entities deviate from this scheme, at 3, 4\n' in capsys.readouterr().out
    assert read(text, scheme='iob1')[0].scheme == 'iob1'
    assert 'read as IOB1; 1 of 3 entities' in capsys.readouterr().out
    assert read('a B-X\nb O\n', scheme='iob2') and not capsys.readouterr().out


@pytest.mark.parametrize(
    ('text', 'parts'),
    [
        ('', ('file', 'no word')),
        ('\n\n-DOCSTART- O\n', ('file', 'no word')),
        ('a NN O\nb O\n', ('file:2', '2 columns', '3, as in line 1')),
        ('a NN O\n\nb NN O O\n', ('file:3', '4 columns', '3, as in line 1')),
        ('a\tO\nb O\n', ('file:2', '1 column', 'separated by tabs')),
        ('a O\n# text = b\n', ('file:2', '4 columns', 'a comment must precede the first word')),
        ('a\tO\n\tO\n', ('file:2', 'an empty word')),
        ('a\tO\nb\t\n', ('file:2', "the tag ''")),
        ('a O\nb NN\n', ('file:2', "the tag 'NN'", 'config.task.tag_column', "scheme='plain'")),
        ('a O\nb B_X\n', ('file:2', "'B_X'")),
        ('a O\nb I-\n', ('file:2', "'I-'")),
        ('a\nb\n', ('file:1', 'the same column', '--config.run=predict')),
        ('a,b\nc\n', ('file:1', 'the same column', '--config.run=predict')),
        ('word,tag\na,O\n', ('file:1', 'the same column', 'separate the columns by tabs or spaces')),
        ('run;VERB\n', ('file:1', 'the same column', 'separate the columns by tabs or spaces')),
        (
            'a B-X\nb O\nc B-X\n\nd I-X\n',
            ('file:5', 'tags I-X, one of 1', '99 % of the 3', 'for example to iob2'),
        ),
    ],
)
def test_malformed_files_are_errors(text: str, parts: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        read(text)
    for part in parts:
        assert part in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ('options', 'parts'),
    [
        ({'tag_column': 4}, ('config.task.tag_column', '4', '4 columns')),
        ({'word_column': -5}, ('config.task.word_column', '-5')),
        ({'tag_column': 0}, ('file:3', 'the same column')),
        ({'tag_column': 1}, ('file:3', "'NNP'")),
    ],
)
def test_wrong_columns_are_errors(options: dict, parts: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        read(CONLL, **options)
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_the_file_of_each_split_is_recognized(tmp_path: pathlib.Path):
    for name in ('eng.train', 'valid.conll', 'test.bmes', 'README.txt', 'train.json'):
        (tmp_path / name).write_text('a B-X\n')
    assert [files_of(tmp_path).find(split)[0].name for split in ('train', 'dev', 'test')] == [
        'eng.train', 'valid.conll', 'test.bmes',
    ]  # fmt: skip
    (tmp_path / 'dev.txt').write_text('a O\n')
    with pytest.raises(UserError, match=r'dev\.txt and valid\.conll'):
        files_of(tmp_path).find('dev')
    with pytest.raises(UserError, match=r'config\.data'):
        files_of(tmp_path / 'nowhere').find('dev')
    with pytest.raises(UserError, match=r'config\.split'):
        files_of(tmp_path).records('dev2')


@pytest.mark.parametrize(('test', 'labeled'), [('b NN O\n', True), ('b NN\n', False), ('b\n', False)])
def test_test_files_may_lack_tags(tmp_path: pathlib.Path, test: str, labeled: bool):
    (tmp_path / 'train.txt').write_text('a NN B-X\n')
    (tmp_path / 'test.txt').write_text(test)
    assert files_of(tmp_path).splits() == ['train', 'test'][: 1 + labeled]
    assert files_of(tmp_path).records('test')[0].tags == (('O',) if labeled else None)
    with pytest.raises(UserError, match=r"no file of the dev split among 'test\.txt', 'train\.txt', expected dev\.txt"):
        files_of(tmp_path).records('dev')


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('John lives in Berlin .\nYes\n', [('John', 'lives', 'in', 'Berlin', '.'), ('Yes',)]),
        ('John\nlives\n\nYes\n', [('John', 'lives'), ('Yes',)]),
        ('John\tNNP\nlives\tVBZ\n', [('John', 'lives')]),
        ('-DOCSTART-\nJohn NNP\n', [('John',)]),
        ('John B-X\nlives O\n', [('John', 'lives')]),
        ('John B-NEW\nlives O\n', [('John', 'lives')]),
        ('John lives .\nYes lives .\n', [('John', 'lives', '.'), ('Yes', 'lives', '.')]),
        ('John lives\nThey walk\n', [('John', 'lives'), ('They', 'walk')]),
        ('John\n', [('John',)]),
        ('Great\n#win today folks\nThanks\n', [('Great',), ('#', 'win', 'today', 'folks'), ('Thanks',)]),
        ('# a = b\n', [('#', 'a', '=', 'b')]),
        ('# id 1 of the mails\nJohn B-X\nlives O\n', [('John', 'lives')]),
        ('# sent_id = 1\nJohn NNP I-NP B-X\n-DOCSTART-\nlives VBZ I-VP O\n', [('John',), ('lives',)]),
        ('[{"tokens": ["John", "lives"]}, {"tokens": ["Yes"]}]', [('John', 'lives'), ('Yes',)]),
        ('[\nJohn\n]\n', [('[', 'John', ']')]),
        ('我在北京。\n你好！\n', [tuple('我在北京。'), tuple('你好！')]),
        ('王小明住在北京\n我开会\n李四去上海市\n', [*map(tuple, ('王小明住在北京', '我开会', '李四去上海市'))]),
        ('ฉันไปกรุงเทพ\nเขาอยู่ที่เชียงใหม่\n', [('ฉันไปกรุงเทพ',), ('เขาอยู่ที่เชียงใหม่',)]),
        ('ខ្ញុំទៅភ្នំពេញ\nគាត់រស់នៅសៀមរាប\n', [('ខ្ញុំទៅភ្នំពេញ',), ('គាត់រស់នៅសៀមរាប',)]),
        ('一、\n我\n在\n北京\n！？\n', [('一、', '我', '在', '北京', '！？')]),
        ('中华人民共和国\n在\n北京\n', [('中华人民共和国', '在', '北京')]),
        ('我住在北京市朝阳区\n你好\n', [tuple('我住在北京市朝阳区'), ('你', '好')]),
        ('カリフォルニア\nコンピュータ\nで\n', [('カリフォルニア', 'コンピュータ', 'で')]),
        ('ฉัน\nไป\nกรุงเทพมหานคร\n', [('ฉัน', 'ไป', 'กรุงเทพมหานคร')]),
    ],
)
def test_the_format_of_an_input_file_is_detected(text: str, words: list[tuple[str, ...]]):
    sentences = read_user_input(text, 'auto', ['O', 'B-X', 'I-X', '.'])
    assert [sentence.words for sentence in sentences] == words
    assert all(sentence.tags is None for sentence in sentences)
    assert len(list(read_input(number_lines('カリフォルニア\nに\n'), 'in', TagFormat(), 'auto', []))) == 1
    as_text = read_user_input('a b\n\n\u200b\nc d\n\n', 'text', [])
    blanks = [as_text.pop(index) for index in (1, 1, -1)]
    assert blanks == [Blank('in:2'), Blank('in:3', 'a line without words'), Blank('in:5')]
    assert [(sentence.where, sentence.words, sentence.document) for sentence in as_text] == [
        ('in:1', ('a', 'b'), 0), ('in:4', ('c', 'd'), 1),
    ]  # fmt: skip
    assert write_columns(as_text, [('O', 'B-X'), ('O', 'O')], scheme='') == 'a O\nb B-X\n\nc O\nd O\n\n'


def test_raw_text_is_split_into_words(capsys: pytest.CaptureFixture):
    """By default punctuation is separated, as in data for taggers; input_format='words' splits only at blanks."""
    text = '\u200b"Ada O\'Neil", of\u00a0Île-de…\u2003東京\x07.\n\u0301 \n'
    raw, skipped = read_user_input(text, 'auto', ['O', 'B-X'])
    assert skipped == Blank('in:2', 'a line without words')
    assert "config.task.input_format='words'" in capsys.readouterr().out
    assert raw.words == ('"', 'Ada', 'O', "'", 'Neil', '"', ',', 'of', 'Île', '-', 'de', '…', '東', '京', '.')
    assert tuple(text[start:end] for start, end in raw.offsets) == raw.words and raw.text == text.split('\n')[0]
    (words, _) = read_user_input(text, 'words', [])
    assert words.words[1:3] == ('O\'Neil",', 'of\u00a0Île-de…\u2003東京\x07.') and words.text is None
    assert split_words('a\ud83d\ude00 b') == (('a😀', 'b'), ((0, 3), (4, 5)))  # JSON may contain surrogate pairs.


@pytest.mark.parametrize('format', ['auto', 'text', 'columns'])
def test_input_without_words_is_an_error(format: str):
    with pytest.raises(UserError, match='in: found no word'):
        read_user_input('\n \n', format, [])


def test_tensorflow_datasets_are_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    import tensorflow_datasets as tfds

    from bertjax.tasks.tagging import files

    sentences = [(['EU', 'rejects'], ['B-ORG', 'O']), (['Peter', 'Blackburn'], ['B-PER', 'I-PER']), ([], [])]

    class Conll(tfds.core.GeneratorBasedBuilder):
        """A data set with the features of conll2003."""

        name = 'conll'
        pkg_dir_path = tmp_path  # The folder cannot be inferred, because a test is not in a package.
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            names = tfds.features.ClassLabel(names=['O', 'B-PER', 'I-PER', 'B-ORG'])
            features = {'tokens': tfds.features.Sequence(tfds.features.Text()), 'ner': tfds.features.Sequence(names)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {'dev': self._generate_examples()}

        def _generate_examples(self):
            for index, (words, tags) in enumerate(sentences):
                yield index, {'tokens': words, 'ner': tags}

    builder = Conll(data_dir=str(tmp_path), file_format='array_record')
    builder.download_and_prepare()
    monkeypatch.setattr(files, 'DATASET', str(builder.data_dir))
    records = sorted(files_of('').records('dev'), key=lambda record: record.words)
    assert [(list(record.words), list(record.tags)) for record in records] == sentences[:2]
    assert files_of('').splits() == ['train', 'dev', 'test']
    with pytest.raises(UserError, match='no split'):
        files_of('').records('train')


@pytest.mark.slow
def test_ncbi_disease_has_its_published_numbers(shared: pathlib.Path):
    data = str(shared / 'ner' / 'NCBI-disease')
    assert files_of(data).splits() == ['train', 'dev', 'test']
    for split, sentences, words, entities in (
        ('train', 5424, 135701, 5134), ('dev', 923, 23969, 787), ('test', 940, 24497, 960),
    ):  # fmt: skip
        records = files_of(data).records(split)
        total = sum(len(spans(record.tags)) for record in records)
        assert (len(records), sum(len(record.words) for record in records), total) == (sentences, words, entities)
        text = (pathlib.Path(data) / f'{split}.txt').read_text()
        assert write_columns(records, [record.tags for record in records], scheme='') == with_gold(text)
