"""Embeddings: vectors of texts for search and similarity, trained on pairs, triplets, scored pairs or plain texts.

    python -m bertjax.main --config=configs/embed.py --workdir=out/embed --config.init=CHECKPOINT --config.data=DIR

DIR has train.jsonl and, if available, dev.jsonl and test.jsonl (or .csv, .tsv, .parquet …). Keys such as
config.task.anchor=question name other columns. The columns determine the loss and the metric:

| columns                          | training                                        | dev and test                 |
|----------------------------------|-------------------------------------------------|------------------------------|
| anchor, positive, maybe negative | in-batch negatives; `negative` may be a list    | search among all other texts |
| text_a, text_b, score            | CoSENT, or config.task.loss=cosine              | Spearman's correlation       |
| text                             | SimCSE: the text again with other dropout masks | -                            |

DIR can also be a BEIR folder (corpus.jsonl, queries.jsonl, and train.tsv, dev.tsv and test.tsv in qrels/), or a folder
with SQuAD's files. Each question of SQuAD searches all paragraphs of its split.

Arguments, as in --config=configs/embed.py:stsb

| argument | meaning                                                                                                 |
|----------|---------------------------------------------------------------------------------------------------------|
| pairs    | default: pairs, with or without negatives (configs/mine_negatives.py finds some); batches of 64         |
| stsb     | GLUE's STS-B, a TSV with the columns sentence1, sentence2 and score                                     |
| nli      | NLI triplets in the columns anchor, positive, negative; batches of 128                                  |
| simcse   | unlabeled text: one epoch, batches of 64, learning rate 3e-5 (arXiv 2104.08821)                        |
| pool=HOW | mean, cls, max …; the default is mean, or the pooling of a sentence-transformers CHECKPOINT             |
| seq=N    | maximum number of tokens in a text; default: 128                                                        |

With config.grad_accum_steps, batches of thousands of rows fit in memory, and all texts of a batch are still negatives.

Hardware: any; STS-B with a model of 6 layers and width 384 takes minutes on 2 CPU cores. Expected results (not run
here): a Spearman correlation of 0.847 on STS-B's test set with BERT-base (arXiv 1908.10084, table 2).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument

_COLUMNS = {'stsb': {'text_a': 'sentence1', 'text_b': 'sentence2', 'max_score': 5.0}}
_TRAINING = {
    'nli': {'batch_size': 128, 'epochs': 1.0},
    'simcse': {'batch_size': 64, 'epochs': 1.0, 'learning_rate': 3e-5},
    'stsb': {'epochs': 4.0},
    'pairs': {'batch_size': 64},
}


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, data=('pairs', *_TRAINING), pool='auto', seq=128)
    config = finetuning_config('embed', pool=args.pool, **_COLUMNS.get(args.data, {}))
    config.seq_len = args.seq
    for key, value in _TRAINING[args.data].items():
        config[key] = value
    return config
