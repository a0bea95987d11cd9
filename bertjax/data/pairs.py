"""Pairing plans: which sentences make which example, walked over sentence lengths only.

The rules are those of google-research/bert, `create_pretraining_data.py:create_instances_from_document`. A document is
cut into chunks of whole sentences that reach the document's target length; a chunk is split at random into A and the
rest; half of the time the rest is B, else B comes from another document and the rest is put back, to begin the next
chunk. How many chunks a pass holds therefore depends on its coins, so a pass is walked ahead and kept as a `Plan`.

A chunk is fixed by the sentence it begins with, since each coin is a hash of (seed, plan, that sentence). So the walk
is: compute for *every* sentence, in a few array operations, the chunk that would begin there and where the next would
begin, then follow the links from each document's first sentence.
"""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from bertjax.data.hashing import Stream, below, uniform
from bertjax.errors import UserError

MODES = ('nsp', 'sop', 'full_sentences', 'doc_sentences')

# Pairs: `start` is a sentence, `a` and `b` count sentences; b is 0 where B is drawn from another document (nsp) or
# where there is none (sop). Sentences without pairs: `start` is a token, `a` counts tokens, `b` the documents they lie
# in.
CHUNK = np.dtype([('start', '<i8'), ('a', '<i4'), ('b', '<i4')])

# Sentences held in memory at a time; whole documents, so a longer one is held whole.
_BLOCK = 1 << 20


class Split(Protocol):
    """What is needed of one side of a token store. Offsets may be memory-mapped; no sentence or document is empty."""

    num_documents: int
    num_sentences: int
    num_tokens: int
    sentence_offsets: np.ndarray  # int64 [N + 1], tokens
    document_offsets: np.ndarray  # int64 [D + 1], sentences
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

    mode: str = 'nsp'
    plans: int = 10
    short_probability: float = 0.1
    balanced: bool = False

    def __post_init__(self):
        if self.mode not in MODES:
            raise UserError('config.pairs.mode', repr(self.mode), f'one of {", ".join(MODES)}', 'choose one of them')
        if self.plans < 1:
            raise UserError('config.pairs.plans', str(self.plans), 'at least 1', 'set it to 10, as BERT did')
        if not 0 <= self.short_probability <= 1:
            raise UserError(
                'config.pairs.short_probability',
                str(self.short_probability),
                'a share from 0 to 1',
                'set it to 0.1, as BERT did',
            )
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
class Plan:
    """One pass over a split.

    Attributes:
      chunks: `CHUNK` array, one an example, in corpus order.
      one_sentence: how many of them hold a single sentence; 0 without pairs.
      next_probability: the chance of IsNext that the others had.
    """

    chunks: np.ndarray
    one_sentence: int
    next_probability: float


def check_split(split: Split, options: PairOptions, seq_len: int) -> None:
    """Raises UserError when no examples of `seq_len` tokens can be made of the split in this mode."""
    smallest = 5 if options.paired else 3
    if seq_len < smallest:
        raise UserError('config.phases.seq_len', str(seq_len), f'at least {smallest}', 'use 128')
    if split.num_tokens == 0:
        raise UserError('config.corpus', 'no text', 'at least one document', 'give more text')
    if options.mode == 'nsp' and split.num_documents < 2:
        raise UserError(
            'config.corpus',
            'one document',
            'two or more, for next-sentence pairs take B from another document',
            "separate documents by blank lines, or set config.pairs.mode to 'sop' or 'doc_sentences'",
        )


def target_lengths(document: np.ndarray, options: PairOptions, seq_len: int, seed: int, plan: np.ndarray) -> np.ndarray:
    """Tokens that a chunk of each document aims at, int64: S - 3 (less [CLS] and two [SEP]), or at times fewer.

    Args:
      document, plan: integers that broadcast: document numbers and plan numbers.
    """
    most = seq_len - 3
    short = uniform(seed, Stream.SHORT, plan, document) < options.short_probability
    return np.where(short, 2 + below(most - 1, seed, Stream.TARGET, plan, document), most)


def walk(
    split: Split,
    options: PairOptions,
    seq_len: int,
    seed: int,
    plan: int,
    next_probability: float = 0.5,
    block: int = _BLOCK,
) -> Plan:
    """Walks one plan. It depends on the arguments alone (`block`, sentences in memory at a time, changes nothing)."""
    walker = _walk_pairs if options.paired else _walk_sentences
    parts, one_sentence = [], 0
    for chunks, single in walker(split, options, seq_len, seed, plan, next_probability, block):
        parts.append(chunks)
        one_sentence += single
    return Plan(np.concatenate(parts), one_sentence, next_probability)


def calibrate(split: Split, options: PairOptions, seq_len: int, seed: int) -> float:
    """The chance of IsNext, where a chunk has two sentences or more, that makes half of the whole stream IsNext.

    The share of one-sentence chunks depends on it (sentences put back make chunks), so the walk of plan 0 is repeated
    until it agrees with itself. With more than half one-sentence chunks it is 1, and the report shows what is left.
    """
    if not options.balanced:
        return 0.5
    probability = 0.5
    for _ in range(8):
        chunks = walk(split, options, seq_len, seed, 0, probability).chunks
        share = np.count_nonzero(chunks['b']) / len(chunks)
        if abs(share - 0.5) < 5e-4 or share == 0:
            break
        probability = min(1.0, probability * 0.5 / share)
    return probability


