"""Reads sentences for tagging: the splits of a folder, CoNLL-2003 from tensorflow-datasets, or an input file."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from etils import epath
from tokenizers import Regex, pre_tokenizers

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix, has_compression_suffix
from bertjax.tasks.reading.json_rows import begins_objects
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.records import NESTED, Files, parse_records, read_records
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.splits import STEMS, SplitFiles, check_split, split_files
from bertjax.tasks.reading.texts import Blank, Line, check_not_empty, peek_lines, read_lines, read_text
from bertjax.tasks.tagging import columns
from bertjax.tasks.tagging.columns import Sentence, TagFormat
from bertjax.tasks.tagging.rows import find_tags, find_words, parse_sentences
from bertjax.text.offsets import repair_surrogates
from bertjax.text.tokenizer_base import UNSPACED

DATASET = 'conll2003'  # the name of the dataset in tensorflow-datasets
INPUTS = ('auto', 'columns', 'text', 'words', 'jsonl')
_CONLL_NAMES = {'train': (), 'dev': ('testa',), 'test': ('testb',)}
_SUFFIXES = ('.txt', '.conll', '.tsv', '.conllu', '.iob', '.iob2', '.bio', '.bioes', '.bmes')
# The characters of google-research/bert, tokenization.py:_is_chinese_char. Each of them is a word.
_CHINESE = '[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]'
# A line without spaces is a sentence if it has CJK punctuation after a word character, or a run of characters that is
# too long for most words: 6 hiragana or Chinese characters, or 12 of any script without spaces.
_UNSPACED_SENTENCE = re.compile(rf'\w[。！？；，、]|[\u3040-\u309f\u3400-\u9fff]{{6}}|[{UNSPACED}]{{12}}')
_SPLITTER = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(_CHINESE), 'isolated'), pre_tokenizers.BertPreTokenizer()]
)


class TaggedFiles(SplitFiles):
    """The splits of a folder, or of CoNLL-2003 in tensorflow-datasets.

    Args:
      data: The folder; '' for tensorflow-datasets. The folder has column files, such as dev.txt, valid.conll
        or eng.testa; or JSON, Parquet or Arrow files, such as dev.jsonl or test-00000-of-00001.parquet.
    """

    missing = 'tags'

    def __init__(self, data: str, format: TagFormat):
        super().__init__(data, self._have_tags, _SUFFIXES)
        self._format = format

    def splits(self) -> list[str]:
        return super().splits() if self._data else list(STEMS)

    def find(self, split: str) -> Files:
        column_files = [path for path in self.folder.iterdir() if _is_column_file(path, split)]
        return split_files(self.folder, split, suffixes=NESTED, first=column_files)

    def records(self, split: str) -> list[Sentence]:
        """Reads the sentences of a split in file order."""
        check_split(split)
        if not self._data:
            format = TagFormat(scheme=self._format.scheme)
            return self._read_rows(read_dataset(DATASET, split), DATASET, format, tagged=True)
        files, tagged = self.require(split), self.is_labeled(split)
        if _has_columns(files):
            return columns.read_columns(read_text(files[0]), str(files[0]), self._format, tagged=tagged)
        return self._read_rows(read_records(files), str(files[0]), self._format, tagged=tagged)

    def _is_data_file(self, path: epath.Path) -> bool:
        return super()._is_data_file(path) or _has_columns((path,))

    def _read_rows(self, records: Iterator[Record], where: str, format: TagFormat, *, tagged: bool) -> list[Sentence]:
        """Converts records to sentences. Records without words are dropped, and their number is printed."""
        rows = list(parse_sentences(records, format, tagged=tagged))
        blank = [row.where for row in rows if isinstance(row, Blank)]
        if blank:
            print(f'skipped {len(blank):,} records without words, the first at {blank[0]}')
        with_words = (row for row in rows if isinstance(row, Sentence))
        sentences = list(check_not_empty(with_words, where, 'no record with words'))
        locations = [[sentence.where] * len(sentence.words) for sentence in sentences]
        return columns.convert_to_iob2(sentences, locations, where, format) if tagged else sentences

    def _have_tags(self) -> bool:
        """Whether the test files have tags.

        A column file has no tags if it has only one column, or one column fewer than the training file.

        Raises:
          UserError: Only some of the records that are not in a column file have tags.
        """
        test, train = self.find('test'), self.find('train')
        if not _has_columns(test):
            first: dict[bool, str] = {}  # {whether a record has tags: the location of the first such record}
            for where, row in read_records(test):
                if find_words(row, self._format, where):  # a record without words may also lack tags
                    first.setdefault(find_tags(row, self._format) is not None, where)
            if len(first) > 1:
                fix = 'correct the record, or remove all tags of the file'
                raise UserError(first[False], 'no tags', 'tags, as for other records', fix)
            return True in first
        width = _count_columns(test[0], self._format)
        usual = _count_columns(train[0], self._format) if train and _has_columns(train) else width
        return width > 1 and width != usual - 1


def _is_column_file(path: epath.Path, split: str) -> bool:
    """Whether a path has the name of a column file of the split."""
    name = path.name.removesuffix(path.suffix) if has_compression_suffix(path.name) else path.name
    stem, dot, suffix = name.rpartition('.')
    names = (*STEMS[split], *_CONLL_NAMES[split])
    has_name = stem in names if dot + suffix in _SUFFIXES else (suffix if dot else name) in names
    return has_name and not path.is_dir()  # the name first, because a bucket answers the other question slowly


def _has_columns(files: Files) -> bool:
    return any(_is_column_file(files[0], split) for split in STEMS)


def _count_columns(path: epath.Path, format: TagFormat) -> int:
    """Returns the number of columns of the first word in a column file."""
    blocks = columns.read_blocks(read_lines(path), str(path), format.comment)
    return next((len(block.rows[0]) for block in blocks), 0)


def read_input(
    lines: Iterable[Line], where: str, format: TagFormat, input_format: str, labels: Collection[str]
) -> Iterator[Sentence | Blank]:
    """Yields the sentences of an input file, except of a JSON list, as soon as they are read. Tags are ignored.

    A JSON record or a line of text without words yields a `Blank`. `input_format` is one of INPUTS. With 'auto', the
    format is 'jsonl' if the first line is a JSON object or begins a list of objects, unless the line is only `[`. The
    format of any other .json file is 'json'. Otherwise, the format is 'columns' if
    - the first line has tabs or is -DOCSTART-,
    - or all lines have the same number of columns, at least half of the lines have a tag in `labels`, and at least one
      of these tags has a letter,
    - or there are several lines, and each line is a single word.
    Otherwise, the format is 'text'. These rules ignore blank lines, comments, and -DOCSTART- after the first line. In a
    file of single words, only a line like `# name = value` is a comment. At most two lines of a stream are examined.
    """
    if input_format == 'auto':
        lines, input_format = _detect_format(lines, where, format, labels)
        blanks = "with config.task.input_format='words', only white space separates words"
        names = {
            'columns': "columns; with config.task.input_format='text', each line is a text",
            'jsonl': 'JSON lines', 'json': 'JSON', 'text': f'one text per line; {blanks}',
        }  # fmt: skip
        print(f'{where}: read as {names[input_format]}')
    if input_format == 'columns':
        return columns.stream_columns(lines, where, format)
    if input_format in ('json', 'jsonl'):
        return parse_sentences(parse_records(lines, where, input_format), format, tagged=False)
    sentences = _read_lines(lines, where, raw=input_format == 'text')
    return check_not_empty(sentences, where, 'no word', 'one sentence per line')


def _detect_format(
    lines: Iterable[Line], where: str, format: TagFormat, labels: Collection[str]
) -> tuple[Iterator[Line], str]:
    """Returns an iterator over all lines, and their format. For the rules, see `read_input`."""
    complete = isinstance(lines, list)
    lines, texts = peek_lines(lines, len(lines) if complete else 1)
    if texts and texts[0].strip() != '[' and begins_objects(texts[0]):  # the first word of a column file may be a [
        return lines, 'jsonl'
    if bare_suffix(where) == '.json':
        return lines, 'json'
    if texts and not complete and (texts[0].startswith('#') or _looks_like_columns([*texts, *texts], format, labels)):
        lines, texts = peek_lines(lines, 2)
    return lines, 'columns' if _looks_like_columns(texts, format, labels) else 'text'


def _looks_like_columns(lines: Sequence[str], format: TagFormat, labels: Collection[str]) -> bool:
    others = [line for line in lines if not line.startswith(format.comment or '#')]
    if others and (columns.is_boundary(others[0]) or '\t' in others[0].strip()):
        return True
    width = len(columns.split_columns(others[0], ' ')) if others else 0
    known_width = width if width > 1 else 0  # else a sentence that starts with # would count as a comment
    words = [line for line in lines if not columns.is_comment(line, format.comment, ' ', known_width)]
    words = [line for line in words if not columns.is_boundary(line)]
    rows = [columns.split_columns(line, ' ') for line in words]
    if not rows:
        return len(lines) > 1
    width, column = len(rows[0]), format.tag_column
    if any(len(row) != width for row in rows):
        return False
    if width == 1:
        return len(rows) > 1 and 2 * sum(map(bool, map(_UNSPACED_SENTENCE.search, words))) < len(rows)
    if not -width <= column < width:
        return False
    known = [row[column] for row in rows if row[column] in labels]
    # At least one tag must have a letter, because a punctuation mark at the end of a sentence can also be a known tag.
    return 2 * len(known) >= len(rows) and any(letter.isalpha() for tag in known for letter in tag)


def _read_lines(lines: Iterable[Line], where: str, *, raw: bool) -> Iterator[Sentence | Blank]:
    """Yields a sentence for each line, or a `Blank` for a line without words. A blank line starts a new document.

    With `raw`, `split_words` splits the lines. Otherwise, spaces and tabs separate the words.
    """
    document = 0
    for number, line in lines:
        location = f'{where}:{number}'
        if not line.strip():
            yield Blank(location)
            document += 1
            continue
        words, offsets = split_words(line) if raw else (tuple(re.findall('[^ \t]+', line)), ())
        if not words:
            yield Blank(location, 'a line without words')  # for example, a line of control characters
            continue
        yield Sentence(location, words, None, document, text=line if raw else None, offsets=offsets)


def split_words(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Returns the words of a text, split as in BERT's tokenizer, and their offsets (first character, end).

    White space separates words. Each punctuation mark and each Chinese character is a word. Control characters at the
    start and the end of a word are removed. A word that is then empty or only has combining marks is dropped, because
    an uncased tokenizer has no pieces for it.
    """
    repaired, positions = repair_surrogates(text)
    words, offsets = [], []
    for _, (start, end) in _SPLITTER.pre_tokenize_str(repaired):
        while start < end and _is_control(repaired[start]):
            start += 1
        while start < end and _is_control(repaired[end - 1]):
            end -= 1
        if not all(unicodedata.category(letter) == 'Mn' for letter in repaired[start:end]):
            words.append(repaired[start:end])
            offsets.append((start, end) if positions is None else (int(positions[start]), int(positions[end])))
    return tuple(words), tuple(offsets)


def _is_control(letter: str) -> bool:
    # Cn (unassigned) is not listed, because it includes letters that are newer than this version of Python.
    return unicodedata.category(letter) in ('Cc', 'Cf', 'Co', 'Cs')
