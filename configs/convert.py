"""Conversion of a finished model to other formats, without training.

    python -m bertjax.main --config=configs/convert.py --workdir=out/converted --config.init=INIT

INIT is any model that bertjax.load accepts: a workdir, org/name on the hub, or a folder of Hugging Face (BERT, RoBERTa,
XLM-R, DistilBERT, ModernBERT), google-research/bert or Orbax. The default is the model of --workdir. The command writes
a folder in WORKDIR/export for each format of --config.convert.formats: hf, orbax, google, stablehlo or onnx, separated
by commas. Each folder has the heads, the labels and the tokenizer. Existing folders are never replaced. See
docs/models.md.

Hardware: any machine with memory for the model; a CPU is enough.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config


def get_config() -> ConfigDict:
    return inference_config('convert', formats='hf')
