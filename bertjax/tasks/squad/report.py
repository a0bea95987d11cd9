"""Text reports on the data and the results of SQuAD."""

import re
from collections.abc import Mapping, Sequence

from bertjax.metrics.squad import score_answer
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.windows import find_answer, format_list

_WORD = re.compile(r'(?<!\S)(what|who|when|where|which|how (many|much)|how|why)(?!\S)')
_NO_MARKS = str.maketrans('', '', '?,."\'')
_DIFFERENCES = {
    'spaces': 'answers that differ in white space from the text at answer_start; this text is used',
    'elsewhere': 'answers that are not at answer_start; their nearest occurrence in the text is used',
    'missing': 'answers that do not occur in their text as whole words; their questions are not used for training',
}


def list_misplaced_answers(questions: Sequence[SquadQuestion]) -> list[str]:
    """Returns a text for each kind of misplaced first answer in _DIFFERENCES. A text lists up to 100 questions."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in _DIFFERENCES}
    for question in questions:
        if question.answers:
            answer, answer_start = question.answers[0], question.starts[0]
            kind, start, _ = find_answer(question.context, answer, answer_start)
            if kind in by_kind:
                detail = '' if kind == 'missing' else f', found at {start}'
                by_kind[kind].append(f'{question.id}: {answer!a} at {answer_start}{detail}')
    return [format_list(title, by_kind[kind]) for kind, title in _DIFFERENCES.items() if by_kind[kind]]


def find_question_word(question: str) -> str:
    """Returns the first question word, such as 'how many', or 'other' if there is none."""
    match = _WORD.search(' '.join(question.lower().translate(_NO_MARKS).split()))
    return match[0] if match else 'other'


def squad_report(questions: Sequence[SquadQuestion], texts: Mapping[str, str]) -> str:
    """Returns a table with the count, exact match and F1 of answerable questions for each question word.

    If there are unanswerable questions, a second table counts all questions by whether they have a true answer and by
    whether an answer was predicted. `texts` is {id: predicted answer}; '' means no answer.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    table = {(has_answer, answered): 0 for has_answer in (True, False) for answered in (True, False)}
    for question in questions:
        predicted = texts[question.id]
        table[bool(question.answers), bool(predicted)] += 1
        if question.answers:
            scores = score_answer(question.answers, predicted, v2=False)
            groups.setdefault(find_question_word(question.question), []).append(scores)
    lines = [f'{"with answer":<12} {"questions":>9} {"exact":>7} {"F1":>7}']
    for word, scores in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        exact, f1 = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
        lines.append(f'{word:<12} {len(scores):>9,} {exact:>7.2f} {f1:>7.2f}')
    if table[False, True] + table[False, False]:
        lines += ['', f'{"":<16} {"answered":>9} {"not":>9}']
        for has_answer, name in ((True, 'has an answer'), (False, 'has none')):
            lines.append(f'{name:<16} {table[has_answer, True]:>9,} {table[has_answer, False]:>9,}')
    return '\n'.join(lines) + '\n'
