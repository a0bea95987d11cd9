"""SQuAD: find the span of a text that answers a question; 1.1, or 2.0 with unanswerable questions.

    python -m bertjax.main --config=configs/squad.py:v1 --workdir=out/squad1 --config.init=CHECKPOINT --config.data=DIR
    python -m bertjax.main --config=configs/squad.py:v2 --workdir=out/squad2 --config.init=CHECKPOINT --config.data=DIR

DIR has train-v1.1.json and dev-v1.1.json (or v2.0), plain or gzipped. Or it has train.jsonl, val.parquet etc. with one
question per row. config.task.train_file, dev_file and test_file set other names. Without --config.data, squad/v1.1 or
squad/v2.0 is read from tensorflow-datasets, which must have prepared it.

The learning rate is 5e-5. SQuAD 1.1 has batches of 32 and 3 epochs; 2.0 has batches of 48 and 2 epochs (arXiv
1810.04805, sections 4.2 and 4.3). Windows have 384 pieces, as in google-research/bert, run_squad.py. For a small
machine: --config.seq_len=256 --config.batch_size=16.

Hardware: one GPU or TPU chip with 16 GB for base in float32; --config.model.dtype=bfloat16 needs less memory. An
epoch of SQuAD 1.1 has about 90,000 windows. See docs/performance.md for runs on a CPU.

Expected EM/F1 on dev (arXiv 1810.04805, tables 2 and 3): 1.1 base 80.8/88.5, large 84.1/90.9; 2.0 large 78.7/81.9.
The values for 2.0 are best_exact/best_f1, because the paper chose the null threshold on dev. Not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument

VERSIONS = {'v1': '1.1', 'v2': '2.0'}


def get_config(argument: str = '') -> ConfigDict:
    version = parse_argument(argument, version=tuple(VERSIONS)).version
    config = finetuning_config('squad', version=VERSIONS[version])
    config.seq_len = 384
    config.learning_rate = 5e-5
    config.batch_size, config.epochs = (32, 3.0) if version == 'v1' else (48, 2.0)
    return config
