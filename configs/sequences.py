"""Sequences of symbols other than text: codes of patients' visits, visual words of a film, products of a basket.

    python -m bertjax.main --config=configs/sequences.py --workdir=out/codes --config.corpus=patients.jsonl

Each line has a document: a list of sentences, which are lists of symbols (or of token ids, with
--config.corpus_options.format=ids and --config.tokenizer=FILE):

    {"codes": [["E11", "I10"], ["C10AB", "N18"]], "segments": [0, 1]}

The vocabulary has the symbols of the corpus, or of --config.tokenizer=FILE with one symbol per line. With
--config.corpus_options.segments=2, the field `segments` gives the segment type of each sentence, 0 or 1. For more
types, also raise --config.model.num_segments. --config.embeddings=FILE.npy sets the initial embeddings of the symbols.
docs/data.md has an example with synthetic data and its results.

The size, 2 layers of width 128, suits vocabularies of a few thousand symbols. There are no sentence pairs: a row has
consecutive sentences of one document. --config.pairs.mode=nsp adds next sentence prediction, as for text.

Hardware: 2 CPU cores; the example of docs/data.md takes about a minute.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config('tiny')
    config.corpus = ''  # your data
    config.corpus_options.format = 'symbols'
    config.corpus_options.text_key = 'codes'
    config.corpus_options.heldout = 0.1
    config.vocab.family = 'symbols'
    config.pairs.mode = 'doc_sentences'
    config.seq_len = 32
    config.max_predictions = 5
    config.batch_size = 32
    config.steps = 1000
    config.optimizer.name = 'adamw'
    config.learning_rate = 1e-3
    config.warmup_fraction = 0.1
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0
    config.log_every = 50
    config.eval_every = '20%'
    config.eval_examples = 512
    config.checkpoint_every = '20%'
    return config
