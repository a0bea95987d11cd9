"""Conversion of a finished model to other formats, without training.

    python -m bertjax.main --config=configs/convert.py --workdir=out/converted --config.init=INIT

INIT is a workdir of bertjax, a folder of Hugging Face (BERT, RoBERTa, XLM-R, DistilBERT, ModernBERT),
google-research/bert or Orbax, or org/name on the hub, as for bertjax.load; the default is the model of --workdir. For
each format of --config.convert.formats (hf, orbax, google, stablehlo, onnx, separated by commas) the command writes a
folder in WORKDIR/export with the heads, the labels and the tokenizer. It refuses to replace a folder. See
docs/models.md.

Hardware: any machine with memory for the model; a CPU is enough.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config


def get_config() -> ConfigDict:
    return inference_config('convert', formats='hf')  # some of hf, orbax, google, stablehlo, onnx, separated by commas
