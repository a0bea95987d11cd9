"""DistilBERT (arXiv 1910.01108): a student with half the blocks of its teacher learns from the teacher's outputs.

    python -m bertjax.main --config=configs/distilbert.py --workdir=out/distilbert --config.corpus=PATH \
        --config.distill.teacher=CHECKPOINT
    python -m bertjax.main --config=configs/distilbert.py:glue:rte --workdir=out/rte_student --config.data=glue \
        --config.distill.teacher=out/rte

The first command is the general distillation, on text. The student starts from blocks 0, 2, 4, 7, 9 and 11 of its
teacher. The loss is 5 x the divergence from the teacher's distributions at a temperature of 2, plus 2 x the MLM loss,
plus 1 x the cosine loss of the last hidden states. There are no sentence pairs. The student trains for three passes
over the corpus, with batches of 4,096 sequences of 512 and Adam at 5e-4. Unlike in the original, only masked positions
have soft targets, and the student keeps the segment embedding. For a teacher that is not a BERT-base, such as a
ModernBERT, set the student's sizes in --config.model. The teacher determines the other fields of config.model.

The second command learns a task from a fine-tuned model. The text after the colon is a recipe of a task with its
argument, as in :squad:v1, :ner or :classify. To start the student from weights other than its teacher's blocks, use
--config.init=out/distilbert --config.distill.student_init=init

Hardware: the authors trained on Wikipedia and books for about 90 hours on 8 V100 of 16 GB. Their student has 60 % of
the size of BERT-base, is 1.6 times as fast, and keeps 97 % of its score. Expected results of the first command after
fine-tuning (the paper's tables 1 and 2, dev, bert-base-uncased in parentheses; not run here): MNLI 82.2 (86.7), SST-2
91.3 (92.7), RTE 59.9 (69.3), SQuAD 1.1 77.7/85.8 (81.2/88.5).
"""

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.recipes import distillation, pretraining_config
from bertjax.errors import UserError


def get_config(argument: str = '') -> ConfigDict:
    """`argument` is the recipe of a task with its argument, or '' for the general distillation."""
    if argument:
        return _task_distillation(argument)
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
    config.optimizer.update(b2=0.98, weight_decay=0.0, clip_norm=5.0)
    config.eval_every = '5%'
    return distillation(config)


def _task_distillation(recipe: str) -> ConfigDict:
    config = load_recipe(find_recipe(recipe))
    if 'task' not in config:
        fix = 'for example distilbert:glue:rte'
        raise UserError('--config=distilbert:RECIPE', recipe, 'a recipe of a task', fix)
    return distillation(config, soft=1.0, hard=1.0, cosine=0.0)
