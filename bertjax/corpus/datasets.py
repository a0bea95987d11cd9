"""Corpora that are not files of text: the documents every CPython carries, and tensorflow-datasets."""

import hashlib
import re
from collections.abc import Iterator

from bertjax.errors import UserError

_RULED = re.compile(r'[^\w\s]')


def _topics() -> dict[str, str]:
    from pydoc_data import topics

    return topics.topics


def pydoc_facts() -> tuple[int, str]:
    """Number of topics and a hash of their text: it differs between versions of Python."""
    topics = _topics()
    text = '\0'.join(f'{name}\0{topics[name]}' for name in sorted(topics))
    return len(topics), hashlib.sha256(text.encode('utf-8')).hexdigest()


def pydoc_documents() -> Iterator[tuple[str, list[str]]]:
    """(name, paragraphs) of each topic of Python's own help, sorted by name."""
    topics = _topics()
    for name in sorted(topics):
        yield name, pydoc_paragraphs(topics[name])


def pydoc_paragraphs(text: str) -> list[str]:
    """The prose of reStructuredText rendered as plain text.

    Wrapped lines are joined, bullets and emphasis marks removed; titles, rules, grammar, code and signatures, none of
    which is a sentence, are left out.
    """
    paragraphs = []
    for block in re.split(r'\n\s*\n', text):
        lines = [line.strip() for line in block.strip('\n').split('\n')]
        if not lines or '::=' in block or '>>>' in block or (len(lines) > 1 and _is_rule(lines[1])):
            continue
        joined = ' '.join(line for line in lines if line)
        # A word wrapped at its hyphen was cut there: "built-" "in".
        joined = re.sub(r'(?<=[a-z])- (?=[a-z])', '-', joined)
        joined = re.sub(r'^(?:\*|[0-9]+\.|\[[0-9]+\])\s+', '', joined)
        joined = re.sub(r'(?<!\w)(\*\*?)(?=\w)([^*]+?)\1(?!\w)', r'\2', joined)
        if _is_prose(joined):
            paragraphs.append(joined)
    return paragraphs


def _is_rule(line: str) -> bool:
    return len(line) >= 3 and len(set(line)) == 1 and bool(_RULED.match(line))


def _is_prose(text: str) -> bool:
    words = re.findall(r'[A-Za-z]{2,}', text)
    letters = sum(map(len, words))
    return len(words) >= 5 and letters >= 0.6 * len(text) and text.rstrip('")\'”’').endswith(('.', ':', '!', '?'))


_MARKER = re.compile(r'_START_(ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_')


def wiki40b_paragraphs(text: str) -> list[str]:
    """The paragraphs of a wiki40b text; the titles of articles and sections are left out, as BERT's paper did."""
    paragraphs, title = [], False
    at = 0
    for match in [*_MARKER.finditer(text), None]:
        piece = text[at : match.start() if match else len(text)].strip()
        if piece and not title:
            paragraphs.append(piece)
        if match:
            title = match[1] in ('ARTICLE', 'SECTION') if match[1] else title
            at = match.end()
    return paragraphs


def tfds_paragraphs(text: str) -> list[str]:
    """The paragraphs of one record: its lines, or wiki40b's."""
    if '_START_ARTICLE_' in text or '_START_PARAGRAPH_' in text:
        return wiki40b_paragraphs(text)
    return [line for line in text.splitlines() if line.strip()]


def _parse_tfds(spec: str) -> tuple[str, str, str | None]:
    """'tfds:NAME@split#feature' -> (NAME, split, feature or None)."""
    rest, _, feature = spec.removeprefix('tfds:').partition('#')
    name, _, split = rest.partition('@')
    if not name:
        raise UserError('config.corpus', repr(spec), 'tfds:NAME@split#feature', 'write for example tfds:wiki40b/en')
    return name, split or 'train', feature or None


def tfds_name(spec: str) -> str:
    """The specification without the path of a dataset that is given by its directory."""
    name, split, feature = _parse_tfds(spec)
    if name.startswith('/') or '://' in name:
        name = '/'.join(name.rstrip('/').split('/')[-2:])
    return f'tfds:{name}@{split}' + (f'#{feature}' if feature else '')


def _tfds_open(spec: str, text_key: str):
    """(data source, feature, builder) of a dataset that is prepared on this machine as array_record."""
    name, split, feature = _parse_tfds(spec)
    try:
        import tensorflow_datasets as tfds
        import tensorflow_datasets.text
    except ImportError as error:
        raise UserError(
            'config.corpus', f'{spec!r} without tensorflow-datasets ({error})', 'that package', 'pip install -e .'
        ) from error
    prepare = f"tfds.builder({name!r}, file_format='array_record').download_and_prepare()"
    try:
        if '/' in name and (name.startswith(('/', '.', '~')) or '://' in name):
            builder = tfds.builder_from_directory(name)
        else:
            builder = tfds.builder(name)
    except Exception as error:  # tfds raises a dozen kinds, some from the network.
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            'config.corpus', f'{spec!r}, which tfds cannot find ({line})', 'tfds:NAME or tfds:/its/directory',
            f'check the name, TFDS_DATA_DIR, or prepare it once with {prepare}',
        ) from error  # fmt: skip
    if split not in builder.info.splits:
        known = ', '.join(builder.info.splits)
        if not known:
            raise UserError('config.corpus', f'{spec!r}, not prepared', 'a prepared dataset', f'run once: {prepare}')
        raise UserError('config.corpus', f'no split {split!r} in {spec!r}', f'one of {known}', f'write tfds:{name}@…')
    features = builder.info.features
    names = sorted(features)
    feature = feature or (text_key if text_key in names else None)
    texts = [key for key in names if isinstance(features[key], tfds.features.Text)]
    if feature is None and len(texts) == 1:
        feature = texts[0]
    if feature not in names:
        mend = f'write tfds:{name}@{split}#FEATURE'
        raise UserError('config.corpus', f'no feature {feature or text_key!r} in {spec!r}', ', '.join(names), mend)
    try:
        return builder.as_data_source(split=split), feature, builder
    except Exception as error:
        raise UserError(
            'config.corpus', f'{spec!r} in the file format {builder.info.file_format.value!r}',
            'array_record, which can be read by index', f'prepare it once with {prepare}',
        ) from error  # fmt: skip


def tfds_facts(spec: str, text_key: str) -> tuple[int, str]:
    """Number of records, and what tells that the dataset changed."""
    source, feature, builder = _tfds_open(spec, text_key)
    sizes = [builder.info.splits[name].num_bytes for name in builder.info.splits]
    return len(source), f'{builder.info.full_name}#{feature}:{len(source)}:{sizes}'


def tfds_documents(spec: str, text_key: str, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(record number, UTF-8 text) of the records [begin, end)."""
    source, feature, _ = _tfds_open(spec, text_key)
    for index in range(begin, end):
        value = source[index][feature]
        yield index, value.encode('utf-8') if isinstance(value, str) else bytes(value)
