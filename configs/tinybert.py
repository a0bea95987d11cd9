"""TinyBERT (arXiv 1909.10351): a thin student learns the hidden states and attention of its teacher's layers.

    python -m bertjax.main --config=configs/tinybert.py --workdir=out/tinybert --config.corpus=PATH \
        --config.distill.teacher=CHECKPOINT
    python -m bertjax.main --config=configs/tinybert.py:glue:rte --workdir=out/rte_tiny --config.data=glue \
        --config.distill.teacher=out/rte --config.init=out/tinybert

The first command is the general distillation. The student has 4 blocks of width 312 with random weights. They imitate
blocks 2, 5, 8 and 11 (counted from 0) of a base model. The losses are the squared distances of embeddings, hidden
states and attention scores (before mask and softmax). A learned projection maps the student's embeddings and hidden
states to the teacher's width. There is no MLM loss, so the export has no MLM head. The student trains for
three passes over the corpus, with batches of 256 sequences of 128.

The second command is the task distillation. The text after the colon is a recipe of a task with its argument. For 20
epochs, the student minimizes the same losses with a learning rate of 5e-5. For 3 more epochs, it learns the teacher's
outputs with a learning rate of 2e-5, without labels. --config.distill.augment=20
--config.distill.augment_model=CHECKPOINT adds the paper's augmentation, 20 copies of each row. docs/distillation.md
lists the differences from the paper.

Hardware: tested on CPUs only. The paper's student is 7.5 times smaller than its BERT-base teacher, 9.4 times as fast,
and keeps 96.8 % of its score. Expected results of both commands together on GLUE's test sets (table 1; teacher in
parentheses): MNLI-m 82.5 (83.9), SST-2 92.6 (93.4), RTE 66.6 (67.0), average 77.0 (79.5). Not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.recipes import distillation, pretraining_config
from bertjax.errors import UserError

_HIDDEN_LOSSES = {'cosine': 0.0, 'hidden': 1.0, 'attention': 1.0, 'embeddings': 1.0, 'projection': True}


def get_config(argument: str = '') -> ConfigDict:
    """`argument` is the recipe of a task with its argument, or '' for the general distillation."""
    if argument:
        return _task_distillation(argument)
    config = pretraining_config('l4_d312_h12')
    config.pairs.mode = 'doc_sentences'
    config.epochs = 3.0
    config.optimizer.name = 'adamw'
    config.warmup_fraction = 0.1
    config.eval_every = '5%'
    return distillation(config, student_init='random', soft=0.0, hard=0.0, **_HIDDEN_LOSSES)


def _task_distillation(recipe: str) -> ConfigDict:
    config = load_recipe(find_recipe(recipe))
    if 'task' not in config:
        raise UserError('--config=tinybert:RECIPE', recipe, 'a recipe of a task', 'for example tinybert:glue:rte')
    config.epochs = 23.0
    config.learning_rate = 2e-5
    return distillation(
        config,
        student_init='init',
        temperature=1.0,
        soft=1.0,
        hard=0.0,
        intermediate='20epochs',
        intermediate_learning_rate=5e-5,
        **_HIDDEN_LOSSES,
    )
