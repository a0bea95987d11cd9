"""The best encoder for a time: everything follows from the text and the argument.

    python -m bertjax.main --config=configs/budget.py:25m --workdir=out/mine --config.corpus='texts/*.txt'

The argument is a wall time (90s, 25m, 2h, 1d) or a number of floating-point operations (3e15). The run trains a
vocabulary, chooses the size of the model from the speed of this machine, trains, and lets the learning rate fall to 0
when the time is used up; the last evaluation and the export follow. Any key can be set instead. Without a text of your
own the run reads the documentation of Python.

The architecture is ModernBERT's without local attention: pre-norm, rotary positions, gated MLPs, no biases. The
optimiser is Muon with AdamW; rows are contiguous text, of which 40 % is masked. docs/pretraining.md shows what each of
these choices gives.

Hardware: any, because the size follows from its speed: 2 layers of width 128 for a minute of two CPU cores.

| argument | meaning                           |
|----------|-----------------------------------|
| budget   | the time or the operations; `10m` |
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import budget_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the argument."""
    return budget_config(parse_argument(argument, budget='10m').budget)
