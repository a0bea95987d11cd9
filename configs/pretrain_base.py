"""BERT-base (12 layers, width 768, 12 heads; 110 M parameters), the published recipe, and the paper's ablations.

    python -m bertjax.main --config=configs/pretrain_base.py --workdir=out/pretrain_base --config.corpus=PATH

The run has 1,000,000 steps of 256 sequences. The sequences have 128 positions in the first 90 % of the steps, then 512
(arXiv 1810.04805, appendix A.2, and google-research/bert).

Hardware: 16 chips of TPU v5e, in bfloat16. The compiler's estimate of a step (docs/scaling.md) gives 4.4 hours for the
first 90 % of the steps and 1.2 hours for the rest; not run here. Expected: held-out perplexity 3.99 (paper, table 6),
MNLI 84.6 on test (table 1).

Arguments, as in --config=configs/pretrain_base.py:ltr or :size=l6_d768_h3,masking=100/0/0

| argument      | meaning                                    | the paper's results                                    |
|---------------|--------------------------------------------|--------------------------------------------------------|
| size=NAME     | table 6: l3_d768_h12 l6_d768_h3            | perplexity 5.84 5.24                                   |
|               | l6_d768_h12 base l12_d1024_h16 large       | 4.68 3.99 3.54 3.23                                    |
| no_nsp        | table 5: no sentence-pair objective        | MNLI 83.9, SQuAD F1 87.9 (base: 84.4, 88.5)            |
| ltr           | table 5: left to right, and no NSP         | MNLI 82.1, SQuAD F1 77.8                               |
| masking=M/S/R | table 8: per cent of masked positions that | MNLI 84.2 for 80/10/10, 84.3 100/0/0, 84.1 80/0/20,    |
|               | become [MASK], stay the same or are random | 84.4 80/20/0, 83.7 0/20/80, 83.6 0/0/100               |
| cased         | train a cased vocabulary                   |                                                        |

The paper's LTR + BiLSTM (table 5: MNLI 82.1, SQuAD F1 84.9) differs from `ltr` only in fine-tuning: set
--config.task.bilstm_units=768 --config.export_formats=orbax.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import parse_argument, pretraining_config, two_phases
from bertjax.errors import UserError
from bertjax.model.config import SIZES


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, size=('base', *SIZES), no_nsp=False, ltr=False, masking='80/10/10', cased=False)
    config = pretraining_config(args.size, phases=two_phases())
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    config.model.causal = args.ltr
    config.vocab.lowercase = not args.cased
    if args.no_nsp or args.ltr:
        config.pairs.mode = 'doc_sentences'
    config.masking.mask, config.masking.random = _masking(args.masking)
    return config


def _masking(text: str) -> tuple[float, float]:
    """Parses '80/10/10' (MASK/SAME/RANDOM, the paper's order) to the shares of [MASK] and of random pieces."""
    try:
        mask, same, random = (float(part) / 100 for part in text.split('/'))
    except ValueError:
        mask, same, random = -1.0, 0.0, 0.0
    if min(mask, same, random) < 0 or abs(mask + same + random - 1) > 1e-6:
        expected = 'three percentages MASK/SAME/RANDOM that add up to 100'
        raise UserError('--config=FILE:masking', repr(text), expected, 'for example masking=80/10/10')
    return mask, random
