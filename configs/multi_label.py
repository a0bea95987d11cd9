"""Any number of labels for each text or pair of texts, from CSV, TSV or JSON lines with named columns.

    python -m bertjax.main --config=configs/multi_label.py --workdir=out/topics --config.init=CHECKPOINT --config.data=DIR

DIR has the files that configs/classify.py names. The column `label` has cells such as `sport|politics`, empty for no
label; in JSON it has lists: ["sport", "politics"]. Alternatively, name one column of 0 and 1 for each label:

    python -m bertjax.main --config=configs/multi_label.py --workdir=out/toxic --config.init=CHECKPOINT \
        --config.data=DIR --config.task.label_columns="('toxic','threat','insult')"

A text has a label if the sigmoid of the label's logit exceeds config.task.threshold. The loss is torch's
BCEWithLogitsLoss. The export sets problem_type='multi_label_classification', so transformers uses this loss too.

Arguments, as in --config=configs/multi_label.py:long=windows,seq=512

| argument | meaning                                                                                                |
|----------|--------------------------------------------------------------------------------------------------------|
| seq=N    | maximum number of tokens in a sequence; default: 128                                                   |
| long=HOW | how to read longer texts: truncate, head_tail or windows, see configs/classify.py                      |

Hardware: any; 4,000 sentences with a model of 6 layers and width 384 take minutes on 2 CPU cores (not run here at that
size). At the start, the run prints the frequency of each label; at the end, the precision, recall and F1 of each label.
"""  # noqa: E501

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, long='truncate', seq=128)
    config = finetuning_config(
        'multi_label',
        long=args.long,
    )
    config.seq_len = args.seq
    return config
