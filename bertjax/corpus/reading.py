"""A unit from its first byte to its record: events of the readers to the writer. Runs in a worker process."""

import hashlib
import pathlib
from collections.abc import Callable, Sequence

from bertjax.corpus import layouts, readers
from bertjax.corpus.unit import UnitWriter
from bertjax.errors import UserError
from bertjax.text.tokenizer import Tokenizer

_EXPECTED = {
    'invalid UTF-8': ('UTF-8 text', 'convert the file, for example with: iconv -f LATIN1 -t UTF-8'),
    'NUL byte': ('text without zero bytes', 'remove them, for example with: tr -d "\\000"'),
    'damaged file': ('a whole, readable file', 'fetch or compress it again'),
    'unreadable file': ('a readable file', 'check that it is there, and its rights'),
    'empty file': ('text', 'remove the file'),
    'wrong JSON': ('a JSON object a line', 'mend the line or remove it'),
    'missing text field': ('a string in the text field', 'name the field with config.corpus_options.text_key'),
    'unclosed <doc>': ('</doc> after each <doc …>', 'extract the dump again'),
    'text outside <doc>': ('<doc …> before each text', 'extract the dump again, or set the format'),
    'line too long': ('shorter lines of JSON', 'split the document'),
}


def problem_error(path: str, broken: layouts.Broken) -> UserError:
    """The error that strict reading stops with."""
    expected, mend = _EXPECTED[broken.kind]
    where = f'{path}:{broken.line}' if broken.line else path
    return UserError(
        where,
        f'{broken.kind} ({broken.detail})',
        expected,
        f'{mend}; or set config.corpus_options.strict=False to drop it',
    )


def run_unit(
    directory: pathlib.Path,
    unit: int,
    parts: Sequence[readers.Part],
    tokenizer: Tokenizer,
    settings: dict,
    strict: bool,
    progress: Callable[[int, int], None],
) -> dict:
    """Reads the parts of a unit and writes its files.

    Args:
      directory: the store's.
      unit: its number.
      parts: what to read.
      tokenizer: text to ids.
      settings: `CorpusOptions.settings()`.
      strict: raise at the first broken input.
      progress: told (documents, bytes as stored) since the last call.

    Returns:
      The unit's record.

    Raises:
      UserError: broken input, when strict.
    """
    writer = UnitWriter(directory, unit, tokenizer, heldout=settings['heldout'], split=settings['split_sentences'])
    inputs = []
    for part in parts:
        digest = hashlib.blake2b(digest_size=16)
        documents = 0
        events = readers.read_events(
            part, text_key=settings['text_key'], progress=lambda count: progress(0, count), digest=digest
        )
        for event in events:
            if type(event) is str:
                writer.paragraph(event)
            elif event is layouts.END:
                writer.end()
                documents += 1
                if documents % 256 == 0:
                    progress(256, 0)
            elif type(event) is layouts.Start:
                writer.start()
            else:
                if strict:
                    raise problem_error(part.path, event)
                writer.broken(f'{part.name}:{event.line}' if event.line else part.name, event)
        progress(documents % 256, 0)
        inputs.append([part.name, part.begin, part.end, part.of, part.stride, digest.hexdigest()])
    return writer.close(inputs)
