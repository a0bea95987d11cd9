"""Trains vocabularies. The same texts and arguments give the same vocabulary."""

import collections
import heapq
import io
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertjax.errors import UserError
from bertjax.text.bert_settings import MAX_CHARACTERS, PREFIX, bert_settings
from bertjax.text.long_words import shorten_runs
from bertjax.text.merges import learn_merges
from bertjax.text.sampling import MAX_SENTENCE, iter_sentences, sample
from bertjax.text.sentencepiece import SentencePieceTokenizer
from bertjax.text.sentencepiece_proto import round_scores, unicode_normalizer
from bertjax.text.smoothing import smoothed_counts, smoothed_sample
from bertjax.text.special import CLS, MASK, PAD, SEP, UNK, replace_surrogates, special_layout
from bertjax.text.tokenizer_json import ROBERTA_NAMES, JsonTokenizer, byte_bpe_settings
from bertjax.text.wordpiece import WordPieceTokenizer

# With more distinct words than this (about 300 MB), `count_words` keeps only the MAX_WORDS // 2 most frequent words.
MAX_WORDS = 2_000_000
# The maximum length of a short chunk in `count_words`. If the mean length of a text's chunks exceeds it, as in Chinese,
# long chunks are split immediately.
_MAX_CHUNK = 64
# If there is room, the 1,000 most frequent characters become pieces (as in `tokenizers`). If they cover less than
# 99.95 % of the text (SentencePiece's default), as in Chinese, more characters become pieces.
_ALPHABET = 1_000
_COVERAGE = 0.9995
# The smallest share of the text's characters that a vocabulary may cover.
_MIN_COVERAGE = 0.98
_MIN_FREQUENCY = 2  # the minimum count of a pair that WordPiece or byte-level BPE merges
_BYTES = 256  # the number of one-byte pieces in byte-level BPE
# Byte-level BPE training cuts words into parts of up to this many bytes: its time is quadratic in the length of a word.
_MAX_WORD_BYTES = 1_000
_ASCII_SPACE = re.compile('[ \t\n\r]+')
_LONG_RUN = re.compile(rf'(?<![A-Za-z0-9])([A-Za-z0-9]{{{MAX_CHARACTERS + 1}}})[A-Za-z0-9]+')
_SENTENCEPIECE_NAMES = {'pad': PAD, 'unk': UNK, 'bos': CLS, 'eos': SEP}


def train_wordpiece(
    texts: Iterable[str], *others: Iterable[str], lowercase: bool, **options: Any
) -> WordPieceTokenizer:
    """Counts the words of one or more corpora, and passes the counts to `build_wordpiece`. Each corpus is read once."""
    counts = [count_words(some, lowercase) for some in (texts, *others)]
    return build_wordpiece(counts, lowercase=lowercase, **options)


def build_wordpiece(
    counts: Sequence[Mapping[str, int]], *, vocab_size: int, lowercase: bool, unused: int = 0, smoothing: float = 1.0
) -> WordPieceTokenizer:
    """Makes a WordPiece vocabulary by byte-pair merges of words, the method of Hugging Face's trainer.

    Unlike that trainer, this function breaks ties in code point order, so that two runs give equal results.
    The pieces are in BERT's order: [PAD], [unusedN], [UNK], [CLS], [SEP], [MASK], the characters, their ## forms, then
    the merges. If the text is too small, there are fewer than `vocab_size` pieces, and a warning is logged.

    Args:
      counts: The result of `count_words` for each corpus of a mixture.
      vocab_size: The number of pieces, including special tokens and unused slots.
      lowercase: Whether text is lower-cased and accents are removed.
      unused: The number of [unusedN] slots to reserve.
      smoothing: The exponent for the shares of the corpora; see `text/smoothing.py`.

    Raises:
      UserError: The texts are empty, or `vocab_size` is too small for their characters.
    """
    special = special_layout(unused)
    if not any(counts):
        fix = 'set config.vocab.family=sentencepiece or bpe for text without spaces, or check the path and format'
        raise UserError(
            'corpus', f'no text with words of up to {MAX_CHARACTERS} characters', 'text to train words on', fix
        )
    words = smoothed_counts(counts, smoothing) if len(counts) > 1 else counts[0]
    pieces = special + _alphabet(words, vocab_size - len(special), vocab_size)
    pieces += learn_merges(words, pieces, max_new_pieces=vocab_size - len(pieces), min_frequency=_MIN_FREQUENCY)
    _warn_when_small(len(pieces), vocab_size)
    return WordPieceTokenizer(bert_settings(pieces, lowercase=lowercase))


