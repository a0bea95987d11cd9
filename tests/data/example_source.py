"""Finds the text from which a pre-training example was made."""

import dataclasses

import numpy as np

from bertjax.data import rows
from bertjax.data.pretraining import PretrainingExamples


@dataclasses.dataclass(frozen=True)
class Source:
    """Ranges are (first token in the split, tokens).

    Attributes:
      cycle, plan, slot: `slot` of `plan`, in the `cycle`-th time round all plans.
      label: 0 next or in order, 1 not next or swapped.
      paired: whether there is a pair to judge.
      a_document, b_document: where A and B are from; of rows without pairs, the first and the last document.
      a_drawn, b_drawn: the ranges of whole sentences, before truncation.
      a, b: what is left of them in the row. Rows without pairs are all A; without B its length is 0.
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


def source_of(examples: PretrainingExamples, n: int) -> Source:
    """Returns the source of example `n`, by the same steps as `PretrainingExamples.batch`."""
    slots = examples._locate(np.array([n]))
    place = {name: getattr(slots, name)[0].item() for name in ('cycle', 'plan', 'slot')}
    if not examples.pairs.paired:
        start, length, documents = slots.chunks[0].item()
        first, row, none = slots.document[0].item(), (start, length), (start + length, 0)
        return Source(**place, label=0, paired=False, a_document=first, b_document=first + documents - 1,
                      a_drawn=row, b_drawn=none, a=row, b=none)  # fmt: skip
    drawn = examples._draw(slots)
    left = rows.truncate(drawn, examples.seq_len, examples.phase_seed, slots.key)
    facts = {name: getattr(drawn, name)[0].item() for name in ('paired', 'a_document', 'b_document')}
    return Source(
        **place,
        **facts,
        label=drawn.labels[0].item(),
        a_drawn=(drawn.a_start[0].item(), drawn.a_length[0].item()),
        b_drawn=(drawn.b_start[0].item(), drawn.b_length[0].item()),
        a=(left.a_start[0].item(), left.a_length[0].item()),
        b=(left.b_start[0].item(), left.b_length[0].item()),
    )
