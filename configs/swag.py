"""Multiple choice: SWAG, CODAH, or your own questions.

    python -m bertjax.main --config=configs/swag.py --workdir=out/swag --config.data=DIR --config.init=CHECKPOINT

DIR has train.csv, val.csv and test.csv of github.com/rowanz/swagaf. An argument selects another layout, as in
--config=configs/swag.py:codah

| argument | DIR has                                                                                                |
|----------|--------------------------------------------------------------------------------------------------------|
| codah    | full_data.tsv of github.com/Websail-NU/CODAH, or one .tsv in its format; dev and test get a tenth each |
| jsonl    | train.jsonl and dev.jsonl with lines {"prompt": text, "endings": [texts], "label": number}; or .parquet |

Hardware: one accelerator; SWAG (73,546 questions, 3 epochs) is 13,791 steps of 16 questions, each with four sequences.
Not run here at that size; CODAH with a small model takes minutes on 2 CPU cores (docs/performance.md).

The learning rate, the batch size and the number of epochs are the paper's (arXiv 1810.04805, section 4.4). Expected
accuracy on SWAG's dev set: base 81.6, large 86.6 (table 4; not run here).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, layout=('swag', 'codah', 'jsonl'))
    # The shares apply to a single .tsv of CODAH, whose official splits are five folds.
    config = finetuning_config('multiple_choice', layout=args.layout, dev_share=0.1, test_share=0.1)
    config.batch_size = 16
    config.eval_batch_size = 32
    config.learning_rate = 2e-5
    config.epochs = 3.0
    return config
