"""Pairing plans, and the options for making examples from sentences. A plan has the chunks of a pass over a corpus."""

import dataclasses

import numpy as np

from bertjax.config.ranges import integer, number, one_of
from bertjax.config.schema import Change, check_fields, key
from bertjax.corpus.store import StoreSplit
from bertjax.data.hashing import Stream, randint, uniform
from bertjax.errors import UserError

MODES = ('nsp', 'sop', 'full_sentences', 'doc_sentences', 'sentences', 'full_rows')


# With pairs, `start` is the index of the first sentence; `a` and `b` are the numbers of sentences in A and B. If B is
# drawn from another document (nsp) or absent (sop), `b` is 0. Without pairs, `start` is the index of the first token,
# `a` is the number of tokens, and `b` is the number of documents that these tokens span.
CHUNK = np.dtype([('start', '<i8'), ('a', '<i4'), ('b', '<i4')])


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """The options for making examples from sentences.

    Attributes:
      mode: The kind of example. 'nsp' makes BERT's pairs: B is the next text or a random text. 'sop' makes ALBERT's
        pairs (arXiv 1909.11942): B follows A, and half of the pairs are swapped. 'full_sentences' and 'doc_sentences'
        make RoBERTa's contiguous sentences (arXiv 1907.11692 section 4.2), across documents or within one document.
        'sentences' makes one example of each sentence, and all its plans are the same. 'full_rows' makes full rows of
        contiguous text, which also break within sentences.
      plans: The number of different passes over the corpus. After the last pass, the passes are repeated, and their
        examples are shuffled differently. With static masks this number is Google's `dupe_factor`.
      short_probability: For pairs, the share of documents whose target length is drawn uniformly from 2 to S - 3. The
        target length of the other documents is S - 3. S is the number of positions per sequence.
      balanced: For 'nsp', whether half of all examples are IsNext. If False, half of the chunks of two or more
        sentences are IsNext, and a chunk of one sentence is never IsNext, as in Google's code.
    """

    mode: str = key('nsp', one_of(MODES), change=Change.STATE)
    plans: int = key(
        10, integer(1, 10_000), 'the number of different passes; later passes repeat them', key='pair_plans'
    )
    short_probability: float = key(0.1, number(0, 1), used_with=('mode', 'nsp', 'sop'))
    balanced: bool = False

    def __post_init__(self):
        check_fields(self, 'pairs')
        if self.balanced and self.mode != 'nsp':
            fix = 'leave it False: this mode has no NotNext'
            raise UserError('config.pairs.balanced', f'True with mode {self.mode!r}', "mode 'nsp'", fix)

    @property
    def paired(self) -> bool:
        """Whether an example has two segments."""
        return self.mode in ('nsp', 'sop')

    @property
    def distinct_plans(self) -> int:
        """The number of plans that differ."""
        return 1 if self.mode == 'sentences' else self.plans


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """One pass over a split.

    Attributes:
      chunks: The chunks, an array of dtype `CHUNK` with an element for each example, in corpus order.
      one_sentence: The number of chunks with a single sentence; 0 without pairs.
      next_probability: The probability of IsNext for chunks of several sentences; used only in mode 'nsp'.
    """

    chunks: np.ndarray
    one_sentence: int
    next_probability: float


def check_split(split: StoreSplit, options: PairOptions, seq_len: int) -> None:
    """Checks that examples of `seq_len` tokens can be made from the split in the mode of `options`.

    Raises:
      UserError: `seq_len` is too short, or the split has too little text.
    """
    smallest = 5 if options.paired else 3
    if seq_len < smallest:
        raise UserError('config.seq_len', str(seq_len), f'at least {smallest}', 'use 128')
    if split.num_tokens == 0:
        raise UserError('config.corpus', 'no text', 'at least one document', 'give more text')
    if options.mode == 'nsp' and split.num_documents < 2:
        raise UserError(
            'config.corpus',
            'only one document in the training text or in the held-out text',
            'two or more, because next-sentence pairs take B from another document',
            'separate documents by blank lines, hold out a larger share, '
            "or set config.pairs.mode to 'sop' or 'doc_sentences'",
        )


def draw_target_lengths(
    document: np.ndarray, options: PairOptions, seq_len: int, seed: int, plan: np.ndarray
) -> np.ndarray:
    """Draws the target length of the chunks of each document, in tokens, int64.

    The length is S - 3, which leaves room for [CLS] and two [SEP]. With probability `options.short_probability`, it is
    instead drawn uniformly from 2 to S - 3. `document` and `plan` are int64 numbers that broadcast.
    """
    max_length = seq_len - 3
    short = uniform(seed, Stream.SHORT, plan, document) < options.short_probability
    return np.where(short, 2 + randint(max_length - 1, seed, Stream.TARGET, plan, document), max_length)
