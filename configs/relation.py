"""Relation classification: the relation between two marked entities in a sentence (TACRED, ChemProt).

    python -m bertjax.main --config=configs/relation.py --workdir=out/tacred --config.init=CHECKPOINT --config.data=DIR

DIR has train.json, dev.json and test.json in TACRED's format: rows with `token`, `subj_start`, `subj_end`,
`obj_start`, `obj_end`, `subj_type`, `obj_type` and `relation`. Or DIR has train.jsonl, dev.jsonl and test.jsonl in the
format of SciBERT's ChemProt: a `text` with the two entities between << >> and [[ ]], a `label`, and, for
markers=typed and mask, `subj_type` and `obj_type`.

Arguments, as in --config=configs/relation.py:starts,markers=typed

| argument    | meaning                                                                                               |
|-------------|-------------------------------------------------------------------------------------------------------|
| markers=HOW | how to mark entities. entity (default): [unusedN] pieces around them (arXiv 1906.03158); typed: @, #  |
|             | and the type, as in @ * person * Ann @ (arXiv 2102.01373); mask: the type instead of the words;       |
|             | words: << >> and [[ ]] as words                                                                       |
| starts      | the head reads the outputs at both opening markers instead of [CLS] (arXiv 1906.03158, its best       |
|             | variant); transformers has no such class, so config.export_formats is orbax                          |
| seq=N       | maximum number of tokens in a sequence; default: 128                                                  |

The score is micro F1 over all labels except no_relation, as in TACRED's scorer. If the data has no such label, micro F1
equals the accuracy. For ChemProt, papers also report macro F1 (--config.task.metric=macro_f1).

Hardware: one accelerator; 3 epochs of TACRED's 68,124 sentences are 6,387 steps of 32. Not run here.
4,169 sentences of ChemProt with a model of 6 layers and width 384 take minutes on 2 CPU cores.

Expected results (not run here): On TACRED's test set, BERT-large with entity starts has an F1 of 70.1, or 71.5 after
the pre-training of arXiv 1906.03158. BERT-base with typed markers has 70.9 (arXiv 2102.01373). On ChemProt, SciBERT has
a micro F1 of 83.6 (arXiv 1903.10676).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, starts=False, markers='entity', seq=128)
    config = finetuning_config(
        'relation',
        markers=args.markers,
        pool='starts' if args.starts else 'cls',
    )
    config.seq_len = args.seq
    config.learning_rate = 3e-5
    if args.starts:
        config.export_formats = 'orbax'
    return config
