"""The best encoder for a given time. All settings follow from the text, the argument and the machine.

    python -m bertjax.main --config=configs/budget.py:25m --workdir=out/mine --config.corpus='texts/*.txt'

The argument is a wall time (90s, 25m, 2h, 1d) or a number of floating-point operations (3e15). The run trains a
vocabulary, chooses the size of the model and of its batches, and trains the model. For a wall time, the sizes depend on
the measured speed of this machine. The learning rate reaches 0 when the time or the operations are used up; the last
evaluation and the export follow. Without config.corpus, the run reads the documentation of Python.

The architecture is ModernBERT's without local attention: pre-norm, rotary positions, gated MLPs, no biases. The
optimizer is Muon with AdamW. Rows are contiguous text, and 40 % of their tokens are masked. docs/pretraining.md gives
the reasons for these choices.

Hardware: any machine. A minute on two CPU cores gives 2 layers of width 128.

With `pairs`, as in `budget.py:25m,pairs`, the rows are BERT's pairs with segments, for tasks on pairs of texts. The
run then exports to Orbax, because no class of transformers has this architecture.

| argument | meaning                                       |
|----------|-----------------------------------------------|
| budget   | the time or the operations; default: `10m`    |
| pairs    | also predict next sentences                   |
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import budget_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, budget='10m', pairs=False)
    return budget_config(args.budget, args.pairs)
