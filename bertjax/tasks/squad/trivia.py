"""Converts TriviaQA (Joshi et al. 2017, arXiv 1705.03551) to the format of SQuAD by distant supervision.

The method comes from the BERT paper (arXiv 1810.04805, on SQuAD 1.1). The first 400 words of a document become a
paragraph if they contain an alias of the answer. The first occurrence of each alias counts as an answer, even if the
text around it does not answer the question.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import read_text
from bertjax.tasks.squad.questions import json_field, json_value, load_json

WORDS = 400  # the number of words at the start of a document that become a paragraph
# {field of a question that lists documents: folder of their texts}.
EVIDENCE = {'EntityPages': 'evidence/wikipedia', 'SearchResults': 'evidence/web'}
_FIX = 'give the folder of triviaqa-rc, with the original subfolders qa/ and evidence/'
_FORM = '{"Data": [{"Question", "QuestionId", "Answer": {"Value", "Aliases"}, "EntityPages", "SearchResults"}]}'


def read_questions(path: epath.Path) -> list[Any]:
    """Reads the questions of a file without checking them; see `convert_to_squad`."""
    root = load_json(read_text(path), str(path))
    data = root.get('Data') if isinstance(root, dict) else None
    if not isinstance(data, list) or not data:
        raise UserError(str(path), 'no list of questions in Data', _FORM, _FIX)
    return data


def convert_to_squad(
    folder: epath.Path, path: epath.Path, questions: Iterable[Any], counts: collections.Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields an entry of SQuAD's `data` for each question that has at least one paragraph.

    Each paragraph has the question, with the id QuestionId--Filename as in TriviaQA's converter
    (mandarjoshi90/triviaqa, utils/convert_to_squad_format.py). For the answers, see `find_aliases`.

    Args:
      folder: The folder that contains `evidence`.
      path: The path of the file of questions, for messages.
      counts: The counter to update: 'questions', questions 'answered' by a paragraph, 'documents' and 'paragraphs'.

    Raises:
      UserError: A question is malformed, or one of its documents does not exist.
    """
    for i, entry in enumerate(questions):
        at = f'{path}: Data[{i}]'
        paragraphs = list(_paragraphs(folder, entry, at, counts))
        counts['questions'] += 1
        counts['answered'] += bool(paragraphs)
        if paragraphs:
            yield {'title': entry['QuestionId'], 'paragraphs': paragraphs}


def _paragraphs(folder: epath.Path, entry: Any, at: str, counts: collections.Counter[str]) -> Iterator[dict[str, Any]]:
    name, question = _text(entry, at, 'QuestionId'), _text(entry, at, 'Question')
    answer = json_field(entry, at, 'Answer', dict)
    aliases = json_value(answer.get('Aliases', []), f'{at}.Answer.Aliases', list)
    texts = [json_value(alias, f'{at}.Answer.Aliases', str) for alias in aliases]
    pattern = alias_pattern([_text(answer, f'{at}.Answer', 'Value'), *texts])
    if not any(key in entry for key in EVIDENCE):
        raise UserError(at, 'no documents', ' or '.join(EVIDENCE), _FIX)
    for key, subfolder in EVIDENCE.items():
        for j, page in enumerate(json_value(entry.get(key, []), f'{at}.{key}', list)):
            location = f'{at}.{key}[{j}]'
            file = _text(page, location, 'Filename')
            document = folder / subfolder / file
            if not document.is_file():
                raise UserError(f'{location}.Filename', f'no file {document}', 'the text of the document', _FIX)
            counts['documents'] += 1
            context = first_words(read_text(document))
            answers = find_aliases(context, pattern)
            if answers:
                counts['paragraphs'] += 1
                yield {'context': context, 'qas': [{'id': f'{name}--{file}', 'question': question, 'answers': answers}]}


def first_words(text: str, count: int = WORDS) -> str:
    """Returns the first `count` words of a text, with the white space between them."""
    words = list(itertools.islice(re.finditer(r'\S+', text), count))
    return text[words[0].start() : words[-1].end()] if words else ''


def alias_pattern(aliases: Sequence[str]) -> re.Pattern:
    """Compiles a pattern that matches any alias as whole words, and ignores case. Longer aliases have priority."""
    texts = sorted({' '.join(alias.split()) for alias in aliases} - {''}, key=lambda alias: (-len(alias), alias))
    patterns = (r'\s+'.join(map(re.escape, alias.split())) for alias in texts)
    return re.compile(rf'(?<!\w)(?:{"|".join(patterns)})(?!\w)', re.IGNORECASE)


def find_aliases(context: str, pattern: re.Pattern) -> list[dict[str, Any]]:
    """Returns `answers` in SQuAD's format: the first occurrence of each distinct match, in the order of the text."""
    starts: dict[str, int] = {}
    for match in pattern.finditer(context):
        starts.setdefault(match[0], match.start())
    return [{'text': text, 'answer_start': start} for text, start in starts.items()]


def _text(entry: Any, at: str, name: str) -> str:
    value = json_field(entry, at, name, str)
    if not value.strip():
        raise UserError(f'{at}.{name}', repr(value), f'a text, in {_FORM}', _FIX)
    return value
