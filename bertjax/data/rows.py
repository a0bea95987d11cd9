"""Makes all rows of a batch from chunks: draws random segments, truncates pairs and lays out tokens."""

import dataclasses

import numpy as np

from bertjax.corpus.store import StoreSplit
from bertjax.data.batch import ordinals
from bertjax.data.hashing import Stream, hash_bits, randint
from bertjax.data.pairs import CHUNK, PairOptions
from bertjax.text.tokenizer_base import Tokenizer


@dataclasses.dataclass(frozen=True)
class Segments:
    """Two ranges of tokens for each row. All arrays are int64 [B], except `paired`.

    Attributes:
      a_start, b_start: The first tokens of A and B, as indices in the split.
      a_length, b_length: The numbers of tokens of A and B; `b_length` is 0 if there is no B.
      labels: 0 if B follows A, 1 if B is from elsewhere or A and B are swapped.
      paired: bool [B], whether there is a pair to classify.
    """

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    labels: np.ndarray
    paired: np.ndarray


def draw_pairs(
    split: StoreSplit, chunks: np.ndarray, target: np.ndarray, document: np.ndarray, mode: str, seed: int, n: np.ndarray
) -> Segments:
    """Returns the segments of pairs before truncation. A segment is a range of whole sentences.

    The B of a NotNext pair comes from a document drawn uniformly from all documents except A's. B starts at a sentence
    drawn uniformly from this document. B ends with the sentence in which A and B together reach the target length, or
    at the end of the document.

    Args:
      chunks: [B], the chunks of a plan.
      target, document: int64 [B], the target length and the document of each chunk.
      mode: 'nsp' or 'sop'.
      seed, n: The keys of the random draws; n is int64 [B].
    """
    start, a, b = (chunks[name].astype(np.int64) for name in CHUNK.names)
    offsets = split.sentence_offsets
    a_start, b_start, b_stop = offsets[start], offsets[start + a], offsets[start + a + b]
    a_length = b_start - a_start
    if mode == 'sop':
        paired = b > 0
        swapped = paired & (hash_bits(seed, Stream.SWAP, n) >> np.uint64(63) == 1)
        b_length = b_stop - b_start
        a_start, b_start = np.where(swapped, b_start, a_start), np.where(swapped, a_start, b_start)
        a_length, b_length = np.where(swapped, b_length, a_length), np.where(swapped, a_length, b_length)
        return Segments(a_start, a_length, b_start, b_length, swapped.astype(np.int64), paired)
    drawn = np.nonzero(b == 0)[0]
    if drawn.size:
        key = n[drawn]
        other_document = randint(split.num_documents - 1, seed, Stream.OTHER_DOCUMENT, key)
        other_document += other_document >= document[drawn]
        first, end = split.document_offsets[other_document], split.document_offsets[other_document + 1]
        sentence = first + randint(end - first, seed, Stream.OTHER_SENTENCE, key)
        begin = offsets[sentence]
        tokens_left = np.maximum(target[drawn] - a_length[drawn], 1)
        stop = np.minimum(np.searchsorted(offsets, begin + tokens_left), end)
        b_start[drawn], b_stop[drawn] = begin, offsets[stop]
    return Segments(a_start, a_length, b_start, b_stop - b_start, (b == 0).astype(np.int64), np.ones(len(n), bool))


def truncate(segments: Segments, seq_len: int, seed: int, n: np.ndarray, separators: int = 1) -> Segments:
    """Cuts pairs to S - 2 - `separators` tokens, and rows without B to S - 2 tokens.

    The rule of `truncate_seq_pair` in google-research/bert removes one token at a time from the longer segment, or from
    B if both have the same length. So the longer segment loses tokens until both have the same length, then B and A
    lose a token in turn. For each removed token, a coin is tossed: the token is removed from the front of its segment
    for heads, and from the end for tails.
    """
    a, b = segments.a_length, segments.b_length
    max_tokens = np.where(b > 0, seq_len - 2 - separators, seq_len - 2)
    surplus = np.maximum(a + b - max_tokens, 0)
    first = np.minimum(surplus, np.abs(a - b))
    turns = surplus - first
    cut_a = np.where(a > b, first, 0) + turns // 2
    cut_b = np.where(a > b, 0, first) + (turns + 1) // 2
    return dataclasses.replace(
        segments,
        a_start=segments.a_start + count_heads(cut_a, seed, Stream.TRUNCATE_A, n),
        a_length=a - cut_a,
        b_start=segments.b_start + count_heads(cut_b, seed, Stream.TRUNCATE_B, n),
        b_length=b - cut_b,
    )


def count_heads(coins: np.ndarray, seed: int, stream: int, n: np.ndarray) -> np.ndarray:
    """Counts the heads in the first `coins` tosses of each n, int64 [B]. Toss t is bit t % 64 of hash t // 64."""
    total = np.zeros(len(coins), np.int64)
    rows, word = np.nonzero(coins > 0)[0], 0
    while rows.size:
        remaining = np.minimum(coins[rows] - 64 * word, 64).astype(np.uint64)
        bits = hash_bits(seed, stream, n[rows], word) << (np.uint64(64) - remaining)
        total[rows] += np.bitwise_count(bits)
        word += 1
        rows = rows[coins[rows] > 64 * word]
    return total


