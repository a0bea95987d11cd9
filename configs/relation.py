"""Relations: what two entities that are marked in a sentence have to do with each other (TACRED, ChemProt).

    python -m bertjax.main --config=configs/relation.py --workdir=out/tacred --config.init=CHECKPOINT --config.data=DIR

DIR holds train.json, dev.json and test.json as TACRED has them: rows of `token`, `subj_start`, `subj_end`, `obj_start`,
`obj_end`, `subj_type`, `obj_type`, `relation`. Or train.jsonl (dev, test) with a `text` in which the two entities stand
between << >> and [[ ]], and a `label`, as SciBERT's ChemProt has them.

Arguments, as in --config=configs/relation.py:starts,markers=typed

| argument    | what                                                                                                  |
|-------------|-------------------------------------------------------------------------------------------------------|
| markers=HOW | how the entities are shown: entity, marks around them that are [unusedN] pieces (arXiv 1906.03158);   |
|             | typed, with the type: @ * person * Ann @ (arXiv 2102.01373); mask, the type in place of the words;    |
|             | words, << >> and [[ ]] as words                                                                       |
| starts      | the head reads the states of the two opening marks instead of [CLS] (arXiv 1906.03158, the best of    |
|             | its variants); no class of transformers does, so there is no export to Hugging Face                   |
| seq=N       | tokens of the longest sequence, 128                                                                   |

Scored by micro F1 without the label no_relation, as TACRED's own scorer counts; where the data have no such label it is
the accuracy, and `--config.task.metric=macro_f1` is the other figure that papers have of ChemProt.

Hardware: one accelerator; TACRED's 68,124 sentences, 3 epochs of a base model, are 6,387 steps of 32. Not run here.
4,169 sentences of ChemProt with a model of 6 layers and width 384 take minutes on 2 CPU cores.

To expect (not run here): on TACRED's test set F1 of 70.1 with BERT-large and entity starts (arXiv 1906.03158; 71.5 with
its own pre-training), 70.9 with BERT-base and typed punctuation marks (arXiv 2102.01373); on ChemProt micro F1 of 83.6
with SciBERT (arXiv 1903.10676).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, starts=False, markers='entity', seq=128)
    config = finetuning_config(
        'relation',
        markers=chosen.markers,
        pool='starts' if chosen.starts else 'cls',
    )
    config.seq_len = chosen.seq
    config.learning_rate = 3e-5
    config.export = not chosen.starts
    return config
