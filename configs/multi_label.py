"""Some labels, one or none for each text, or pair of texts, from CSV, TSV or JSON lines with named columns.

    python -m bertjax.main --config=configs/multi_label.py --workdir=out/topics --config.init=CHECKPOINT --config.data=DIR

DIR is as for configs/classify.py. The column `label` has cells such as `sport|politics`, empty for no label, or in JSON
lists: ["sport", "politics"]. Columns of 0 and 1, one for each label, are named instead:

    python -m bertjax.main --config=configs/multi_label.py --workdir=out/toxic --config.init=CHECKPOINT --config.data=DIR --config.task.label_columns="('toxic','threat','insult')"

Each label is a decision of its own: the sigmoid of its logit, compared with config.task.threshold. The loss is torch's
BCEWithLogitsLoss, as transformers has it for problem_type='multi_label_classification', which the export says.

Arguments, as in --config=configs/multi_label.py:long=windows,seq=512

| argument | what                                                                                                   |
|----------|--------------------------------------------------------------------------------------------------------|
| seq=N    | tokens of the longest sequence, 128                                                                    |
| long=HOW | what becomes of longer texts: truncate, head_tail or windows, see configs/classify.py                  |

Hardware: whatever there is; 4,000 sentences with a model of 6 layers and width 384 take minutes on 2 CPU cores (not run
here at that size). What to expect depends on the data: how often each label occurs is printed first, precision, recall
and F1 of each last.
"""  # noqa: E501

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, long='truncate', seq=128)
    config = finetuning_config(
        'multi_label',
        long=chosen.long,
    )
    config.seq_len = chosen.seq
    return config
