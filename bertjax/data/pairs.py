"""What a pairing plan is: how sentences become examples, and the record of one pass. `walking.py` makes the passes."""

import dataclasses
from typing import Protocol

import numpy as np

from bertjax.config.ranges import number, one_of, whole
from bertjax.config.schema import Change, check_fields, key
from bertjax.data.hashing import Stream, below, uniform
from bertjax.errors import UserError

MODES = ('nsp', 'sop', 'full_sentences', 'doc_sentences')


# Pairs: `start` is a sentence, `a` and `b` count sentences; b is 0 where B is drawn from another document (nsp) or
# where there is none (sop). Sentences without pairs: `start` is a token, `a` counts tokens, `b` the documents they lie
# in.
CHUNK = np.dtype([('start', '<i8'), ('a', '<i4'), ('b', '<i4')])


class TokenSplit(Protocol):
    """What is needed of one side of a token store. Offsets may be memory-mapped; no sentence or document is empty."""

    num_documents: int
    num_sentences: int
    num_tokens: int
    sentence_offsets: np.ndarray  # int64 [N + 1], tokens
    document_offsets: np.ndarray  # int64 [D + 1], sentences
    segments: np.ndarray | None  # uint8 [N], given segment types; None: A and B
    sha: str

    def tokens(self, start: int, length: int) -> np.ndarray:
        """The ids of tokens start..start+length-1, which lie in one document."""


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """How sentences become examples.

    Attributes:
      mode: 'nsp', BERT's pairs, next or random; 'sop', ALBERT's (arXiv 1909.11942): B follows A, and half of the time
        they are swapped; 'full_sentences' and 'doc_sentences', RoBERTa's (arXiv 1907.11692 section 4.2): one segment of
        contiguous sentences, across documents (with a separator between) or not, and no objective on pairs.
      plans: how many different walks over the corpus before the first is used again in another order. With static masks
        it is Google's `dupe_factor`.
      short_probability: share of documents (pairs only) with a target length uniform in 2..S-3 in place of S-3.
      balanced: for 'nsp': make half of *all* examples IsNext. Google's rules toss a fair coin only where a chunk has
        two sentences or more, and a chunk of one (about 10 % on Wikipedia at S=128) is always NotNext, so the published
        models saw 45 % IsNext. Off by default: it is the published recipe, and NSP losses and accuracies stay
        comparable with it; the class weights of a head that fine-tuning throws away are no reason to differ. Either
        share is reported.
    """

    mode: str = key('nsp', one_of(MODES), change=Change.STATE)
    # All are made before the first step.
    plans: int = key(10, whole(1, 10_000), 'passes over the text that differ, before they repeat', key='pair_plans')
    short_probability: float = key(0.1, number(0, 1))
    balanced: bool = False

    def __post_init__(self):
        check_fields(self, 'pairs')
        if self.balanced and self.mode != 'nsp':
            raise UserError(
                'config.pairs.balanced',
                f'True with mode {self.mode!r}',
                "mode 'nsp'",
                'leave it False: there is no NotNext here',
            )

    @property
    def paired(self) -> bool:
        """Whether an example has two segments."""
        return self.mode in ('nsp', 'sop')


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """One pass over a split.

    Attributes:
      chunks: `CHUNK` array, one an example, in corpus order.
      one_sentence: how many of them hold a single sentence; 0 without pairs.
      next_probability: the chance of IsNext that the others had.
    """

    chunks: np.ndarray
    one_sentence: int
    next_probability: float


def check_split(split: TokenSplit, options: PairOptions, seq_len: int) -> None:
    """Raises UserError when no examples of `seq_len` tokens can be made of the split in this mode."""
    smallest = 5 if options.paired else 3
    if seq_len < smallest:
        raise UserError('config.seq_len', str(seq_len), f'at least {smallest}', 'use 128')
    if split.num_tokens == 0:
        raise UserError('config.corpus', 'no text', 'at least one document', 'give more text')
    if options.mode == 'nsp' and split.num_documents < 2:
        raise UserError(
            'config.corpus',
            'one document on a side of the corpus, training or held out',
            'two or more, for next-sentence pairs take B from another document',
            'separate documents by blank lines, hold out a larger share, '
            "or set config.pairs.mode to 'sop' or 'doc_sentences'",
        )


def target_lengths(document: np.ndarray, options: PairOptions, seq_len: int, seed: int, plan: np.ndarray) -> np.ndarray:
    """Tokens that a chunk of each document aims at, int64: S - 3 (less [CLS] and two [SEP]), or at times fewer.

    Args:
      document, plan: integers that broadcast: document numbers and plan numbers.
    """
    most = seq_len - 3
    short = uniform(seed, Stream.SHORT, plan, document) < options.short_probability
    return np.where(short, 2 + below(most - 1, seed, Stream.TARGET, plan, document), most)
