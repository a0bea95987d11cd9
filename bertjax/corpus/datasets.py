"""Reads corpora that are not text files: Python's help topics (pydoc) and tensorflow-datasets (tfds)."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.files.streams import Broken, decode
from bertjax.files.tfds import Dataset

_WHERE = 'config.corpus'
_PUNCTUATION = re.compile(r'[^\w\s]')


def _topics() -> dict[str, str]:
    from pydoc_data import topics

    return topics.topics


def pydoc_paragraphs(text: str) -> list[str]:
    """Extracts the prose of a help topic.

    Joins wrapped lines, removes bullets and emphasis marks, and drops titles, grammar, code and signatures.
    """
    paragraphs = []
    for block in re.split(r'\n\s*\n', text):
        lines = [line.strip() for line in block.strip('\n').split('\n')]
        if not lines or '::=' in block or '>>>' in block or (len(lines) > 1 and _is_rule(lines[1])):
            continue
        joined = ' '.join(line for line in lines if line)
        # Join a word that was wrapped at its hyphen: "built-" "in".
        joined = re.sub(r'(?<=[a-z])- (?=[a-z])', '-', joined)
        joined = re.sub(r'^(?:\*|[0-9]+\.|\[[0-9]+\])\s+', '', joined)
        joined = re.sub(r'(?<!\w)(\*\*?)(?=\w)([^*]+?)\1(?!\w)', r'\2', joined)
        if _is_prose(joined):
            paragraphs.append(joined)
    return paragraphs


def _is_rule(line: str) -> bool:
    return len(line) >= 3 and len(set(line)) == 1 and bool(_PUNCTUATION.match(line))


def _is_prose(text: str) -> bool:
    words = re.findall(r'[A-Za-z]{2,}', text)
    letters = sum(map(len, words))
    return len(words) >= 5 and letters >= 0.6 * len(text) and text.rstrip('")\'”’').endswith(('.', ':', '!', '?'))


_MARKER = re.compile(r'_START_(ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_')


def wiki40b_paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of a wiki40b text, without the titles of articles and sections, which BERT also omits."""
    first, *rest = _MARKER.split(text)
    paragraphs, title = [first], False
    for kind, piece in zip(rest[::2], rest[1::2], strict=True):
        title = kind in ('ARTICLE', 'SECTION') if kind else title
        if not title:
            paragraphs.append(piece)
    return [paragraph.strip() for paragraph in paragraphs if paragraph.strip()]


def tfds_paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of one record: its lines, or the texts between the markers of wiki40b."""
    if '_START_ARTICLE_' in text or '_START_PARAGRAPH_' in text:
        return wiki40b_paragraphs(text)
    return [line for line in text.splitlines() if line.strip()]


def _parse_tfds(spec: str) -> tuple[str, str, str | None]:
    """Parses 'tfds:NAME@split#feature' into (NAME, split, feature or None)."""
    rest, _, feature = spec.removeprefix('tfds:').partition('#')
    name, _, split = rest.partition('@')
    if not name:
        raise UserError(_WHERE, repr(spec), 'tfds:NAME@split#feature', 'write for example tfds:wiki40b/en')
    return name, split or 'train', feature or None


def _tfds_open(spec: str, text_key: str) -> tuple[Sequence[dict[str, Any]], str, Any]:
    """Opens a dataset and returns (records, name of the text feature, `tfds.core.DatasetBuilder`)."""
    name, split, feature = _parse_tfds(spec)
    dataset = Dataset(name, where=_WHERE, value=spec, expected='tfds:NAME or tfds:/PATH')
    records = dataset.split(split)
    names, strings = dataset.builder.info.features, dataset.string_features()
    texts = [text for text, is_text in strings.items() if is_text]
    feature = feature or (texts[0] if text_key not in names and len(texts) == 1 else text_key)
    if feature not in strings:
        found, expected = f'no feature {feature!r} with one string in {spec!r}', ', '.join(strings) or 'a text'
        raise UserError(_WHERE, found, expected, f'write tfds:{name}@{split}#FEATURE')
    return records, feature, dataset.builder


def dataset_facts(spec: str, text_key: str) -> tuple[str, int, str]:
    """Returns the name of a dataset in reports, the number of its records, and a string that identifies its version.

    `spec` is 'pydoc:', whose text depends on the version of Python, or 'tfds:NAME@split#feature'. The returned name of
    a tfds dataset always contains the split, and only the last two components of a NAME that is a path.
    """
    if spec == 'pydoc:':
        topics = sorted(_topics().items())
        text = '\0'.join(f'{name}\0{text}' for name, text in topics)
        return spec, len(topics), hashlib.sha256(text.encode('utf-8')).hexdigest()
    source, text_feature, builder = _tfds_open(spec, text_key)
    sizes = [builder.info.splits[name].num_bytes for name in builder.info.splits]
    version = f'{builder.info.full_name}#{text_feature}:{len(source)}:{sizes}'
    name, split, feature = _parse_tfds(spec)
    name = '/'.join(name.rstrip('/').split('/')[-2:])  # the name and config of a dataset, or the end of a path
    return f'tfds:{name}@{split}' + (f'#{feature}' if feature else ''), len(source), version


def dataset_documents(spec: str, text_key: str, begin: int, end: int) -> Iterator[list[str | Broken]]:
    """Yields the paragraphs, or [`Broken`], of each record in [begin, end). The topics of 'pydoc:' are sorted."""
    if spec == 'pydoc:':
        yield from (pydoc_paragraphs(text) for _, text in sorted(_topics().items())[begin:end])
        return
    source, feature, _ = _tfds_open(spec, text_key)
    for index in range(begin, end):
        value = source[index][feature]
        text = decode(value.encode('utf-8') if isinstance(value, str) else bytes(value), index)
        yield [text] if isinstance(text, Broken) else tfds_paragraphs(text)