@dataclasses.dataclass(frozen=True)
class TokenRanges:
    """The ranges of tokens that fill B rows. [CLS] comes first, and one or two [SEP] follow each range.

    Attributes:
      row, column: int64 [R], the row and the first column of each range. Each row has at least one range.
      start, length: int64 [R], the first token of each range as an index in the split, and the number of its tokens.
      segment: int64 [R], 1 for each B, otherwise 0.
      labels, paired: [B], see `Segments`; zeros for rows without pairs.
    """

    row: np.ndarray
    column: np.ndarray
    start: np.ndarray
    length: np.ndarray
    segment: np.ndarray
    labels: np.ndarray
    paired: np.ndarray

    def row_lengths(self) -> np.ndarray:
        """Returns the number of real (not padding) positions of each row, int64 [B]."""
        lengths = np.zeros(len(self.labels), np.int64)
        np.maximum.at(lengths, self.row, self.column + self.length + 1)
        return lengths


def pair_ranges(segments: Segments, separators: int) -> TokenRanges:
    """Returns the ranges of rows [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no B.

    With two `separators`, a pair is [CLS] A [SEP] [SEP] B [SEP].
    """
    rows, with_b = np.arange(len(segments.a_length)), np.flatnonzero(segments.b_length)
    b_column = (1 + segments.a_length + separators)[with_b]
    return TokenRanges(
        row=np.append(rows, with_b),
        column=np.append(np.ones_like(rows), b_column),
        start=np.append(segments.a_start, segments.b_start[with_b]),
        length=np.append(segments.a_length, segments.b_length[with_b]),
        segment=np.append(np.zeros_like(rows), np.ones_like(with_b)),
        labels=segments.labels,
        paired=segments.paired,
    )


def sentence_ranges(split: StoreSplit, chunks: np.ndarray, document: np.ndarray) -> TokenRanges:
    """Returns the ranges of rows [CLS] sentences [SEP], with another [SEP] between documents.

    `chunks` are those of a plan without pairs. `document`, int64 [B], is the document of each chunk's first token.
    """
    start, length, documents = (chunks[name].astype(np.int64) for name in CHUNK.names)
    # One range for each document in a row.
    row, ordinal = np.repeat(np.arange(len(chunks)), documents), ordinals(documents)
    number = document[row] + ordinal
    first, end = (split.sentence_offsets[split.document_offsets[n]] for n in (number, number + 1))
    begin = np.maximum(start[row], first)
    size = np.minimum((start + length)[row], end) - begin
    none = np.zeros(len(chunks), np.int64)
    return TokenRanges(row, 1 + begin - start[row] + ordinal, begin, size, np.zeros_like(row), none, none)


def lay_out(
    split: StoreSplit, ranges: TokenRanges, seq_len: int, tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Lays out rows of S = `seq_len` positions.

    B and its [SEP] are in segment 1. If the split defines segment types, a token instead has the type of its sentence,
    [CLS] the type of the next token, and [SEP] the type of the previous token.

    Returns:
      ({'input_ids', 'segment_ids', 'attention_mask'}: int32 [B, S], before masking; bool [B, S], whether a position has
      a token of the split).
    """
    row, column, start, length = ranges.row, ranges.column, ranges.start, ranges.length
    columns, ids = np.arange(seq_len), np.full((len(ranges.labels), seq_len), -1, np.int32)
    for r, c, token, count in zip(*(x.tolist() for x in (row, column, start, length)), strict=True):
        ids[r, c : c + count] = split.tokens(token, count)
    maskable, real = ids >= 0, columns < ranges.row_lengths()[:, None]  # [B, S]
    ids = np.where(maskable, ids, np.where(real, np.int32(tokenizer.sep_id), np.int32(tokenizer.pad_id)))
    ids[:, 0] = tokenizer.cls_id
    segment_ids = np.zeros_like(ids)
    if split.segments is None:
        b = ranges.segment == 1
        segment_ids[row[b]] = real[row[b]] & (columns >= column[b][:, None])
    else:
        offset = ordinals(length)
        sentence = np.searchsorted(split.sentence_offsets, np.repeat(start, length) + offset, 'right') - 1
        segment_ids[np.repeat(row, length), np.repeat(column, length) + offset] = split.segments[sentence]
        last_token = np.maximum.accumulate(np.where(maskable, columns, 1), axis=1)
        segment_ids = np.take_along_axis(segment_ids, last_token, axis=1) * real  # 0 in padding
    return {'input_ids': ids, 'segment_ids': segment_ids, 'attention_mask': real.astype(np.int32)}, maskable


def locate_documents(split: StoreSplit, chunks: np.ndarray, options: PairOptions) -> np.ndarray:
    """Returns the document of each chunk's first token, int64 [B]."""
    sentence = chunks['start'].astype(np.int64)
    if not options.paired:
        sentence = np.searchsorted(split.sentence_offsets, sentence, 'right') - 1
    return np.searchsorted(split.document_offsets, sentence, 'right') - 1
