"""Problems of a corpus and their fixes: broken input, the warnings of the report, and shuffled sentences.

In running text, neighboring sentences share far more rare words than sentences of different documents. In shuffled
text they do not, and sentence pairs teach a model nothing. `coherence` measures this overlap.
"""

import collections
import math

import numpy as np

from bertjax.corpus.sequences import FORMATS
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import StoreSplit, TokenStore
from bertjax.errors import UserError
from bertjax.files.streams import Broken

MAX_PROBLEMS = 5  # the maximum number of broken inputs of each kind that are reported with file and line

# Thresholds of the warnings. Wikipedia with bert-base-uncased has 0.01 % [UNK] and 1.10 pieces per word. Wikipedia in
# rot13, which stands for a language that the vocabulary does not cover, has 2.6 pieces per word.
ONE_SENTENCE = 0.2
DUPLICATE_DOCUMENTS = 0.01
DUPLICATE_LINES = 0.3
UNKNOWN = 0.01
PIECES_PER_WORD = 2.0
LIKENESS, LIKENESS_WITHIN = 1.6, 1.2  # the report warns if a ratio of `coherence` is lower
LONG_SENTENCE = 128  # in tokens; correctly split sentences are shorter on average
FEW_HELDOUT = 1000  # in tokens
MUCH_HELDOUT = 3  # as a multiple of the requested share
MANY_SENTENCES = 2000  # in a document; the longest articles of Wikipedia have fewer

# The sample of `coherence`.
DOCUMENTS = 1000  # the maximum number of documents, evenly spaced over the split
SENTENCES = 12  # the number of neighboring sentences from each document; a shorter document gives all its sentences
TOTAL = 4000  # the target number of sentences; if there are few documents, each gives more than SENTENCES
# The minimum numbers of pairs for the first and for the second ratio of `coherence`. The second ratio is noisier.
MIN_PAIRS, MIN_FAR = 200, 1000
COMMON = 0.02  # a piece that occurs in more than this share of the sentences is not a rare word

# The expected text and the fix for each kind of broken input.
_EXPECTED = {
    'invalid UTF-8': ('UTF-8 text', 'convert the file, for example with: iconv -f LATIN1 -t UTF-8'),
    'NUL byte': ('text without zero bytes', 'remove them, for example with: tr -d "\\000"'),
    'damaged file': ('a complete, readable file', 'download or compress it again'),
    'unreadable file': ('a readable file', 'check that it exists, and its permissions'),
    'empty file': ('text', 'remove the file'),
    'wrong JSON': ('a JSON object on each line', 'correct the line or remove it'),
    'missing text field': ('a string in the text field', 'name the field with config.corpus_options.text_key'),
    'missing sequence': ('a list of sentences', 'name the field with config.corpus_options.text_key'),
    'wrong sequence': ('token ids, or symbols without white space', 'correct it, or set config.corpus_options.format'),
    'wrong segments': ('a segment type for each sentence', 'correct the line'),
    'unclosed <doc>': ('</doc> after each <doc …>', 'extract the dump again'),
    'text outside <doc>': ('<doc …> before each text', 'extract the dump again, or set config.corpus_options.format'),
    'line too long': ('shorter lines of JSON', 'split the document'),
}


def broken_error(path: str, broken: Broken) -> UserError:
    """Returns the error for broken input in a strict build."""
    expected, fix = _EXPECTED[broken.kind]
    fix += '; or set config.corpus_options.strict=False to drop it'
    return UserError(broken.located_in(path), f'{broken.kind} ({broken.detail})', expected, fix)


