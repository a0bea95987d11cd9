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

from bertjax.config import parse_argument
from bertjax.recipe import finetuning_config


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, long='truncate', seq=128)
    config = finetuning_config(
        'multi_label',
        text_a='text',  # names of columns
        text_b='',  # of the second text of a pair; '': no pairs
        label='label',
        label_columns=(),  # of 0 and 1, a label each, in place of `label`
        separator='',  # between the labels of a cell; '': the first of | ; , that the training file has there
        threshold=0.5,  # a record has the labels whose probability is above it
        train='',  # names of files in config.data (or splits of `dataset`); '': train.csv, dev.csv, test.csv …
        dev='',
        test='',
        dev_fraction=0.1,  # share of the training records that is dev, where there is no dev file
        labels=(),  # in the order of their numbers; (): found in the training file, and sorted
        class_weights='',  # of a label that is there: 'balanced', or 'LABEL=2.5,LABEL=1'
        metric='',  # what the best run goes by: micro_f1, macro_f1, …, exact
        columns=(),  # names of the columns of files without a header
        format='auto',  # tsv, csv, jsonl or json, where the suffix does not tell
        dataset='',  # prepared by tensorflow-datasets, where config.data is ''
        long=chosen.long,
        stride=0,  # tokens between windows of a long text; 0: half a window
        bilstm_units=0,  # before the pooler; the paper's left-to-right ablation has 768
    )
    config.seq_len = chosen.seq
    return config
