"""The keys of a distillation, config.distill."""

import dataclasses

from bertjax.config.ranges import duration, either, number, only, whole, word
from bertjax.config.run import RATE, TEXT
from bertjax.config.schema import STATE, key

_FACTOR = number(0, 1e6)
_OWN_RATE = either(RATE, only(0.0, "the run's own"))
_BLOCKS = r'\d{1,4}(,\d{1,4})*'
_LISTED = "numbers of the teacher's blocks, such as 0,2,4"
_BEGINNINGS = word(f'alternate|init|random|{_BLOCKS}', f"'alternate', 'init', 'random', or {_LISTED}")
_FOLLOWED = word(f'uniform|alternate|{_BLOCKS}', f"'uniform', 'alternate', or {_LISTED}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationKeys:
    """config.distill, with the defaults of DistilBERT (arXiv 1910.01108; huggingface/transformers,
    research_projects/distillation)."""

    teacher: str = key('', TEXT, "a workdir, a model's directory or `org/name` on the hub")
    student_init: str = key(
        'alternate', _BEGINNINGS, 'first weights: blocks of the teacher, those of `init`, or random'
    )
    layers: str = key('uniform', _FOLLOWED, 'the block of the teacher that each block of the student follows')
    temperature: float = key(2.0, number(0.01, 1000), 'temperature of the soft targets')
    soft: float = key(5.0, _FACTOR, "weight of the loss on the teacher's outputs")
    hard: float = key(2.0, _FACTOR, 'weight of the loss on labels or masked pieces')
    cosine: float = key(1.0, _FACTOR, 'weight of the cosine loss on the last hidden states')
    hidden: float = key(0.0, _FACTOR, 'weight of the loss on hidden states')
    attention: float = key(0.0, _FACTOR, 'weight of the loss on attention scores')
    embeddings: float = key(0.0, _FACTOR, 'weight of the loss on embeddings')
    projection: bool = key(
        False, about='compare hidden states of different widths by a learned projection', change=STATE
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDistillationKeys(DistillationKeys):
    """config.distill of a task."""

    num_layers: int = key(0, whole(0, 10_000), "blocks of a student that starts from the teacher's; 0: half of them")
    intermediate: int | str = key(0, duration('%', 'epochs'), 'length of a first stage with the hidden losses only')
    intermediate_learning_rate: float = key(0.0, _OWN_RATE, 'learning rate of that stage; 0: `learning_rate`')
    augment: int = key(0, whole(0, 1000), 'copies of each training row with some words replaced')
    augment_probability: float = key(0.4, number(0, 1, above=True), 'probability that a word of one piece is replaced')
    augment_candidates: int = key(15, whole(1, 1000), 'number of the most probable words to draw the replacement from')
    augment_model: str = key(
        '', TEXT, 'the masked language model that proposes the words; empty: the teacher, if it is one'
    )
