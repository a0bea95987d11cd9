"""Divides the sentences of a corpus into the examples of a pairing plan. Only the sentence lengths are read.

The rules for pairs come from google-research/bert, `create_pretraining_data.py:create_instances_from_document`. A
document is cut into chunks of whole sentences that reach the document's target length. A chunk is split at random into
A and the rest. By default, the rest is B half of the time. Otherwise B comes from another document, and the rest begins
the next chunk. The number of chunks depends on these draws, so each plan is made in advance and stored as a `PairPlan`.

In a plan, a chunk depends only on its first sentence, because each draw is a hash of the seed, the plan, and this
sentence or its document. The walk first computes, for *every* sentence, the chunk that would begin there and the start
of the next chunk. This takes a few array operations. Then the walk follows the links from chunk to chunk, starting at
the first sentence.
"""

from collections.abc import Iterator

import numpy as np

from bertjax.corpus.store import StoreSplit
from bertjax.data.batch import ordinals
from bertjax.data.hashing import Stream, randint, uniform
from bertjax.data.pairs import CHUNK, PairOptions, PairPlan, draw_target_lengths

# `walk` processes ranges of documents with at most this many sentences in all, or a longer document by itself. For a
# given probability of IsNext, this number does not change the plan. `calibrate` walks at least this many sentences in
# each try, or all plans.
_BLOCK = 1 << 20


def walk(
    split: StoreSplit, options: PairOptions, seq_len: int, seed: int, plan: int, next_probability: float = 0.5
) -> PairPlan:
    """Makes plan number `plan` of a split. `next_probability` is that of IsNext; see `calibrate`."""
    if options.mode == 'full_rows':
        return PairPlan(_walk_full_rows(split, seq_len, seed, plan), 0, next_probability)
    if not options.paired:
        parts = [*_walk_sentences(split, options, seq_len, seed, plan)]
        return PairPlan(np.concatenate(parts), 0, next_probability)
    parts, single = zip(*_walk_pairs(split, options, seq_len, seed, plan, next_probability), strict=True)
    return PairPlan(np.concatenate(parts), sum(single), next_probability)


