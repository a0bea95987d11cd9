"""The file of predictions for SICK, in the format of task 1 of SemEval-2014."""

from collections.abc import Sequence

PAIR_ID, ENTAILMENT, RELATEDNESS = 'pair_ID', 'entailment_judgment', 'relatedness_score'
_JUDGMENTS = ['CONTRADICTION', 'ENTAILMENT', 'NEUTRAL']
_NOT_PREDICTED = 'NA'


def is_sick(column: str, labels: Sequence[str]) -> bool:
    """Whether the predicted column is one of the two columns of the SICK task.

    Args:
      column: The name of the column.
      labels: The labels of the column; empty for scores.
    """
    return sorted(labels) == {ENTAILMENT: _JUDGMENTS, RELATEDNESS: []}.get(column)


def semeval_file(column: str, pair_ids: Sequence[str], answers: Sequence[str]) -> str:
    """Returns the text of the input file of sick_evaluation.R: a header, and three columns separated by tabs.

    The other column is NA in every row, as the script requires.

    Args:
      column: The predicted column, ENTAILMENT or RELATEDNESS.
      pair_ids: The identifiers of the records.
      answers: The prediction for each record.
    """
    rows = [(PAIR_ID, ENTAILMENT, RELATEDNESS)]
    for pair_id, answer in zip(pair_ids, answers, strict=True):
        rows.append((pair_id, *(answer if column == name else _NOT_PREDICTED for name in (ENTAILMENT, RELATEDNESS))))
    return ''.join('\t'.join(row) + '\n' for row in rows)
