"""Late interaction (ColBERT, arXiv 2004.12832): a vector of each token, for search and reranking.

    python -m bertjax.main --config=configs/colbert.py --workdir=out/colbert --config.init=CHECKPOINT --config.data=DIR

DIR has train.jsonl and, if available, dev.jsonl and test.jsonl (or .csv, .tsv, .parquet …). A BEIR folder also works.
Keys such as config.task.anchor=question name other columns. The columns determine the training and the metric:

| columns                          | training                                                 | dev and test           |
|----------------------------------|----------------------------------------------------------|------------------------|
| anchor, positive, maybe negative | in-batch negatives; with config.task.loss=softmax, only  | search among all other |
| (text or list)                   | the anchor's own                                         | texts by exact MaxSim  |
| the same, and score: a teacher's | KL divergence of the scores of each list, or             | search                 |
| scores of positive and negatives | config.task.loss=margin_mse                              |                        |
| text_a, text_b, score            | -                                                        | Spearman               |

Arguments, as in --config=configs/colbert.py:seq=300

| argument | meaning                                                    |
|----------|------------------------------------------------------------|
| seq=N    | maximum number of tokens in a document; default: 180       |
| query=N  | tokens of a query, filled with [MASK]; default: 32         |
| dim=N    | the width of the vectors; default: 128                     |

[unused0] marks a query, and [unused1] marks a document. config.task.query_prompt and config.task.document_prompt set
other markers. With config.grad_accum_steps, batches of thousands of rows fit in memory.

Hardware: one accelerator. The batch of 32 is the paper's (section 4.1). Expected results (not run here): an MRR@10 of
0.349 on MS MARCO's dev queries, if the model reranks BM25's first 1,000 texts for each query (table 1).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, seq=180, query=32, dim=128)
    config = finetuning_config('late_interaction', query_len=chosen.query, dim=chosen.dim)
    config.seq_len = chosen.seq
    config.learning_rate = 1e-5
    return config
