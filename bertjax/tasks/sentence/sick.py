"""The file of predictions for SICK, in the format of task 1 of SemEval-2014."""

from collections.abc import Sequence

PAIR_ID, ENTAILMENT, RELATEDNESS = 'pair_ID', 'entailment_judgment', 'relatedness_score'
_JUDGMENTS = ['CONTRADICTION', 'ENTAILMENT', 'NEUTRAL']
_NOT_PREDICTED = 'NA'


def is_sick(column: str, labels: Sequence[str]) -> bool:
    """Whether predictions of this column, with these labels (none for scores), answer one half of the task."""
    return sorted(labels) == {ENTAILMENT: _JUDGMENTS, RELATEDNESS: []}.get(column)


def semeval_file(column: str, pair_ids: Sequence[str], answers: Sequence[str]) -> str:
    """Returns the text of the file that sick_evaluation.R reads: a header and three columns between tabs.

    The other half of the task is NA in every row, as the script requires.

    Args:
      column: The predicted column, ENTAILMENT or RELATEDNESS.
      pair_ids: The identifiers of the records.
      answers: The answer for each record.
    """
    rows = [(PAIR_ID, ENTAILMENT, RELATEDNESS)]
    for pair_id, answer in zip(pair_ids, answers, strict=True):
        rows.append((pair_id, *(answer if column == name else _NOT_PREDICTED for name in (ENTAILMENT, RELATEDNESS))))
    return ''.join('\t'.join(row) + '\n' for row in rows)