def _follow(successors: np.ndarray) -> np.ndarray:
    """The indices met from 0 on, each the successor of the one before, until they leave the array."""
    links, met, i = successors.tolist(), [], 0
    while i < len(links):
        met.append(i)
        i = links[i]
    return np.array(met, np.int64)


def _document_blocks(split: Split, block: int) -> Iterator[tuple[int, int]]:
    """Ranges of documents of about `block` sentences."""
    first = 0
    while first < split.num_documents:
        end = int(np.searchsorted(split.document_offsets, int(split.document_offsets[first]) + block, 'right')) - 1
        end = min(max(end, first + 1), split.num_documents)
        yield first, end
        first = end


def _walk_pairs(split, options, seq_len, seed, plan, next_probability, block) -> Iterator[tuple[np.ndarray, int]]:
    for first_document, end_document in _document_blocks(split, block):
        documents = np.asarray(split.document_offsets[first_document : end_document + 1])
        base = int(documents[0])
        offsets = np.asarray(split.sentence_offsets[base : int(documents[-1]) + 1])
        sizes = np.diff(documents)
        numbers = np.arange(first_document, end_document)
        target = np.repeat(target_lengths(numbers, options, seq_len, seed, np.int64(plan)), sizes)
        document_end = np.repeat(documents[1:] - base, sizes)
        sentence = np.arange(base, int(documents[-1]))
        here = sentence - base
        end = np.minimum(np.searchsorted(offsets, offsets[:-1] + target), document_end)
        size = end - here
        # Google's a_end: uniform in 1..size-1, so that both sides have a sentence.
        a = np.where(size > 1, 1 + below(np.maximum(size - 1, 1), seed, Stream.SPLIT, plan, sentence), 1)
        if options.mode == 'nsp':
            is_next = (size > 1) & (uniform(seed, Stream.NEXT, plan, sentence) < next_probability)
            met = _follow(np.where(is_next, end, here + a))
            b = np.where(is_next, size - a, 0)
        else:
            met = _follow(end)
            b = size - a
        chunks = np.empty(len(met), CHUNK)
        chunks['start'], chunks['a'], chunks['b'] = met + base, a[met], b[met]
        yield chunks, int(np.count_nonzero(size[met] == 1))


def _walk_sentences(split, options, seq_len, seed, plan, next_probability, block) -> Iterator[tuple[np.ndarray, int]]:
    """Rows of contiguous sentences, [CLS] ... [SEP].

    A sentence longer than a row is cut into pieces of a full row, the last shorter, so that no token is lost. The first
    row (of the corpus, or of each document that one row cannot hold) has a random capacity, so that rows break
    elsewhere in every plan.
    """
    del next_probability
    capacity, crossing = seq_len - 2, options.mode == 'full_sentences'
    carried = 0  # the token at which the row begins that the block before could not finish
    for first_document, end_document in _document_blocks(split, block):
        last_block = end_document == split.num_documents
        token_offsets = np.asarray(split.sentence_offsets)
        if crossing:
            first_sentence = int(np.searchsorted(token_offsets, carried, 'right')) - 1
            first_document = int(np.searchsorted(split.document_offsets, first_sentence, 'right')) - 1
        documents = np.asarray(split.document_offsets[first_document : end_document + 1])
        offsets = token_offsets[int(documents[0]) : int(documents[-1]) + 1]
        # Pieces: sentences, long ones cut. `begin` and `stop` are token offsets of each.
        pieces = -(-np.diff(offsets) // capacity)
        ordinal = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin = np.repeat(offsets[:-1], pieces) + ordinal * capacity
        stop = np.minimum(begin + capacity, np.repeat(offsets[1:], pieces))
        piece_sums = np.concatenate([[0], np.cumsum(pieces)])
        document_pieces = piece_sums[documents - documents[0]]
        document = np.repeat(np.arange(first_document, end_document), np.diff(document_pieces))
        room = np.full(len(begin), capacity)
        here = np.arange(len(begin))
        if crossing:
            # One place in the row for each separator between documents.
            end = np.searchsorted(stop + document, begin + document + room, 'right')
        else:
            heads = document_pieces[:-1]
            long = stop[document_pieces[1:] - 1] - begin[heads] > capacity
            numbers = np.arange(first_document, end_document)
            room[heads[long]] = 1 + below(capacity, seed, Stream.FIRST, plan, numbers[long])
            end = np.searchsorted(stop, begin + room, 'right')
            end = np.minimum(end, np.repeat(document_pieces[1:], np.diff(document_pieces)))
        end = np.maximum(end, here + 1)
        origin = int(np.searchsorted(begin, carried)) if crossing else 0
        if crossing and carried == 0:
            first = int(1 + below(capacity, seed, Stream.FIRST, plan))
            end[0] = max(1, int(np.searchsorted(stop + document, begin[0] + document[0] + first, 'right')))
        met = origin + _follow(end[origin:] - origin)
        if crossing and not last_block:
            met = met[end[met] < len(begin)]
            carried = int(begin[end[met[-1]]]) if len(met) else carried
        chunks = np.empty(len(met), CHUNK)
        chunks['start'] = begin[met]
        chunks['a'] = stop[end[met] - 1] - begin[met]
        chunks['b'] = document[end[met] - 1] - document[met] + 1
        yield chunks, 0
