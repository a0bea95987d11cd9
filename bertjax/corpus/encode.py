"""Encodes the text of one shard to token ids on disk. Worker processes import this module, so it never imports JAX."""

import pathlib
from collections.abc import Callable, Sequence

from bertjax.corpus.formats import Document, read_events
from bertjax.corpus.identity import new_digest
from bertjax.corpus.quality import broken_error
from bertjax.corpus.sequences import SequenceSentence
from bertjax.corpus.shard_writer import ShardWriter
from bertjax.corpus.sources import TextPart
from bertjax.text.tokenizer import Tokenizer


def encode_shard(
    directory: pathlib.Path,
    shard: int,
    parts: Sequence[TextPart],
    tokenizer: Tokenizer,
    settings: dict,
    strict: bool,
    progress: Callable[[int, int], None],
) -> dict:
    """Encodes one shard and writes its files.

    Args:
      directory: The directory of the store.
      shard: The number of the shard.
      parts: The parts of the corpus that the shard reads, in order.
      tokenizer: The tokenizer.
      settings: The result of `CorpusOptions.settings`.
      strict: Whether to raise an error at the first broken input.
      progress: A function that is called with a number of new documents, and a number of new bytes (before
        decompression) or records.

    Returns:
      The record of the shard; see `shard_writer`.

    Raises:
      UserError: The input is broken (if strict), or a sentence is invalid (see `sequences.encode_sentence`).
    """
    writer, inputs = ShardWriter(directory, shard, tokenizer, settings, strict), []
    for part in parts:
        digest = new_digest()
        documents = 0
        events = read_events(
            part,
            text_key=settings['text_key'],
            progress=lambda count: progress(0, count),
            digest=digest,
            segments=settings.get('segments', 0) > 0,
        )
        for event in events:
            if type(event) is str:
                writer.add_paragraph(event)
            elif type(event) is SequenceSentence:
                writer.add_sentence(event, f'{part.path}:{event.line}')
            elif event is Document.START:
                writer.start()
            elif event is Document.END:
                writer.end()
                documents += 1
                if documents % 256 == 0:
                    progress(256, 0)
            elif strict:
                raise broken_error(part.path, event)
            else:
                writer.add_broken(f'{part.name}:{event.line}' if event.line else part.name, event)
        progress(documents % 256, 0)
        inputs.append([part.name, part.begin, part.end, part.of, part.stride, digest.hexdigest()])
    return writer.close(inputs)