def calibration_plans(split: StoreSplit, options: PairOptions) -> int:
    """Returns the number of plans that `calibrate` walks."""
    return min(options.plans, -(-_BLOCK // split.num_sentences))


def calibrate(split: StoreSplit, options: PairOptions, seq_len: int, seed: int) -> float:
    """Finds the probability of IsNext that makes half of all examples IsNext.

    If `options.balanced` is False, the result is 0.5. The probability applies to chunks of two or more sentences. It
    changes the share of one-sentence chunks, because the rest of a NotNext chunk begins the next chunk. So up to eight
    probabilities are tried, until half of the examples are IsNext. To make the noise small, each try walks at least
    `_BLOCK` sentences, or all plans. If more than half of the chunks have one sentence, even the probability 1 makes
    too few examples IsNext.
    """
    if not options.balanced:
        return 0.5
    probability = 0.5
    for _ in range(8):
        is_next = total = 0
        for plan in range(calibration_plans(split, options)):
            chunks = walk(split, options, seq_len, seed, plan, probability).chunks
            is_next, total = is_next + np.count_nonzero(chunks['b']), total + len(chunks)
        share = is_next / total
        if abs(share - 0.5) < 5e-4 or share == 0:
            break
        probability = min(1.0, probability * 0.5 / share)
    return probability


def _follow(successors: np.ndarray) -> np.ndarray:
    """Follows the successors from index 0 until one is outside the array. Returns the visited indices."""
    links, visited, i = successors.tolist(), [], 0
    while i < len(links):
        visited.append(i)
        i = links[i]
    return np.array(visited, np.int64)


def _document_blocks(split: StoreSplit) -> Iterator[tuple[int, int]]:
    """Yields ranges (first, end) of documents. A range has at most _BLOCK sentences, or a single document."""
    first = 0
    while first < split.num_documents:
        end = int(np.searchsorted(split.document_offsets, int(split.document_offsets[first]) + _BLOCK, 'right')) - 1
        end = min(max(end, first + 1), split.num_documents)
        yield first, end
        first = end


def _walk_pairs(
    split: StoreSplit, options: PairOptions, seq_len: int, seed: int, plan: int, next_probability: float
) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (chunks of pairs, the number of chunks that have one sentence) for each block of documents."""
    for first_document, end_document in _document_blocks(split):
        documents = np.asarray(split.document_offsets[first_document : end_document + 1])
        base = int(documents[0])
        offsets = np.asarray(split.sentence_offsets[base : int(documents[-1]) + 1])
        sizes = np.diff(documents)
        numbers = np.arange(first_document, end_document)
        target = np.repeat(draw_target_lengths(numbers, options, seq_len, seed, np.int64(plan)), sizes)
        document_end = np.repeat(documents[1:] - base, sizes)
        sentence = np.arange(base, int(documents[-1]))
        index = sentence - base
        end = np.minimum(np.searchsorted(offsets, offsets[:-1] + target), document_end)
        size = end - index
        # Google's a_end: uniform in 1..size-1, so that A and the rest have at least one sentence each.
        a = np.where(size > 1, 1 + randint(np.maximum(size - 1, 1), seed, Stream.SPLIT, plan, sentence), 1)
        if options.mode == 'nsp':
            is_next = (size > 1) & (uniform(seed, Stream.NEXT, plan, sentence) < next_probability)
            visited = _follow(np.where(is_next, end, index + a))
            b = np.where(is_next, size - a, 0)
        else:
            visited = _follow(end)
            b = size - a
        chunks = np.empty(len(visited), CHUNK)
        chunks['start'], chunks['a'], chunks['b'] = visited + base, a[visited], b[visited]
        yield chunks, int(np.count_nonzero(size[visited] == 1))


def _walk_sentences(
    split: StoreSplit, options: PairOptions, seq_len: int, seed: int, plan: int
) -> Iterator[np.ndarray]:
    """Yields chunks of contiguous sentences for each block of documents. Each chunk is for one row [CLS] ... [SEP].

    In mode 'sentences', each sentence is one row, or is cut into full rows and a shorter last row. In the other modes,
    a sentence that is longer than a row is cut into full pieces and a first and a last piece, which share the free
    positions at random. The first row of the corpus ('full_sentences') or of each document longer than a row
    ('doc_sentences') has a random capacity. Therefore rows break at different tokens in each plan. No token is lost.
    """
    capacity, crossing = seq_len - 2, options.mode == 'full_sentences'
    carried = 0  # the first token of the previous block's last row, which continues in this block
    for first_document, end_document in _document_blocks(split):
        if crossing:
            sentence = np.searchsorted(split.sentence_offsets, carried, 'right') - 1
            first_document = int(np.searchsorted(split.document_offsets, sentence, 'right')) - 1
        sentences = np.arange(*split.document_offsets[[first_document, end_document]])
        # At most the free positions of the last piece, so that the number of pieces does not rise.
        slack = -np.diff(split.sentence_offsets[sentences[0] : sentences[-1] + 2]) % capacity
        skip = 0 if options.mode == 'sentences' else randint(1 + slack, seed, Stream.PIECE, plan, sentences)
        begin, stop, bounds = _pieces(split, first_document, end_document, capacity, skip)
        numbers = np.arange(first_document, end_document)
        document = np.repeat(numbers, np.diff(bounds))
        room = np.full(len(begin), capacity)
        if crossing:
            if carried == 0:
                room[0] = 1 + randint(capacity, seed, Stream.FIRST, plan)
            # Each further document in a row needs one more position for the separator before it.
            end = np.searchsorted(stop + document, begin + document + room, 'right')
        elif options.mode == 'sentences':
            end = np.zeros(len(begin), np.int64)  # the maximum below makes each row end after one piece
        else:
            heads = bounds[:-1]
            long = stop[bounds[1:] - 1] - begin[heads] > capacity
            room[heads[long]] = 1 + randint(capacity, seed, Stream.FIRST, plan, numbers[long])
            end = np.minimum(np.searchsorted(stop, begin + room, 'right'), np.repeat(bounds[1:], np.diff(bounds)))
        end = np.maximum(end, np.arange(len(begin)) + 1)
        origin = int(np.searchsorted(begin, carried)) if crossing else 0
        visited = origin + _follow(end[origin:] - origin)
        if crossing and end_document < split.num_documents:
            unfinished = visited[end[visited] == len(begin)]
            visited, carried = visited[: len(visited) - len(unfinished)], int(begin[unfinished[0]])
        chunks = np.empty(len(visited), CHUNK)
        chunks['start'] = begin[visited]
        chunks['a'] = stop[end[visited] - 1] - begin[visited]
        chunks['b'] = document[end[visited] - 1] - document[visited] + 1
        yield chunks


def _walk_full_rows(split: StoreSplit, seq_len: int, seed: int, plan: int) -> np.ndarray:
    """Returns chunks of contiguous tokens, also across documents. Each chunk fills a row [CLS] ... [SEP].

    The length of the first chunk is random, so rows break at different tokens in each plan.
    """
    capacity, tokens_before = seq_len - 2, split.sentence_offsets[split.document_offsets]
    # Every token, and the separator before every further document, has a position.
    first_positions = tokens_before[:-1] + np.arange(split.num_documents)
    num_positions = int(tokens_before[-1]) + split.num_documents - 1
    breaks = np.arange(1 + int(randint(capacity, seed, Stream.FIRST, plan)), num_positions, capacity)
    breaks = np.concatenate([[0], breaks, [num_positions]])
    # A row begins with the token after a separator, not with the separator. `unique` drops rows that would be empty.
    starts = np.unique(breaks + 1 - np.searchsorted(first_positions, breaks, 'right'))
    chunks = np.empty(len(starts) - 1, CHUNK)
    chunks['start'], chunks['a'] = starts[:-1], np.diff(starts)
    chunks['b'] = np.searchsorted(tokens_before, starts[1:]) - np.searchsorted(tokens_before, starts[:-1], 'right') + 1
    return chunks


def _pieces(
    split: StoreSplit, first: int, end: int, capacity: int, skip: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts the sentences of documents first..end-1 into pieces of at most `capacity` tokens.

    The first piece of a sentence that is longer than `capacity` has `capacity` - `skip` tokens. `skip` is a number or
    an array with a number for each sentence, at most the free positions of its last piece.

    Returns:
      begin, stop: The index of each piece's first token, and of the token after the piece.
      bounds: The index of each document's first piece; the last entry is the number of pieces.
    """
    documents = np.asarray(split.document_offsets[first : end + 1])
    offsets = np.asarray(split.sentence_offsets[int(documents[0]) : int(documents[-1]) + 1])
    lengths = np.diff(offsets)
    skip = np.where(lengths > capacity, skip, 0)
    counts = -(-(lengths + skip) // capacity)
    sums = np.concatenate([[0], np.cumsum(counts)])
    begin = np.repeat(offsets[:-1] - skip, counts) + ordinals(counts) * capacity
    stop = np.minimum(begin + capacity, np.repeat(offsets[1:], counts))
    begin = np.maximum(begin, np.repeat(offsets[:-1], counts))
    return begin, stop, sums[documents - documents[0]]
