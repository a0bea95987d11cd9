"""Classification or regression of texts or pairs of texts, from CSV, TSV or JSON lines with named columns.

    python -m bertjax.main --config=configs/classify.py --workdir=out/spam --config.init=CHECKPOINT --config.data=DIR

DIR has train.csv and, if available, dev.csv (or val.csv …) and test.csv. Their columns are `text` and `label`. Other
formats are .tsv, .jsonl, .json, .parquet, .arrow, and folders that `datasets` saved. Text files may be gzipped. DIR can
also be a single file. If there is no dev file, a tenth of the training records becomes dev. For other column names, set
--config.task.text_a=message --config.task.label=category. This command labels the texts of FILE, one per line:

    python -m bertjax.main --config=configs/classify.py --workdir=out/spam --config.run=predict --config.input=FILE

You can write a recipe in a file of your own. The following file classifies spam, from a table without a header:

    from bertjax.config.recipes import finetuning_config

    def get_config():
        config = finetuning_config('classification', columns=('verdict', 'mail'), text_a='mail', label='verdict')
        config.data = 'mails.tsv'
        config.task.labels = ('ham', 'spam')
        config.task.metric = 'f1'  # F1 of the second label
        config.task.long = 'head_tail'
        config.seq_len = 512
        return config

Arguments, as in --config=configs/classify.py:long=windows,seq=512

| argument   | meaning                                                                                                |
|------------|--------------------------------------------------------------------------------------------------------|
| regression | the label is a number; scored by Spearman's correlation                                                |
| seq=N      | maximum number of tokens in a sequence; default 128                                                    |
| long=HOW   | how to read longer texts. truncate (default): only the start; head_tail: a quarter of the tokens from  |
|            | the start, the rest from the end (arXiv 1905.05583: 128 and 382 tokens, the best of its table 2);      |
|            | windows: the whole text in overlapping windows, whose outputs are averaged                             |

Hardware: any; 4,000 sentences with a model of 6 layers and width 384 take minutes on 2 CPU cores. A base model takes
about a minute on one accelerator (an estimate, not measured). At the start, the run prints the frequency of the
most frequent label; at the end, a confusion table.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, long='truncate', regression=False, seq=128)
    config = finetuning_config(
        'classification',
        regression=args.regression,
        long=args.long,
    )
    config.seq_len = args.seq
    return config