def find_warnings(facts: dict, options: CorpusOptions) -> list[str]:
    """Returns the warnings of the corpus report.

    The manifest contains the warnings, so any change of their wording changes the bytes of a store.
    """
    warnings, is_text = [], options.format not in FORMATS
    single = facts['one_sentence_documents'] / facts['documents']
    if single > ONE_SENTENCE:
        fix = (
            'Put blank lines only between documents, read each file as one document (set '
            'config.corpus_options.format=files)'
            if is_text
            else 'Give each document as a list of sentences'
        )
        warnings.append(
            f'{single:.0%} of the documents have one sentence: they give no true next sentence, so NSP and SOP learn '
            f'little. {fix}, or train without pairs (config.pairs.mode=full_sentences).'
        )
    copies = facts['duplicate_documents'] / max(1, facts['documents_read'])
    if copies > DUPLICATE_DOCUMENTS:
        consequence = (
            'all but the first were dropped'
            if options.drop_duplicates
            else 'config.corpus_options.drop_duplicates drops them'
        )
        warnings.append(f'{copies:.1%} of the documents are copies of another: {consequence}.')
    repeated = facts['duplicate_lines'] / max(1, facts['lines'])
    if repeated > DUPLICATE_LINES:
        warnings.append(
            f'{repeated:.0%} of the lines are copies of another line: headings, menus and boilerplate are learned by '
            'heart; clean them away before training.'
            if is_text
            else f'{repeated:.0%} of the sentences are copies of other sentences and are learned by heart; remove '
            'accidental copies.'
        )
    if facts['unknown_rate'] > UNKNOWN:
        cause = 'the vocabulary lacks letters of this text'
        fix = (
            "Train a vocabulary on this text (--config.tokenizer=''), large enough for all letters "
            '(config.vocab.size), or, with config.init, add words (config.vocab.add)'
        )
        if options.format == 'ids':
            cause, fix = 'the corpus contains its id', 'Check that the ids belong to config.tokenizer'
        elif not is_text:
            cause = 'the vocabulary lacks symbols of the corpus'
            fix = (
                "Train one on the corpus (--config.tokenizer=''), large enough for all symbols (config.vocab.size), "
                'or, with config.init, append the symbols to a copy of its vocabulary (config.tokenizer)'
            )
        warnings.append(f'{facts["unknown_rate"]:.1%} of the tokens are [UNK]: {cause}. {fix}.')
    if facts['pieces_per_word'] > PIECES_PER_WORD:
        warnings.append(
            f'{facts["pieces_per_word"]:.2f} pieces a word (English with a large English vocabulary has 1.1): the '
            'vocabulary is too small, or made for another language. If it was trained on this text, raise '
            "config.vocab.size or add text; else train a vocabulary on this text (--config.tokenizer='') or, with "
            'config.init, add words (config.vocab.add).'
        )
    likeness, within = facts['neighbour_likeness'], facts['neighbour_likeness_within']
    if likeness is not None and likeness < LIKENESS:
        warnings.append(
            f'The text looks shuffled by sentence: neighbors share only {likeness:.1f} times as many rare words '
            'as sentences of different documents (running text: 2.5 and more). Sentence pairs will teach nothing.'
        )
    elif within is not None and within < LIKENESS_WITHIN:
        warnings.append(
            'The sentences within documents look shuffled: neighbors are no more alike than sentences further apart '
            f'({within:.2f} times; running text: 1.4 and more). Sentence order (SOP) will teach nothing.'
        )
    if is_text and facts['tokens_per_sentence'] > LONG_SENTENCE:
        warnings.append(
            f'A sentence has {facts["tokens_per_sentence"]:.0f} tokens on average: '
            + (
                'the text has no full stops that the splitter knows, or its lines are not prose.'
                if options.split_sentences
                else 'its lines are not sentences (config.corpus_options.split_sentences=False).'
            )
        )
    if facts['heldout_documents'] == 0:
        why = 'one document cannot be divided' if options.heldout else 'heldout=0'
        warnings.append(f'No document is held out ({why}): the loss on unseen text is not measured.')
    elif facts['heldout_tokens'] < FEW_HELDOUT:
        warnings.append(
            f'Only {facts["heldout_tokens"]:,} tokens are held out: the held-out loss will be noisy. Raise '
            f'config.corpus_options.heldout, which is {options.heldout:g}, or give more text.'
        )
    elif facts['heldout_tokens'] > MUCH_HELDOUT * options.heldout * facts['tokens']:
        share = facts['heldout_tokens'] / facts['tokens']
        warnings.append(
            f'{share:.0%} of the tokens are held out instead of {options.heldout:.0%}, because there are only '
            f'{facts["documents"]:,} documents: cut them into smaller ones, for example chapters.'
        )
    broken = sum(facts['dropped'].values()) - facts['dropped'].get('empty document', 0)
    if broken:
        warnings.append(f'{broken:,} documents or files were broken and left out.')
    return warnings


