"""Predictions of a masked language model for [MASK], and scores of texts.

    python -m bertjax.main --config=configs/fill.py --workdir=out/tiny --config.fill.text='the [MASK] of a list'

The model comes from --workdir, or from --config.init=PATH with any path that bertjax.load accepts. The model needs an
MLM head, or an NSP head for `pairs`. Instead of --config.fill.text, --config.input=FILE gives a file with a text per
line, or with records that have a field `text`. The answers are JSON lines in WORKDIR/fill/. --config.input=- reads
standard input and writes the answers to standard output: as tables on a terminal, otherwise as JSON lines.

Arguments, as in --config=configs/fill.py:score

| argument | meaning                                                                                           |
|----------|---------------------------------------------------------------------------------------------------|
| masks    | default: the most probable pieces for each [MASK]; with --config.fill.jointly, the masks of a     |
|          | text are filled one after another                                                                 |
| score    | pseudo-log-likelihood and pseudo-perplexity, masking each piece in turn (arXiv 1910.14659)        |
| pairs    | the probability that one text follows another                                                     |
| continue | append masks and fill them from left to right; a slow and weak generator                          |

Hardware: any; two CPU cores fill a few hundred masks per second with a model of 6 layers and width 384. Scoring a
text costs as much as filling one mask per piece.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, ask='masks')
    return inference_config(
        'fill',
        ask=args.ask,  # masks, score, pairs, continue
    )
