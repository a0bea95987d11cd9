"""Splits contexts into the windows of google-research/bert, run_squad.py, and finds answers in the contexts.

Unlike in run_squad.py, answers are character offsets in the context, so no text is reassembled from pieces.
"""

import re
import sys
from collections.abc import Sequence

import numpy as np

from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.text.tokenizer_base import UNSPACED

_MAX_LISTED = 100
_DIFFERENCES = {
    'spaces': 'answers that differ in white space from the text at answer_start; this text is used',
    'elsewhere': 'answers that are not at answer_start; their nearest occurrence in the text is used',
    'missing': 'answers that do not occur in their text as whole words; their questions are not used for training',
}
_LETTER = rf'[^\W{UNSPACED}]'  # a character of a word, in scripts with spaces between words


def find_answer(context: str, answer: str, start: int) -> tuple[str, int, int]:
    """Finds an answer in its context.

    Returns:
      (kind, first character, end) of the match. The kind is 'exact' at `start`; 'spaces' if the white space differs;
      'elsewhere' if `start` counts bytes or UTF-16 units, or for the nearest occurrence as whole words; 'missing' for
      no match, with the end 0, so that it has no token, and with `start`, or 0 if it is outside the context.
    """
    # A position outside the context, such as -1 for an unknown position, must match nothing.
    offset = start if 0 <= start < sys.maxsize else sys.maxsize
    if answer.strip() and context.startswith(answer, offset):
        return 'exact', start, start + len(answer)
    words = r'\s+'.join(map(re.escape, answer.split()))
    if words:
        match = re.compile(rf'\s*({words})').match(context, offset)
        if match:
            return 'spaces', match.start(1), match.end(1)
        for encoding, size in (('utf-8', 1), ('utf-16-le', 2)):
            begin = context.encode(encoding, 'surrogatepass')[: size * offset].decode(encoding, 'ignore')
            if context.startswith(answer, len(begin)):
                return 'elsewhere', len(begin), len(begin) + len(answer)
        occurrences = [match.span() for match in re.finditer(rf'(?<!{_LETTER}){words}(?!{_LETTER})', context)]
        if occurrences:
            return 'elsewhere', *min(occurrences, key=lambda span: abs(span[0] - start))
    return 'missing', start if 0 <= start < len(context) else 0, 0


def window_bounds(length: int, max_tokens: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends of the windows over a context of `length` tokens, int64 [W] each.

    Each window starts min(`stride`, `max_tokens`) tokens after the previous window. The last window ends at the end of
    the context.
    """
    excess, stride = max(0, length - max_tokens), min(stride, max_tokens)
    starts = np.arange(1 + -(-excess // stride)) * stride
    return starts, np.minimum(starts + max_tokens, length)


def choose_windows(starts: np.ndarray, ends: np.ndarray, length: int, length_weight: float = 0.01) -> np.ndarray:
    """Returns the index of the best window for each of T = `length` tokens, int64 [T].

    The best window maximizes min(left context, right context) + `length_weight` · length of the window, by default as
    in run_squad.py. The first of equally good windows is chosen. `starts` and `ends`, int64 [W], bound the windows.
    """
    best, best_context = np.zeros(length, np.int64), np.full(length, -1.0)
    # A loop, because an array [W, T] for a book would not fit in memory.
    for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        left = np.arange(end - start)
        context = np.minimum(left, left[::-1]) + length_weight * (end - start)
        better = context > best_context[start:end]
        best[start:end][better], best_context[start:end][better] = window, context[better]
    return best


def answer_tokens(starts: np.ndarray, ends: np.ndarray, first: int, end: int) -> tuple[int, int] | None:
    """Returns the indices of the first and last piece that overlap the characters [first, end); None if no piece does.

    `starts` and `ends`, int32 [T], are the character offsets of the pieces.
    """
    a = int(np.searchsorted(ends, first, side='right'))
    b = int(np.searchsorted(starts, end, side='left')) - 1
    return (a, b) if a <= b else None


def format_list(title: str, lines: Sequence[str]) -> str:
    """Returns a text with the title, the number of lines, and the first 100 lines."""
    more = [f'… and {len(lines) - _MAX_LISTED:,} more'] if len(lines) > _MAX_LISTED else []
    return '\n  '.join([f'{title}: {len(lines):,}', *lines[:_MAX_LISTED], *more])


def list_misplaced_answers(questions: Sequence[SquadQuestion]) -> list[str]:
    """Returns a text for each kind of difference in _DIFFERENCES that occurs. A text lists up to 100 questions."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in _DIFFERENCES}
    for question in questions:
        if question.answers:
            answer, answer_start = question.answers[0], question.starts[0]
            kind, start, _ = find_answer(question.context, answer, answer_start)
            if kind in by_kind:
                detail = '' if kind == 'missing' else f', found at {start}'
                by_kind[kind].append(f'{question.id}: {answer!a} at {answer_start}{detail}')
    return [format_list(title, by_kind[kind]) for kind, title in _DIFFERENCES.items() if by_kind[kind]]
