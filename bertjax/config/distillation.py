"""The keys of the group config.distill."""

import dataclasses

from bertjax.config.ranges import duration, either, integer, number, special, word
from bertjax.config.run import RATE, TEXT
from bertjax.config.schema import RUN, STATE, key

_FACTOR = number(0, 1e6)
_RATE_OR_DEFAULT = either(RATE, special(0.0, 'config.learning_rate'))
_BLOCKS = r'\d{1,4}(,\d{1,4})*'
_BLOCK_NUMBERS = "indices of the teacher's blocks, such as 0,2,4"
_STUDENT_INIT = word(f'alternate|init|random|{_BLOCKS}', f"'alternate', 'init', 'random', or {_BLOCK_NUMBERS}")
_LAYERS = word(f'uniform|alternate|{_BLOCKS}', f"'uniform', 'alternate', or {_BLOCK_NUMBERS}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationKeys:
    """The group config.distill of a pre-training run.

    The defaults come from DistilBERT (arXiv 1910.01108; huggingface/transformers, research_projects/distillation).
    """

    teacher: str = key('', TEXT, "a workdir, a model's directory or `org/name` on the hub", change=RUN)
    student_init: str = key('alternate', _STUDENT_INIT, 'initialize from the teacher, from `init`, or at random')
    layers: str = key('uniform', _LAYERS, "the blocks of the teacher that the student's blocks imitate")
    temperature: float = key(2.0, number(0.01, 1000), 'the temperature of the soft targets')
    soft: float = key(5.0, _FACTOR, "the weight of the loss on the teacher's outputs")
    hard: float = key(2.0, _FACTOR, 'the weight of the loss on labels or masked pieces')
    cosine: float = key(1.0, _FACTOR, 'the weight of the cosine loss on the last hidden states')
    hidden: float = key(0.0, _FACTOR, 'the weight of the loss on hidden states')
    attention: float = key(0.0, _FACTOR, 'the weight of the loss on attention scores')
    embeddings: float = key(0.0, _FACTOR, 'the weight of the loss on embeddings')
    projection: bool = key(False, about='learn a projection to compare hidden states of different widths', change=STATE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDistillationKeys(DistillationKeys):
    """The group config.distill of a task."""

    num_layers: int = key(
        0, integer(0, 10_000), "number of blocks; 0: that of `student_init` or `init`, else half the teacher's"
    )
    intermediate: int | str = key(0, duration('%', 'epochs'), 'the length of a first stage without `soft` and `hard`')
    intermediate_learning_rate: float = key(0.0, _RATE_OR_DEFAULT, 'the learning rate of the first stage')
    augment: int = key(0, integer(0, 1000), 'the number of copies of each training row, with some words replaced')
    augment_probability: float = key(0.4, number(0, 1, above=True), 'the probability of replacing a single-piece word')
    augment_candidates: int = key(15, integer(1, 1000), 'replacements are drawn from this many most probable words')
    augment_model: str = key(
        '', TEXT, 'the model that proposes words; empty: the teacher, which needs an MLM head', change=RUN
    )
