"""Finds the text from which a pre-training example was made."""

import dataclasses

import numpy as np

from bertjax.data import rows
from bertjax.data.pretraining import PretrainingExamples


@dataclasses.dataclass(frozen=True)
class Source:
    """The text of an example. A range is (index of the first token in the split, number of tokens).

    Attributes:
      cycle, plan, slot: The example is number `slot` of `plan`, in the given pass over all plans.
      label: 0 if B follows A or the order is correct, 1 otherwise.
      paired: Whether the pair has a label.
      a_document, b_document: The documents of A and B; the first and the last document of a row without pairs.
      a_drawn, b_drawn: The ranges of whole sentences, before truncation.
      a, b: The ranges after truncation. A row without pairs has only A, and the length of B is 0.
    """

    cycle: int
    plan: int
    slot: int
    label: int
    paired: bool
    a_document: int
    b_document: int
    a_drawn: tuple[int, int]
    b_drawn: tuple[int, int]
    a: tuple[int, int]
    b: tuple[int, int]


def documents_of(split, tokens: np.ndarray) -> np.ndarray:
    """The document of each token, given by its index in the split."""
    return np.searchsorted(split.sentence_offsets[split.document_offsets], tokens, 'right') - 1


def source_of(examples: PretrainingExamples, n: int) -> Source:
    """Returns the source of example `n`, with the steps of `PretrainingExamples.batch`."""
    slots = examples._locate(np.array([n]))
    numbers = {name: getattr(slots, name)[0].item() for name in ('cycle', 'plan', 'slot')}
    if not examples.pairs.paired:
        start, length, documents = slots.chunks[0].item()
        first, row, none = slots.document[0].item(), (start, length), (start + length, 0)
        return Source(**numbers, label=0, paired=False, a_document=first, b_document=first + documents - 1,
                      a_drawn=row, b_drawn=none, a=row, b=none)  # fmt: skip
    drawn = examples._draw(slots)
    truncated = rows.truncate(drawn, examples.seq_len, examples.phase_seed, slots.key)
    a_document, b_document = (documents_of(examples.split, x)[0].item() for x in (drawn.a_start, drawn.b_start))
    return Source(
        **numbers,
        paired=drawn.paired[0].item(),
        a_document=a_document,
        b_document=b_document if drawn.b_length[0] else a_document,
        label=drawn.labels[0].item(),
        a_drawn=(drawn.a_start[0].item(), drawn.a_length[0].item()),
        b_drawn=(drawn.b_start[0].item(), drawn.b_length[0].item()),
        a=(truncated.a_start[0].item(), truncated.a_length[0].item()),
        b=(truncated.b_start[0].item(), truncated.b_length[0].item()),
    )
