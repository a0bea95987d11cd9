"""What the heads of any trained model attend to, as figures and as a page.

    python -m bertjax.main --config=configs/attention.py --workdir=out/heads --config.init=INIT --config.input=FILE

INIT is what bertjax.load takes, a workdir, a directory of weights or org/name on the hub, pre-trained or tuned;
without config.init the workdir's own model is taken. FILE has a text a line (or a pair, with a tab between), is
JSON lines, a table or Parquet with a column `text`, or CoNLL-U, by its name; '-' is standard input. A few texts go with
--config.attention.texts="('a text', 'another')".

Written to WORKDIR/attention: attention.html, heads.json, weights.safetensors; of CoNLL-U relations.json; with
config.attention.compare changes.json. See docs/models.md.

Hardware: any; on 2 CPU cores a model of 6 layers and width 384 reads 2,001 sentences in under a minute.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import using_config


def get_config() -> ConfigDict:
    """The defaults; config.attention.compare names the model before a fine-tuning."""
    return using_config('attention')
