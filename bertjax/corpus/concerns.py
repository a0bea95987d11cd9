"""The warnings of the corpus report: what of a corpus will disturb pre-training, and what to do about it."""

from bertjax.corpus.options import CorpusOptions

# Where a number begins to disturb training. The shared Wikipedia text with bert-base-uncased has 0.01 % [UNK] and 1.10
# pieces a word; rot13 of it, a language that the vocabulary does not know, 2.6.
ONE_SENTENCE = 0.2
DUPLICATE_DOCUMENTS = 0.01
DUPLICATE_LINES = 0.3
UNKNOWN = 0.01
PIECES_PER_WORD = 2.0
LIKENESS, LIKENESS_WITHIN = 1.6, 1.2  # See order.neighbour_likeness.
LONG_SENTENCE = 128  # Mean tokens of a sentence: no splitter made these.
FEW_HELDOUT = 1000  # Tokens.
MUCH_HELDOUT = 3  # Times the share that was asked for.


def find_warnings(facts: dict, options: CorpusOptions) -> list[str]:
    """What matters for training, each with what to do about it."""
    found = []
    single = facts['one_sentence_documents'] / facts['documents']
    if single > ONE_SENTENCE:
        found.append(
            f'{single:.0%} of the documents have one sentence: they give no true next sentence, so NSP and SOP learn '
            'little. Put blank lines between documents only, read a file as one document (a directory, or the format '
            '"files"), or train without the pair objective.'
        )
    copies = facts['duplicate_documents'] / max(1, facts['documents_read'])
    if copies > DUPLICATE_DOCUMENTS:
        kept = (
            'all but the first were dropped'
            if options.drop_duplicates
            else 'config.corpus_options.drop_duplicates drops them'
        )
        found.append(f'{copies:.1%} of the documents are copies of another: {kept}.')
    repeated = facts['duplicate_lines'] / max(1, facts['lines'])
    if repeated > DUPLICATE_LINES:
        found.append(
            f'{repeated:.0%} of the lines are copies of another line: headings, menus and boilerplate are learnt by '
            'heart; clean them away before training.'
        )
    if facts['unknown_rate'] > UNKNOWN:
        found.append(
            f'{facts["unknown_rate"]:.1%} of the tokens are [UNK]: the tokenizer does not know this script. Train one '
            'on this corpus with --config.run=vocab.'
        )
    if facts['pieces_per_word'] > PIECES_PER_WORD:
        found.append(
            f'{facts["pieces_per_word"]:.2f} pieces a word: the tokenizer does not fit this language (English with its '
            'own vocabulary has about 1.1). Train one on this corpus with --config.run=vocab.'
        )
    likeness, within = facts['neighbour_likeness'], facts['neighbour_likeness_within']
    if likeness is not None and likeness < LIKENESS:
        found.append(
            f'The text looks shuffled by sentence: neighbours share only {likeness:.1f} times the rarer words that '
            'sentences of different documents share (running text: 2.5 and more). Sentence pairs will teach nothing.'
        )
    elif within is not None and within < LIKENESS_WITHIN:
        found.append(
            'The sentences within documents look shuffled: neighbours are no more alike than sentences further apart '
            f'({within:.2f} times; running text: 1.4 and more). Sentence order (SOP) will teach nothing.'
        )
    if facts['tokens_per_sentence'] > LONG_SENTENCE:
        found.append(
            f'A sentence has {facts["tokens_per_sentence"]:.0f} tokens on average: the text has no full stops that the '
            'splitter knows, or lines are no paragraphs.'
        )
    if facts['heldout_documents'] == 0:
        why = 'one document cannot be divided' if options.heldout else 'heldout=0'
        found.append(f'No document is held out ({why}): nothing tells how well the model does on text it has not seen.')
    elif facts['heldout_tokens'] < FEW_HELDOUT:
        found.append(
            f'Only {facts["heldout_tokens"]:,} tokens are held out: the held-out loss will be noisy. Raise the share.'
        )
    elif facts['heldout_tokens'] > MUCH_HELDOUT * options.heldout * facts['tokens']:
        share = facts['heldout_tokens'] / facts['tokens']
        found.append(
            f'{share:.0%} of the tokens are held out, more than the {options.heldout:.0%} asked for, as there are only '
            f'{facts["documents"]:,} documents: cut them into smaller ones, for example chapters.'
        )
    lost = sum(facts['dropped'].values())
    broken = lost - facts['dropped'].get('empty document', 0)
    if broken:
        found.append(f'{broken:,} documents or files were broken and left out; the first of each kind are listed.')
    return found
