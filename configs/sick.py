"""SICK: entailment (SICK-E) or relatedness (SICK-R) of 9,840 pairs of sentences.

    python -m bertjax.main --config=configs/sick.py:e --workdir=out/sick_e --config.init=CHECKPOINT --config.data=DIR

DIR has SICK_train.txt, SICK_trial.txt (dev) and SICK_test_annotated.txt of SemEval-2014, task 1, with the columns
pair_ID, sentence_A, sentence_B, relatedness_score and entailment_judgment, separated by tabs.

The argument is e (default; three labels, scored by accuracy) or r (a number from 1 to 5, scored by Pearson's
correlation).

Hardware: a base model on one accelerator takes a minute (4,439 pairs, 3 epochs, 417 steps of 32); not run here.
Expected results: BERT should beat the best systems of SemEval-2014 (Marelli et al. 2014). On SICK-E's test set, their
accuracy is 84.6 %; always answering NEUTRAL gives 56.7 %. On SICK-R, their Pearson correlation is 0.828.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import finetuning_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, part=('e', 'r'))
    scores = args.part == 'r'
    return finetuning_config(
        'classification',
        text_a='sentence_A',
        text_b='sentence_B',
        label='relatedness_score' if scores else 'entailment_judgment',
        train='SICK_train.txt',
        dev='SICK_trial.txt',
        test='SICK_test_annotated.txt',
        format='tsv',
        labels=() if scores else ('ENTAILMENT', 'NEUTRAL', 'CONTRADICTION'),
        regression=scores,
        metric='pearson' if scores else 'accuracy',
    )
