"""Hard negatives for training embeddings: similar texts of a corpus that are not the positives of a pair.

    python -m bertjax.main --config=configs/mine_negatives.py --workdir=out/mined --config.init=CHECKPOINT \
        --config.input=pairs.jsonl

CHECKPOINT can be any model that bertjax.load accepts. A model trained on the pairs finds the hardest negatives. The
input is a BEIR folder with qrels/train.tsv, a SQuAD file, or a file of pairs as for configs/embed.py:pairs. Negatives
come from the positives and known negatives of all pairs, the documents of BEIR, or the paragraphs of SQuAD. More texts
come from --config.mine_negatives.corpus=FILE, with a text per line or records with a field `text`. A text that is a
positive of the anchor in any record is excluded.

WORKDIR/negatives/pairs.jsonl has the pairs with a list `negative`, and the cosines in `scores`. To train with it:

    python -m bertjax.main --config=configs/embed.py:pairs --workdir=out/embed --config.init=CHECKPOINT \
        --config.data=out/mined/negatives/pairs.jsonl

A text that is more similar to the anchor than the positive is often an unlabeled positive.
--config.mine_negatives.range_min=10 skips the 10 most similar texts. --config.mine_negatives.relative_margin=0.05 keeps
only negatives whose cosine is at least 5 % below the positive's.

Hardware: any; the search is exact, in blocks on all devices. A CPU core embeds a few hundred short texts per second
with a model of 6 layers and width 384. After an interruption the same command continues.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config


def get_config() -> ConfigDict:
    """See the module's docstring."""
    return inference_config('mine_negatives')
