"""Predictions of a masked language model for [MASK], and scores of texts.

    python -m bertjax.main --config=configs/fill.py --workdir=out/tiny --config.fill.text='the [MASK] of a list'

The model, with an MLM or NSP head, is that of --workdir, or of --config.init=PATH, as for bertjax.load. Instead of one
text, --config.input=FILE has one text per line, or records with a field `text`; the answers are JSON lines in
WORKDIR/fill/. --config.input=- reads standard input and writes JSON lines to standard output.

Arguments, as in --config=configs/fill.py:score

| argument | meaning                                                                                           |
|----------|---------------------------------------------------------------------------------------------------|
| masks    | the most probable pieces for each [MASK], with probabilities; with --config.fill.jointly, for all |
|          | masks of a text together                                                                          |
| score    | pseudo-log-likelihood and pseudo-perplexity, masking each piece in turn (arXiv 1910.14659)        |
| pairs    | the probability that one text follows another                                                     |
| continue | append masks and fill them from left to right; a slow and weak generator                          |

Hardware: any; two CPU cores fill some hundred masks per second with a model of 6 layers and width 384. A score costs as
much as one mask per piece of the text.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, ask='masks')
    return inference_config(
        'fill',
        ask=chosen.ask,  # masks, score, pairs, continue
    )