def count_words(texts: Iterable[str], lowercase: bool, strip_accents: bool | None = None) -> dict[str, int]:
    """Counts the words of texts, split as in BERT. Words of more than MAX_CHARACTERS characters are ignored.

    If there are more than MAX_WORDS distinct words, the rarest are dropped. See `bert_settings` for `strip_accents`.

    A chunk is the text between ASCII white space, which always separates words. Equal chunks give equal words, because
    BERT's normalizer works on single characters. Short chunks are counted first and split later, which is much faster.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    chunks: collections.Counter[str] = collections.Counter()
    words: collections.Counter[str] = collections.Counter()

    def count_chunk(chunk: str, count: int) -> None:
        if len(chunk) > MAX_CHARACTERS:  # shorten ignored words: the normalizer needs 70 bytes per character
            chunk = _LONG_RUN.sub(r'\1', chunk)
        try:
            normal = normalizer.normalize_str(chunk)
        except UnicodeEncodeError:
            normal = normalizer.normalize_str(replace_surrogates(chunk))
        for word, _ in pre_tokenizer.pre_tokenize_str(normal):
            if len(word) <= MAX_CHARACTERS:
                words[word] += count

    def flush() -> None:
        for chunk, count in chunks.items():
            count_chunk(chunk, count)
        chunks.clear()
        if len(words) > MAX_WORDS:
            most_frequent = heapq.nsmallest(MAX_WORDS // 2, words.items(), key=lambda item: (-item[1], item[0]))
            words.clear()
            words.update(dict(most_frequent))

    for text in texts:
        parts = _ASCII_SPACE.split(text)
        if len(text) > _MAX_CHUNK * len(parts):
            for chunk in (chunk for chunk in parts if len(chunk) > _MAX_CHUNK):
                count_chunk(chunk, 1)
            parts = [chunk for chunk in parts if len(chunk) <= _MAX_CHUNK]
        chunks.update(parts)
        if len(chunks) + len(words) > 2 * MAX_WORDS:
            flush()
    flush()
    return dict(sorted(words.items()))


def _alphabet(words: dict[str, int], max_entries: int, vocab_size: int) -> list[str]:
    """Returns the characters that become pieces, sorted, then the ## forms of those that can continue a word."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    total, covered, entries = sum(counts.values()), 0, 0
    plain, inside = [], []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        # A punctuation mark or a CJK ideograph is always a separate word, so it has no ## form.
        joins = len(pre_tokenizer.pre_tokenize_str(normalizer.normalize_str('a' + character))) == 1
        entries += 1 + joins
        rare = covered >= _COVERAGE * total
        if entries > max_entries or (rare and (len(plain) >= _ALPHABET or entries > max_entries // 2)):
            break
        plain.append(character)
        inside += [PREFIX + character] * joins
        covered += count
    if covered < _MIN_COVERAGE * total:
        raise UserError(
            'config.vocab.size',
            f'{vocab_size:,}, with room for only {covered / total:.1%} of the characters in the text',
            f'room for the special tokens, {len(counts):,} different characters and pieces made of them',
            'raise it (8,192 for a small corpus, 30,522 for BERT), or reserve fewer unused slots',
        )  # fmt: skip
    return sorted(plain) + sorted(inside)


def train_sentencepiece(
    texts: Iterable[str], *others: Iterable[str], seed: int = 0, sample_sentences: int = 500_000, **options: Any
) -> SentencePieceTokenizer:
    """Draws a sample of sentences from each corpus, and passes the samples to `build_sentencepiece`.

    Each corpus is read once. A sample has at most `sample_sentences` sentences; unigram training needs 3 KB of memory
    for each English sentence.
    """
    drawn = [sample(iter_sentences(some), sample_sentences, seed) for some in (texts, *others)]
    return build_sentencepiece(drawn, sample_sentences=sample_sentences, **options)


def build_sentencepiece(
    drawn: Sequence[tuple[Sequence[str], int]],
    *,
    vocab_size: int,
    model_type: Literal['unigram', 'bpe'] = 'unigram',
    lowercase: bool,
    unused: int = 0,
    sample_sentences: int = 500_000,
    smoothing: float = 1.0,
) -> SentencePieceTokenizer:
    """Trains a SentencePiece model on a random sample of sentences.

    The normalization is SentencePiece's nmt_nfkc, or nmt_nfkc_cf with case folding if `lowercase` is True. The special
    tokens and [unusedN] slots are the first pieces, in BERT's order. All but [UNK] are control symbols, which no text
    produces. If the sample is too small, there are fewer than `vocab_size` pieces, and a warning is logged.

    Args:
      drawn: The result of `sampling.sample` for each corpus of a mixture.
      vocab_size, unused, smoothing: See `build_wordpiece`.
      model_type: The type of the model: 'unigram' (Kudo 2018) or 'bpe'.
      lowercase: Whether case is folded.
      sample_sentences: The maximum number of sentences in the mixture, if `drawn` has several corpora.

    Raises:
      UserError: The sample is empty, or SentencePiece rejects `vocab_size`.
    """
    rule = 'nmt_nfkc_cf' if lowercase else 'nmt_nfkc'
    sentences = drawn[0][0]
    if len(drawn) > 1 and any(size for _, size in drawn):
        sentences = smoothed_sample(*zip(*drawn, strict=True), smoothing, sample_sentences)
    if not sentences:
        raise _no_text_error()
    names = special_layout(unused)
    controls = [name for name in names if name not in (PAD, UNK, CLS, SEP)]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(unicode_normalizer(rule).normalize_str, sentences),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            hard_vocab_limit=False,
            normalization_rule_name=rule,
            character_coverage=_COVERAGE,
            # In bytes. MAX_SENTENCE counts characters, and NFKC can expand a character to 33 bytes.
            max_sentence_length=100 * MAX_SENTENCE,
            control_symbols=controls,
            **{f'{key}_id': names.index(name) for key, name in _SENTENCEPIECE_NAMES.items()},
            **{f'{key}_piece': name for key, name in _SENTENCEPIECE_NAMES.items()},
            # The last digits of the scores depend on the number of threads.
            num_threads=8,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            'config.vocab.size', f'{vocab_size:,}, which SentencePiece does not accept ({error})',
            'room for the special tokens and every character of the text',
            'raise it (8,000 for a small corpus, 32,000 for a large one), or give more text',
        ) from error  # fmt: skip
    tokenizer = SentencePieceTokenizer(round_scores(model.getvalue()), 'tokenizer.model')
    _warn_when_small(tokenizer.vocab_size, vocab_size)
    return tokenizer


def train_byte_bpe(texts: Iterable[str], *, vocab_size: int, lowercase: bool, unused: int = 0) -> JsonTokenizer:
    """Trains a byte-level BPE with the trainer of `tokenizers`.

    The pieces are <s> <pad> </s> <unk> <mask>, [unusedN], the 256 bytes, then the merges. If the text is too small,
    there are fewer than `vocab_size` pieces, and a warning is logged. The tokenizer puts a space before each text and,
    as in RoBERTa, two separators between the texts of a pair.

    Args:
      texts: The texts, read once.
      vocab_size, unused: See `build_wordpiece`.

    Raises:
      UserError: The texts have no pair to merge, or `vocab_size` is too small for the bytes.
    """
    special = [ROBERTA_NAMES[token] for token in (CLS, PAD, SEP, UNK, MASK)]
    slots = [f'[unused{i}]' for i in range(unused)]
    min_size = len(special) + len(slots) + _BYTES + 1  # at least one merge
    if vocab_size < min_size:
        found = f'{vocab_size:,}, which is too small for the {_BYTES} bytes'
        fix = 'raise it (8,192 for a small corpus, 50,265 for RoBERTa)'
        raise UserError('config.vocab.size', found, f'at least {min_size:,}', fix)
    model = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        model.normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=True)
    model.pre_tokenizer = pre_tokenizers.Sequence([splitter, pre_tokenizers.FixedLength(_MAX_WORD_BYTES)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[*special, *slots],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(shorten_runs(map(replace_surrogates, texts)), trainer)
    learned = json.loads(model.to_str())['model']
    if not learned['merges']:
        raise _no_text_error()
    _warn_when_small(len(learned['vocab']), vocab_size)
    settings = byte_bpe_settings(
        learned['vocab'], learned['merges'], lowercase=lowercase, prefix_space=True, unused=slots
    )
    return JsonTokenizer(settings)


def _no_text_error() -> UserError:
    """Returns the error for training without text."""
    return UserError('corpus', 'no text', 'text to train a vocabulary on', 'check the path and format of the corpus')


def _warn_when_small(size: int, requested: int) -> None:
    """Warns if a text gave fewer pieces than requested."""
    if size < requested:
        logging.getLogger(__name__).warning(
            'vocabulary: %s pieces instead of %s, because no other pieces repeat in the text; give more text',
            f'{size:,}', f'{requested:,}',
        )  # fmt: skip
