"""What a masked language model fills in, and how well texts fit it.

    python -m bertjax.main --config=configs/fill.py --workdir=out/tiny --config.fill.text='the [MASK] of a list'

The model is that of --workdir, or any other with the head in question: --config.init=PATH, as bertjax.load takes it. In
place of one text, --config.input=FILE has a text a line, or records with a field `text`; the answers are JSON lines in
WORKDIR/fill/. --config.input=- reads standard input, and writes JSON lines to standard output.

Arguments, as in --config=configs/fill.py:score

| argument | what                                                                                              |
|----------|---------------------------------------------------------------------------------------------------|
| masks    | the most probable pieces for each [MASK], with probabilities; or, with --config.fill.jointly, for |
|          | all of a text together                                                                            |
| score    | pseudo-log-likelihood and pseudo-perplexity: each piece masked in turn (arXiv 1910.14659)         |
| pairs    | the probability that a text follows another                                                       |
| continue | masks appended and filled from left to right: slow and weak, a curiosity                          |

Hardware: whatever there is; two CPU cores fill some hundred masks a second with a model of 6 layers and width 384. A
score costs as many times that as the text has pieces.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import parse_argument, using_config


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, ask='masks')
    return using_config(
        'fill',
        ask=chosen.ask,  # masks, score, pairs, continue
    )