def warn_long_documents(store: TokenStore) -> list[str]:
    """Returns [warning] if a document has MANY_SENTENCES sentences or more, else []. Manifests lack this warning."""
    count = longest = 0
    for name in ('train', 'heldout'):
        sizes = np.diff(store.split(name).document_offsets)
        count += int(np.count_nonzero(sizes >= MANY_SENTENCES))
        longest = max(longest, int(sizes.max(initial=0)))
    if not count:
        return []
    fix = 'Cut them into shorter documents'
    if store.manifest['settings']['format'] not in FORMATS:
        fix = (
            'If they are collections, put blank lines between the documents and set config.corpus_options.format=text. '
            'If they are books, cut them into chapters'
        )
    return [
        f'{count:,} documents have {MANY_SENTENCES:,} sentences or more, up to {longest:,}. {fix}, because more '
        'documents give more pairs of different documents.'
    ]


def _sample(split: StoreSplit) -> list[list[np.ndarray]]:
    """Returns neighboring sentences (arrays of ids) of each sampled document that has two sentences or more."""
    # Sample more than DOCUMENTS, because documents of one sentence are removed next.
    sampled = np.unique(np.linspace(0, max(0, split.num_documents - 1), 8 * DOCUMENTS).astype(np.int64))
    begins, ends = split.document_offsets[sampled], split.document_offsets[np.minimum(sampled + 1, split.num_documents)]
    several = np.flatnonzero(ends - begins > 1)
    chosen = several[np.unique(np.linspace(0, len(several) - 1, DOCUMENTS).astype(np.int64))] if len(several) else []
    result = []
    for index in chosen:
        first, count = int(begins[index]), int(ends[index] - begins[index])
        number = min(count, max(SENTENCES, TOTAL // len(chosen)))
        first += (count - number) // 2
        result.append(split.sentences(first, first + number))
    return result


def _overlap(a: set[int], b: set[int]) -> float:
    """Returns the cosine similarity of two sets of ids: |A ∩ B| / sqrt(|A| |B|)."""
    return len(a & b) / math.sqrt(len(a) * len(b))


def coherence(split: StoreSplit) -> tuple[float | None, float | None]:
    """Measures the overlap of rare words between neighboring sentences, relative to other sentences.

    Wikipedia has (28, 1.6), novels (8, 4.4), and novels cut into documents of 20 sentences (2.6, 1.5). Shuffled
    Wikipedia has (0.9, 1.0), and Wikipedia shuffled within each document (20, 1.0).

    Returns:
      Two ratios: the overlap of neighbors divided by that of sentences of different documents, and by that of distant
      sentences of the same document. A ratio is None if there are too few pairs. The first is also None if there is
      only one document.
    """
    documents = [[set(ids.tolist()) for ids in document] for document in _sample(split)]
    counts = collections.Counter(token for document in documents for ids in document for token in ids)
    sentences = sum(map(len, documents))
    common = {token for token, count in counts.items() if count > max(2, COMMON * sentences)}
    documents = [[ids - common for ids in document] for document in documents]
    near, far, other_document = [], [], []
    for document, other in zip(documents, [*documents[1:], *documents[:1]], strict=True):
        for index in range(len(document) - 1):
            a, b, c = document[index], document[index + 1], other[index % len(other)]
            d = document[(index + len(document) // 2) % len(document)]
            if a and b and c:
                near.append(_overlap(a, b))
                other_document.append(_overlap(a, c))
                if d and len(document) >= 8:
                    far.append(_overlap(a, d))
    if len(near) < MIN_PAIRS:
        return None, None
    likeness = float(np.mean(near))
    across = likeness / max(float(np.mean(other_document)), 1e-6) if len(documents) > 1 else None
    within = likeness / max(float(np.mean(far)), 1e-6) if len(far) >= MIN_FAR else None
    return across, within
