"""Any classification or regression of texts, or of pairs of texts, from CSV, TSV or JSON lines with named columns.

    python -m bertjax.main --config=configs/classify.py --workdir=out/spam --config.init=CHECKPOINT --config.data=DIR

DIR holds train.csv, and dev.csv (or val.csv …) and test.csv if there are any, with the columns `text` and `label` (or
.tsv, .jsonl, .json, each also gzipped, as .gz, or .parquet, .arrow, or what `datasets` saved); or it is such a file
itself. Without a dev file a tenth of the training records is dev.
Other names: --config.task.text_a=message --config.task.label=category. For predictions of your own texts, a line each:

    python -m bertjax.main --config=configs/classify.py --workdir=out/spam --config.run=predict --config.input=FILE

A recipe of your own has ten lines. Mail that is spam or not, in a table without header:

    from bertjax.config.recipes import finetuning_config

    def get_config():
        config = finetuning_config('classification', columns=('verdict', 'mail'), text_a='mail', label='verdict')
        config.data = 'mails.tsv'
        config.task.labels = ('ham', 'spam')
        config.task.metric = 'f1'  # of the second label
        config.task.long = 'head_tail'
        config.seq_len = 512
        return config

Arguments, as in --config=configs/classify.py:long=windows,seq=512

| argument   | what                                                                                                   |
|------------|--------------------------------------------------------------------------------------------------------|
| regression | the label is a number; scored by Spearman's correlation                                                |
| seq=N      | tokens of the longest sequence, 128                                                                    |
| long=HOW   | what becomes of longer texts: truncate; head_tail, the first quarter and the last three quarters of    |
|            | what fits (arXiv 1905.05583: 128 and 382 tokens, the best of its table 2); windows, all of it in       |
|            | overlapping windows whose outputs are averaged                                                         |

Hardware: whatever there is; 4,000 sentences with a model of 6 layers and width 384 take minutes on 2 CPU cores, with a
base model a minute on one accelerator (not run here). What to expect depends on the data: the share of the most
frequent label is printed first, a confusion table last.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, long='truncate', regression=False, seq=128)
    config = finetuning_config(
        'classification',
        regression=chosen.regression,
        long=chosen.long,
    )
    config.seq_len = chosen.seq
    return config
