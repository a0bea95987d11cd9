"""DistilBERT (arXiv 1910.01108): a student of half the blocks of its teacher, which teaches it by its outputs.

    python -m bertjax.main --config=configs/distilbert.py --workdir=out/distilbert --config.corpus=PATH \
        --config.distill.teacher=CHECKPOINT
    python -m bertjax.main --config=configs/distilbert.py:glue:rte --workdir=out/rte_student --config.data=glue \
        --config.distill.teacher=out/rte

The first is the general distillation, on text: the student begins as every second block of its teacher, and learns
5 x the divergence from its teacher's distributions at a temperature of 2, 2 x its own MLM loss and 1 x the cosine of
the last hidden states; no sentence pairs. Batches of 4,096 sequences of 512, three passes over Wikipedia and books,
Adam at 5e-4. Unlike the original, whose soft targets are those of all tokens, those of masked positions are taken, and
the embedding of segments stays.

The second learns a task from a model that is tuned to it: everything after the colon is a recipe of a task with its
own argument, as in :squad:v1, :ner or :classify. A student that begins as something else than blocks of its teacher:
--config.init=out/distilbert --config.distill.student_init=init

Hardware: the authors took about 90 hours on 8 V100 of 16 GB. To expect of the first, then tuned (the paper's tables 1
and 2, dev, with bert-base-uncased in parentheses): 97 % of base with 60 % of its size, 1.6 times as fast; MNLI 82.2
(86.7), SST-2 91.3 (92.7), RTE 59.9 (69.3), SQuAD 1.1 77.7/85.8 (81.2/88.5). Not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.recipes import distillation, pretraining_config
from bertjax.errors import UserError


def get_config(argument: str = '') -> ConfigDict:
    """`argument` is the recipe of a task, with its own argument; none for general distillation."""
    if argument:
        return _of_task(argument)
    config = pretraining_config('l6_d768_h12')
    config.pairs.mode = 'doc_sentences'
    config.seq_len = 512
    config.max_predictions = 80
    config.batch_size = 4096
    config.grad_accum_steps = 8
    config.epochs = 3.0
    config.learning_rate = 5e-4
    config.warmup_fraction = 0.05
    config.optimizer.name = 'adamw'
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 5.0
    config.eval_every = '5%'
    return distillation(config)


def _of_task(recipe: str) -> ConfigDict:
    config = load_recipe(find_recipe(recipe))
    if 'task' not in config:
        fix = 'for example distilbert:glue:rte'
        raise UserError('--config=distilbert:RECIPE', recipe, 'a recipe of a task', fix)
    return distillation(config, soft=1.0, hard=1.0, cosine=0.0)
