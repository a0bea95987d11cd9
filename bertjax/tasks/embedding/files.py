"""Readers of texts to embed: pairs with or without hard negatives, scored pairs, single texts, BEIR and SQuAD."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading.json_rows import convert_to_text
from bertjax.tasks.reading.layout import Column, Record, TableLayout
from bertjax.tasks.reading.records import read_records
from bertjax.tasks.reading.texts import quote_names
from bertjax.tasks.squad.questions import SquadQuestion

# {form of the records: the roles of the required columns}. The first form whose columns all exist is read.
FORMS = {
    'distilled': ('anchor', 'positive', 'label'),
    'pairs': ('anchor', 'positive'),
    'scored': ('text_a', 'text_b'),
    'texts': ('text',),
}
GROUPS = ('distilled', 'pairs')  # the forms whose records are an anchor, its positive, and negatives
ROLES = ('anchor', 'positive', 'negative', 'text_a', 'text_b', 'label', 'text')
OPTIONAL_COLUMNS = {'negative': 'negative', 'label': 'score'}  # {role: default name of a column that a file may lack}

_STRINGS = re.compile(r"""("?)\[\s*['"].*\]\1""", re.DOTALL)  # a list of strings in any notation


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A training record, or a pair whose similarity is evaluated or predicted.

    Attributes:
      form: a key of FORMS.
      texts: an anchor, its positive and any number of negatives; or the two texts of a pair; or a single text.
      score: the similarity of a scored pair; None if unknown.
      where: the location, such as 'file:line'; '' for records from a BEIR folder or from SQuAD's JSON.
      fields: all fields of the row if it has named fields and is read for prediction; else None.
      teacher: a teacher's scores of all texts but the first, if the form is 'distilled'; else ().
    """

    form: str
    texts: tuple[str, ...]
    score: float | None = None
    where: str = dataclasses.field(default='', repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    teacher: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """The documents to search. The repr, which is part of a cache key, contains a hash of the texts."""

    ids: Sequence[str]
    texts: Sequence[str]
    from_pairs: bool = False  # whether the documents are texts of pairs; see `Query.excludes`

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()

    def __repr__(self) -> str:
        return f'Corpus({self._digest})'


@dataclasses.dataclass(frozen=True)
class Query:
    """A query, its relevant documents, and the corpus that it searches.

    Attributes:
      relevant: {index of a document in the corpus: its relevance, at least 1}.
      candidates: the indices of the documents that a reranker scores, from the pairs or from a run file; () for none.
    """

    id: str
    text: str
    relevant: Mapping[int, int]
    corpus: Corpus
    candidates: Sequence[int] = ()

    def excludes(self, document: int) -> bool:
        """Whether a document is not relevant, but has the query's id or, in a corpus from pairs, the query's text."""
        same_text = self.corpus.from_pairs and self.corpus.texts[document] == self.text
        return document not in self.relevant and (self.corpus.ids[document] == self.id or same_text)


def parse_examples(
    records: Iterable[Record], columns: Mapping[str, str], keys: str = 'config.task', required: Collection[str] = ()
) -> Iterator[TextExample]:
    """Yields an example for each of one or more rows. The columns of the first row determine the form of all rows.

    Args:
      columns: {role of ROLES: name of the column}. Only forms whose roles are all in `columns` are read. Columns
        named after the column `negative`, such as negative_1, also contain negatives.
      keys: The prefix of the config keys that name the columns, for messages.
      required: The roles of OPTIONAL_COLUMNS whose column at least one row must have.

    Raises:
      UserError: A row is malformed, or no row has a required column (raised after the last row).
    """
    records = iter(records)
    first = next(records)
    form, missing = find_form(first, columns, keys), {*required}
    negative = re.compile(re.escape(columns['negative']) + r'(_\d+)?')
    for where, fields in itertools.chain([first], records):
        label = fields.get(columns.get('label'))
        if form == 'pairs' and label is not None:
            fix = 'give scores to all records or to none, or rename the column'
            raise UserError(where, f'scores in the column {columns["label"]}', 'none, as in the first record', fix)
        texts = [_text(fields, columns[role], where, keys) for role in FORMS[form] if role != 'label']
        negatives = [name for name in fields if negative.fullmatch(name)]
        if form in GROUPS:
            texts += [text for name in negatives for text in _negatives(fields[name], where, name, keys)]
        missing -= {role for role in missing if columns[role] in fields or (role == 'negative' and negatives)}
        score = _score(label, where) if form == 'scored' else None
        teacher = _teacher_scores(label, len(texts) - 1, where) if form == 'distilled' else ()
        yield TextExample(form, tuple(texts), score, where, teacher=teacher)
    for role in sorted(missing):
        found, expected = f'{columns[role]!r}, which no record has', f'a column such as {quote_names(first.fields)}'
        raise UserError(f'{keys}.{role}', found, expected, 'correct the name, or leave it out')


def find_form(record: Record, columns: Mapping[str, str], keys: str = 'config.task') -> str:
    """Returns the form of a row, a key of FORMS; raises a UserError if no form has all its columns in the row."""
    for form, roles in FORMS.items():
        if all(columns.get(role) in record.fields for role in roles):
            return form
    fix = f'name the columns, for example --{keys}.anchor=question'
    raise UserError(record.where, f'the columns {quote_names(record.fields)}', describe_forms(FORMS, columns), fix)


def describe_forms(forms: Collection[str], columns: Mapping[str, str]) -> str:
    """Returns the column names of `forms` for a message. The message omits 'distilled', which extends 'pairs'."""
    needed = [roles for form, roles in FORMS.items() if form in forms and form != 'distilled']
    return ', or '.join(' and '.join(map(columns.get, roles)) for roles in needed if columns.keys() >= {*roles})


def _text(fields: Mapping[str, Any], name: str, where: str, keys: str) -> str:
    text = convert_to_text(fields.get(name), f'{where}, field {name}', lists='refuse', key=keys)
    if not (text or '').strip():
        raise UserError(where, f'no text in the column {name}', 'a text', 'correct or remove the record')
    return text


def _negatives(value: Any, where: str, name: str, keys: str) -> list[str]:
    """Returns the texts in a value of a column of negatives, without blank texts.

    The value is a text or a list. In a table, a list is written as JSON.

    Raises:
      UserError: A cell has a list in another notation. pandas writes lists in Python's notation, or JSON in quotes.
    """
    if isinstance(value, str) and bare_suffix(where.rpartition(':')[0]) in ('.csv', '.tsv'):
        with contextlib.suppress(ValueError, RecursionError):
            cell = json.loads(value)
            if isinstance(cell, list) and all(isinstance(item, str) for item in cell):
                value = cell
        if isinstance(value, str) and _STRINGS.fullmatch(value):
            found, expected = f'the list {value[:40]} in the column {name}', 'a text, or a list such as ["a", "b"]'
            raise UserError(where, found, expected, 'write the records as JSON lines')
    values = value if isinstance(value, list) else [value]
    texts = (convert_to_text(item, f'{where}, field {name}', lists='refuse', key=keys) for item in values)
    return [text for text in texts if (text or '').strip()]


def _score(value: Any, where: str) -> float | None:
    text = convert_to_text(value, where, lists='refuse')
    if not (text or '').strip():
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(where, f'the score {text[:40]!r}', 'a finite number', 'correct the record')
    return score


def _teacher_scores(value: Any, count: int, where: str) -> tuple[float, ...]:
    if isinstance(value, str):  # the cell of a table
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    scores = [_score(item, where) for item in value] if isinstance(value, list) else []
    if len(scores) != count or None in scores:
        found = f'the scores {str(value)[:40]}'
        expected = f"a list of {count} numbers, a teacher's scores of the positive and each negative"
        raise UserError(where, found, expected, 'correct the record, or rename the column')
    return tuple(scores)


def pairs_as_queries(examples: Sequence[TextExample]) -> list[Query]:
    """Returns the anchors as queries over all positives and negatives. Equal anchors become one query."""
    corpus = dataclasses.replace(_make_corpus(text for each in examples for text in each.texts[1:]), from_pairs=True)
    index = {text: i for i, text in enumerate(corpus.texts)}
    relevant: dict[str, dict[int, int]] = {}
    candidates: dict[str, dict[int, None]] = {}
    for example in examples:
        anchor, *numbers = example.texts[0], *map(index.get, example.texts[1:])
        relevant.setdefault(anchor, {})[numbers[0]] = 1
        candidates.setdefault(anchor, {}).update(dict.fromkeys(numbers))
    grades = enumerate(relevant.items())
    return [Query(f'q{i}', anchor, found, corpus, tuple(candidates[anchor])) for i, (anchor, found) in grades]


def questions_as_queries(questions: Sequence[SquadQuestion]) -> list[Query]:
    """Returns the questions, except unanswerable ones, as queries over the paragraphs of all questions."""
    corpus = _make_corpus(question.context for question in questions)
    index = {text: i for i, text in enumerate(corpus.texts)}
    queries: dict[str, Query] = {}
    for question in questions:
        if question.answers != ():
            query = queries.setdefault(question.question, Query(question.id, question.question, {}, corpus))
            query.relevant[index[question.context]] = 1
    return list(queries.values())


def _make_corpus(texts: Iterable[str]) -> Corpus:
    """Makes a corpus of the distinct texts. Ids have leading zeros, because `make_ranking` sorts equal scores by id."""
    documents = list(dict.fromkeys(texts))
    width = len(str(len(documents) - 1))
    return Corpus([f'd{i:0{width}}' for i in range(len(documents))], documents)


def read_beir(folder: epath.Path, split: str) -> list[Query]:
    """Reads the judged queries of a split of a BEIR folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.

    The title of a document is put before its text. The layout comes from arXiv 2104.08663.

    Raises:
      UserError: A file is missing or malformed, or qrels names an unknown query or document.
    """
    documents = _entries(folder / 'corpus.jsonl', ('title', 'text'))
    texts = _entries(folder / 'queries.jsonl', ('text',))
    corpus = Corpus(list(documents), list(documents.values()))
    index = {name: i for i, name in enumerate(corpus.ids)}
    relevant: dict[str, dict[int, int]] = {}
    names = ('query-id', 'corpus-id', 'score')
    layout = TableLayout(tuple(Column((name,)) for name in names), headerless_columns=names)
    for where, fields in read_records([folder / 'qrels' / f'{split}.tsv'], layout=layout):
        query, document, score = (fields[name] for name in names)
        for name, ids, file in ((query, texts, 'queries.jsonl'), (document, index, 'corpus.jsonl')):
            if name not in ids:
                raise UserError(where, f'{name!r}, which {file} lacks', f'an _id of {file}', 'correct the file')
        if not re.fullmatch(r'-?\d+', score):
            raise UserError(where, f'the score {score[:40]!r}', 'an integer', 'correct the row')
        grades = relevant.setdefault(query, {})
        grades |= {index[document]: int(score)} if int(score) > 0 else {}
    return [Query(name, texts[name], grades, corpus) for name, grades in relevant.items()]


def _entries(path: epath.Path, names: Sequence[str]) -> dict[str, str]:
    """Returns {_id: text} for a BEIR file. A text joins the fields `names`, of which only the last must exist."""
    entries: dict[str, str] = {}
    for where, fields in read_records([path]):
        name = fields.get('_id')
        # White space separates the fields of .trec files.
        if not isinstance(name, str) or name.split() != [name] or name in entries:
            expected = 'a name without white space that no earlier row has'
            raise UserError(where, f'the _id {name!r}', expected, 'correct the row')
        if names[-1] not in fields:
            raise UserError(where, f'the fields {quote_names(fields)}', names[-1], 'correct the row')
        texts = (convert_to_text(fields.get(field), where, lists='refuse') for field in names)
        entries[name] = ' '.join(filter(None, texts))
    return entries
