"""A finished model in other formats: what is read becomes what is written, and nothing is trained.

    python -m bertjax.main --config=configs/convert.py --workdir=out/converted --config.init=INIT

INIT is what bertjax.load takes: a workdir of bertjax, a folder of Hugging Face (BERT, RoBERTa, XLM-R, DistilBERT), of
google-research/bert or of Orbax, or org/name on the hub. Without config.init it is the model of --workdir. Each format
of --config.convert.formats (hf, orbax, google, stablehlo, onnx, with commas between) is a folder of WORKDIR/export,
with the heads, the labels and the tokenizer. Nothing that is there is replaced. See docs/models.md.

Hardware: any with memory for the model, a CPU too.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import using_config


def get_config() -> ConfigDict:
    """The defaults."""
    return using_config('convert', formats='hf')  # with commas between: hf, orbax, google, stablehlo, onnx
