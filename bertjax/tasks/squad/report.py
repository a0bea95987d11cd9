"""SQuAD's data and results for a person to read."""

from collections.abc import Mapping, Sequence

from bertjax.metrics.squad import exact_match, overlap_f1
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.windows import find_answer, listed

_WORDS = ('what', 'who', 'when', 'where', 'which', 'how many', 'how much', 'how', 'why')

_DIFFERENCES = {
    'spaces': 'answers that differ from their place in white space, and are taken from there',
    'elsewhere': 'answers that are not at their place, and are taken from the nearest where they are',
    'missing': 'answers that are not in their text, whose questions are not trained on',
}


def answers_elsewhere(questions: Sequence[SquadQuestion]) -> list[str]:
    """Lists of the questions whose first answer is not exactly where the data says; empty if all are."""
    found: dict[str, list[str]] = {kind: [] for kind in _DIFFERENCES}
    for question in questions:
        if question.answers:
            answer, place = question.answers[0], question.starts[0]
            kind, start, _ = find_answer(question.context, answer, place)
            if kind in found:
                taken = '' if kind == 'missing' else f', found at {start}'
                found[kind].append(f'{question.id}: {answer!a} at {place}{taken}')
    return [listed(what, found[kind]) for kind, what in _DIFFERENCES.items() if found[kind]]


def asking_word(question: str) -> str:
    """The first question word, 'other' without any."""
    words = question.lower().split()
    places = {}
    for word in _WORDS:
        parts = word.split()
        for at in range(len(words) - len(parts) + 1):
            if [text.strip('?,."\'') for text in words[at : at + len(parts)]] == parts:
                places.setdefault(at, word)  # 'how many' is tried before 'how'
                break
    return places[min(places)] if places else 'other'


def squad_report(questions: Sequence[SquadQuestion], texts: Mapping[str, str]) -> str:
    """Number, exact match and F1 of the questions by question word; the unanswerable ones, if any, in their own table.

    Args:
      questions: with their true answers.
      texts: {id: the predicted answer}, '' for none.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    table = {(has, given): 0 for has in (True, False) for given in (True, False)}
    for question in questions:
        given = texts[question.id]
        table[bool(question.answers), bool(given)] += 1
        if question.answers:
            exact = max(exact_match(gold, given) for gold in question.answers)
            f1 = max(overlap_f1(gold, given, empty_equal=False) for gold in question.answers)
            groups.setdefault(asking_word(question.question), []).append((exact, f1))
    lines = [f'{"with answer":<12} {"questions":>9} {"exact":>7} {"F1":>7}']
    for word, scores in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        exact, f1 = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
        lines.append(f'{word:<12} {len(scores):>9,} {exact:>7.2f} {f1:>7.2f}')
    if table[False, True] + table[False, False]:
        lines += ['', f'{"":<16} {"answered":>9} {"not":>9}']
        for has, name in ((True, 'has an answer'), (False, 'has none')):
            lines.append(f'{name:<16} {table[has, True]:>9,} {table[has, False]:>9,}')
    return '\n'.join(lines) + '\n'
