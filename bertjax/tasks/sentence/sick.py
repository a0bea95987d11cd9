"""The file that task 1 of SemEval-2014 evaluates predictions for SICK from."""

from collections.abc import Sequence

PAIR_ID, ENTAILMENT, RELATEDNESS = 'pair_ID', 'entailment_judgment', 'relatedness_score'
_JUDGMENTS = ['CONTRADICTION', 'ENTAILMENT', 'NEUTRAL']
_NOT_PREDICTED = 'NA'


def is_sick(column: str, labels: Sequence[str]) -> bool:
    """Whether predictions of this column, with these labels or none for scores, answer a half of the task."""
    return sorted(labels) == {ENTAILMENT: _JUDGMENTS, RELATEDNESS: []}.get(column)


def semeval_file(column: str, pair_ids: Sequence[str], answers: Sequence[str]) -> str:
    """The file as sick_evaluation.R reads it: three columns between tabs with a header; the half of the task that is
    not predicted is NA in every row, as the script asks for.

    Args:
      column: that is predicted, ENTAILMENT or RELATEDNESS.
      pair_ids: of the records.
      answers: to each.
    """
    rows = [(PAIR_ID, ENTAILMENT, RELATEDNESS)]
    for pair_id, answer in zip(pair_ids, answers, strict=True):
        rows.append((pair_id, *(answer if column == name else _NOT_PREDICTED for name in (ENTAILMENT, RELATEDNESS))))
    return ''.join('\t'.join(row) + '\n' for row in rows)
