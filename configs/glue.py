"""GLUE: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI; and the diagnostic set AX with an MNLI model.

    python -m bertjax.main --config=configs/glue.py:rte --workdir=out/rte --config.init=CHECKPOINT --config.data=DIR

DIR is the output folder of GLUE's download script, or the folder of one task. Without --config.data, the data is read
from tensorflow-datasets, which must have prepared it. CHECKPOINT is the workdir of a pre-training, a Hugging Face
directory, or org/name on the hub.

The next command runs all tasks. It then writes a table with the average, and submission.zip for gluebenchmark.com.
After an interruption, the same command continues:

    python -m bertjax.main --config=configs/glue.py:all --workdir=out/glue --config.init=CHECKPOINT --config.data=glue

Arguments, as in --config=configs/glue.py:mrpc,grid or :mnli,seq=256

| argument | meaning                                                                                                  |
|----------|----------------------------------------------------------------------------------------------------------|
| NAME     | cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; default: rte                                         |
| all      | all nine, each in WORKDIR/NAME; --config.benchmark='rte:epochs=10;cola:seeds=5' changes single tasks     |
| seq=N    | maximum number of tokens in a sequence; default: 128                                                     |
| grid     | a sweep over the paper's learning rates 5e-5, 4e-5, 3e-5, 2e-5 and batches of 16 and 32, 3 epochs each   |
| seeds=N  | a sweep over N seeds; with `grid`, N seeds for every combination                                         |

For the GLUE server, the first command with --config.run=predict --config.split=test writes
WORKDIR/predictions/test/RTE.tsv and a .zip. For MNLI, --config.split=test,test_mismatched,ax gives MNLI-m.tsv,
MNLI-mm.tsv and AX.tsv.

Hardware: one accelerator; a base model on MNLI (392,702 pairs, 3 epochs) is 36,816 steps of 32. Not run here at that
size. RTE with a model of 6 layers and width 384 takes minutes on 2 CPU cores (docs/performance.md).

Expected results (not run here): dev from the README of transformers' distillation examples (bert-base-uncased), test
from arXiv 1810.04805, table 1 (F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA).

| model       | MNLI m/mm | QQP  | QNLI | SST-2 | CoLA | STS-B | MRPC | RTE  |
|-------------|-----------|------|------|-------|------|-------|------|------|
| base, dev   | 84.7      | 89.6 | 91.8 | 92.7  | 56.3 | 89.0  | 88.6 | 69.3 |
| base, test  | 84.6/83.4 | 71.2 | 90.5 | 93.5  | 52.1 | 85.8  | 88.9 | 66.4 |
| large, test | 86.7/85.9 | 72.1 | 92.7 | 94.9  | 60.5 | 86.5  | 89.3 | 70.1 |

The paper excludes WNLI, because all submitted models were worse than the most frequent answer (65.1 on test).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument, sweep
from bertjax.errors import UserError


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, task='rte', seq=128, grid=False, seeds=0)
    config = finetuning_config('glue', task=args.task)
    config.seq_len = args.seq
    if args.task.lower() == 'all':
        config.run = 'benchmark'
    if args.seeds < 0:
        raise UserError('--config=FILE:seeds', str(args.seeds), 'a number of seeds from 0', 'for example seeds=5')
    values = {'seeds': tuple(range(args.seeds))}
    if args.grid:  # section 4.1 of the paper, and the smaller batch of its appendix A.3
        values |= {'learning_rate': (5e-5, 4e-5, 3e-5, 2e-5), 'batch_size': (16, 32)}
    config.sweep = sweep(**values)
    return config
