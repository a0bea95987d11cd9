"""Named entities or other tags of words, from CoNLL column files (CoNLL-2003 or your own).

    python -m bertjax.main --config=configs/ner.py --workdir=out/ner --config.data=DIR --config.init=CHECKPOINT

DIR has train.txt, dev.txt and test.txt (or eng.train, eng.testa, eng.testb) with one word per line. Spaces or tabs
separate the columns. The last column has the tags (IOB1, IOB2, BIOES …). A blank line ends a sentence, and -DOCSTART-
begins a document. DIR can also have train.jsonl … with {"tokens": [words], "ner_tags": [tags]}, or Parquet or Arrow
files with these two columns. Without --config.data, CoNLL-2003 is read from tensorflow-datasets, which must have
prepared it. CHECKPOINT should be a cased model.

Hardware: one accelerator; a base model on CoNLL-2003 (14,041 sentences, 3 epochs) is 1,317 steps of 32. Not run here at
that size; NCBI-disease with a small model takes minutes on 2 CPU cores (docs/performance.md).

Arguments, as in --config=configs/ner.py:context or :features=sum_last_four,units=384

| argument       | meaning                                                                                            |
|----------------|----------------------------------------------------------------------------------------------------|
| context        | fill rows with the surrounding sentences, as in the paper; more accurate and slower                |
| plain          | tags other than entities, such as parts of speech; scored by accuracy                              |
| features=NAME  | the paper's feature-based approach, a two-layer BiLSTM on layers of a frozen encoder; NAME is      |
|                | embeddings, second_to_last, last, sum_last_four, concat_last_four or sum_all                       |
| units=N        | units of each direction of the BiLSTM; default: 768, as in the paper; 0: no BiLSTM                 |

Expected F1 on CoNLL-2003 (arXiv 1810.04805, table 7, with `context`; not run here):

| model                                  | dev  | test |
|----------------------------------------|------|------|
| large, tuned                           | 96.6 | 92.8 |
| base, tuned                            | 96.4 | 92.4 |
| base, features=embeddings              | 91.0 |      |
| base, features=second_to_last          | 95.6 |      |
| base, features=last                    | 94.9 |      |
| base, features=sum_last_four           | 95.9 |      |
| base, features=concat_last_four        | 96.1 |      |
| base, features=sum_all                 | 95.5 |      |
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument
from bertjax.errors import UserError

LAYERS = ('embeddings', 'second_to_last', 'last', 'sum_last_four', 'concat_last_four', 'sum_all')


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, features=('', *LAYERS), units=768, context=False, plain=False)
    if args.units != 768 and not args.features:
        fix = 'for example features=last,units=256; for a BiLSTM on a fine-tuned encoder set config.task.bilstm_units'
        raise UserError('--config=FILE:units', f'{args.units} without features', 'features=NAME as well', fix)
    config = finetuning_config(
        'tagging',
        scheme='plain' if args.plain else 'auto',  # or iob1, iob2, bioes, bilou, bmes, ioe1, ioe2
        context=args.context,
        layers=args.features or 'last',
        bilstm_units=args.units if args.features else 0,
        frozen=bool(args.features),
    )
    config.learning_rate = 5e-5
    if args.features:
        config.trainable = 'head'
        config.learning_rate = 1e-3
        config.epochs = 10.0
        config.export_formats = 'orbax'  # transformers has no such class
    return config
