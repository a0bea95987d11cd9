"""What a user may choose about reading a corpus."""

import dataclasses

from bertjax.errors import UserError

FORMATS = ('auto', 'text', 'files', 'jsonl', 'wikiextractor')


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """How text is read and what the store keeps of it.

    Attributes:
      format: 'auto' looks at each file (WikiExtractor and JSON lines are recognised; else files named by path or glob
        are 'text' and files of a directory are 'files'); 'text' has blank lines between documents; 'files' has a
        document a file; 'jsonl' and 'wikiextractor' as the names say.
      text_key: the field of a JSON line, or the feature of a tfds dataset, that holds the text.
      strict: stop at the first broken input instead of dropping and counting the document.
      heldout: share of documents, by hash of their text, that training never sees.
      split_sentences: False when each line is a sentence already.
      drop_duplicates: keep only the first of equal training documents (held-out ones are always kept once).
      workers: processes; 0 is one a core. It changes no byte of the result.
    """

    format: str = 'auto'
    text_key: str = 'text'
    strict: bool = False
    heldout: float = 0.02
    split_sentences: bool = True
    drop_duplicates: bool = False
    workers: int = 0

    def __post_init__(self):
        if self.format not in FORMATS:
            raise UserError(
                'config.corpus_options.format', repr(self.format), f'one of {", ".join(FORMATS)}', 'choose one of them'
            )
        if not 0 <= self.heldout < 1:
            raise UserError(
                'config.corpus_options.heldout', repr(self.heldout), 'a share from 0 to below 1', 'set for example 0.02'
            )
        if self.workers < 0:
            raise UserError('config.corpus_options.workers', repr(self.workers), '0 (all cores) or more', 'set 0')

    def settings(self) -> dict:
        """The options that decide about the bytes of a store."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ('workers', 'strict')}
