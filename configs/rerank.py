"""Rerankers (cross-encoders) that score a text for a query, trained on lists, scored pairs or a teacher's scores.

    python -m bertjax.main --config=configs/rerank.py --workdir=out/rerank --config.init=CHECKPOINT --config.data=DIR

DIR holds train.jsonl and, if available, dev.jsonl and test.jsonl (or .csv, .tsv, .parquet …). Keys such as
config.task.anchor=question name other columns. The columns determine the loss and the metric:

| columns                           | training                                                   | dev and test    |
|-----------------------------------|------------------------------------------------------------|-----------------|
| anchor, positive, negative (text  | softmax over the texts of an anchor                        | nDCG@10, MRR@10 |
| or list)                          |                                                            |                 |
| the same, and score: a teacher's  | MarginMSE to the teacher, or config.task.loss=mse, softmax | nDCG@10, MRR@10 |
| scores of positive and negatives  |                                                            |                 |
| text_a, text_b, score from 0 to 1 | binary cross-entropy, or config.task.loss=mse              | Spearman        |

The next command scores pairs. FILE has lines with a query, a tab and a text, or rows with text_a and text_b:

    python -m bertjax.main --config=configs/rerank.py --workdir=out/rerank --config.run=predict --config.input=FILE

Arguments, as in --config=configs/rerank.py:stsb

| argument  | meaning                                                                                                |
|-----------|--------------------------------------------------------------------------------------------------------|
| stsb      | GLUE's STS-B, a TSV with sentence1, sentence2 and score; the scores are divided by 5                   |
| seq=N     | maximum number of tokens in a pair; default: 256. Longer pairs lose the end of their longer text       |

With configs/distilbert.py:rerank, a trained reranker teaches a smaller one with the same tokenizer.

Hardware: any; STS-B with a model of 6 layers and width 384 takes minutes on 2 CPU cores. Expected results (not run
here): a Spearman correlation of 0.858 on STS-B's test set with BERT-base (arXiv 1810.04805, table 1).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument

_COLUMNS = {'': {}, 'stsb': {'text_a': 'sentence1', 'text_b': 'sentence2', 'max_score': 5.0}}


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, data=tuple(_COLUMNS), seq=256)
    config = finetuning_config('rerank', **_COLUMNS[chosen.data])
    config.seq_len = chosen.seq
    config.batch_size = 32 if chosen.data else 16  # a list has several sequences
    return config
