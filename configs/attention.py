"""Statistics about the attention heads of any trained model, and a page that shows them.

    python -m bertjax.main --config=configs/attention.py --workdir=out/heads --config.init=INIT --config.input=FILE

INIT is a pre-trained or fine-tuned model, as for bertjax.load: a workdir, a directory of weights, or org/name on the
hub. The default is the model of --workdir. The suffix of FILE gives its format: one text per line (or a pair, separated
by a tab), JSON lines, a table or Parquet with a column `text`, or CoNLL-U. FILE can be '-' for standard input.
--config.attention.texts="('a text', 'another')" gives a few texts on the command line.

The files in WORKDIR/attention are attention.html, heads.json and weights.safetensors. CoNLL-U input adds
relations.json, and config.attention.compare adds changes.json. See docs/models.md.

Hardware: any; on 2 CPU cores a model of 6 layers and width 384 reads 2,001 sentences in under a minute.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config


def get_config() -> ConfigDict:
    """Returns the defaults; set config.attention.compare to compare with the model before fine-tuning."""
    return inference_config('attention')
