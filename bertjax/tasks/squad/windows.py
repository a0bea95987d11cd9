"""Builds the rows of questions, `[CLS] question [SEP] window of the context [SEP]`.

RoBERTa's tokenizer puts two [SEP] after the question. The windows are those of google-research/bert, run_squad.py.
Unlike there, answers are character offsets in the context, so no text is reassembled from pieces.
"""

import re
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.tasks.pairs import join_pair
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.tokenizer_base import UNSPACED

_MAX_LISTED = 100
_LETTER = rf'[^\W{UNSPACED}]'  # a character of a word, in scripts with spaces between words


def find_answer(context: str, answer: str, start: int) -> tuple[str, int, int]:
    """Finds an answer in its context.

    White space may differ. If the answer is not at `start`, its nearest occurrence as whole words is used. A wrong
    `start` is often a number of bytes or UTF-16 units instead of characters.

    Returns:
      (kind, first character, end) of the match. The kind is 'exact'; 'spaces' if the white space differs; 'elsewhere'
      if the answer is not at `start`; or 'missing', with 0 as first character and end.
    """
    if answer.strip() and context.startswith(answer, start):
        return 'exact', start, start + len(answer)
    words = r'\s+'.join(map(re.escape, answer.split()))
    if words:
        match = re.compile(rf'\s*({words})').match(context, start)
        if match:
            return 'spaces', match.start(1), match.end(1)
        occurrences = [match.span() for match in re.finditer(rf'(?<!{_LETTER}){words}(?!{_LETTER})', context)]
        if occurrences:
            return 'elsewhere', *min(occurrences, key=lambda span: abs(span[0] - start))
    return 'missing', 0, 0


def window_bounds(length: int, max_tokens: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends of the windows over a context of `length` tokens, int64 [W] each.

    Each window starts min(`stride`, `max_tokens`) tokens after the previous window. The last window ends at the
    end of the context. An empty context has an empty window.
    """
    excess, stride = max(0, length - max_tokens), min(stride, max_tokens)
    starts = np.arange(1 + -(-excess // stride)) * stride
    return starts, np.minimum(starts + max_tokens, length)


def choose_windows(starts: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """Returns the index of the best window for each of T = `length` tokens, int64 [T].

    The best window for a token maximises min(left context, right context) + 0.01 · length of the window. `starts` and
    `ends`, int64 [W], are the bounds of the windows.
    """
    token = np.arange(length)
    left, right = token - starts[:, None], ends[:, None] - 1 - token  # [W, T]
    context = np.minimum(left, right) + 0.01 * (ends - starts)[:, None]  # the factor comes from run_squad.py
    return np.where((left >= 0) & (right >= 0), context, -1.0).argmax(0)  # [T], the first of equally good windows


def answer_tokens(starts: np.ndarray, ends: np.ndarray, first: int, end: int) -> tuple[int, int] | None:
    """Returns the indices of the first and last piece that overlap the characters [first, end); None without a piece.

    `starts` and `ends`, int32 [T], are the character offsets of the pieces.
    """
    a = int(np.searchsorted(ends, first, side='right'))
    b = int(np.searchsorted(starts, end, side='left')) - 1
    return (a, b) if a <= b else None


def format_list(title: str, lines: Sequence[str]) -> str:
    """Returns a text with the title, the number of lines, and the first 100 lines."""
    more = [f'… and {len(lines) - _MAX_LISTED:,} more'] if len(lines) > _MAX_LISTED else []
    return '\n  '.join([f'{title}: {len(lines):,}', *lines[:_MAX_LISTED], *more])


def squad_features(
    questions: Sequence[SquadQuestion],
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    stride: int,
    max_query: int,
    training: bool,
) -> Features:
    """Builds a row for each question and window of its context.

    The row arrays `start` and `end`, int32, are the positions of the first and last piece of the first answer. Both are
    0, the position of [CLS], if there is no answer or the window does not contain the complete answer.

    A question is unusable if its first answer is not in the context or has no piece. Training skips the question, and
    evaluation gives its rows weight 0. The notes list the unusable and the truncated questions.

    If `training` is False, the pieces have two token arrays. `token_first`, int32, is the first character of the piece
    in the context. It is -1 if the piece is outside the context, or if another window is better for it. `token_last`,
    int32, is the character after the piece in the context. It is -1 if the piece is outside the context.

    Args:
      questions: The questions. For training, they must be labelled.
      seq_len: The maximum number of tokens of a row.
      stride: See `window_bounds`.
      max_query: The maximum number of tokens of a question.

    Raises:
      UserError: No question can be used for training.
    """
    max_query = min(max_query, seq_len - 3 - tokenizer.separators)  # leaves at least one piece of the text
    contexts = list(dict.fromkeys(question.context for question in questions))
    pieces = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    queries = tokenizer.encode([question.question for question in questions])
    truncated = [question.id for question, query in zip(questions, queries, strict=True) if len(query) > max_query]
    builder, unanswered = FeatureBuilder(), []
    for number, (question, query) in enumerate(zip(questions, queries, strict=True)):
        ids, firsts, lasts = pieces[question.context]
        query = query[:max_query]
        head = 1 + len(query) + tokenizer.separators
        answer, weight = None, np.float32(1)
        if question.answers:
            _, a, b = find_answer(question.context, question.answers[0], question.starts[0])
            answer = answer_tokens(firsts, lasts, a, b)
        if question.answers and answer is None:
            unanswered.append(question.id)
            weight = np.float32(0)
            if training:
                continue
        starts, ends = window_bounds(len(ids), seq_len - head - 1, stride)
        best = choose_windows(starts, ends, len(ids))
        for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            token_arrays = {}
            if not training:
                outside, after = np.full(head, -1, np.int32), np.full(1, -1, np.int32)
                begins = np.where(best[start:end] == window, firsts[start:end], np.int32(-1))
                token_arrays['token_first'] = np.concatenate([outside, begins, after])
                token_arrays['token_last'] = np.concatenate([outside, lasts[start:end], after])
            builder.add_sequence(*join_pair(query, ids[start:end], tokenizer), **token_arrays)
            inside = answer is not None and start <= answer[0] and answer[1] < end
            target = (answer[0] - start + head, answer[1] - start + head) if inside else (0, 0)
            builder.add_row(number, start=np.int32(target[0]), end=np.int32(target[1]), weights=weight)
    if training and len(unanswered) == len(questions):
        found = f'{len(unanswered):,} questions whose answers do not occur in their contexts'
        raise UserError('config.data', found, 'answers that are copied from their contexts', 'correct the data')
    effect = 'not used for training' if training else 'without effect on the loss'
    ids_by_title = {
        f'questions truncated to their first {max_query} pieces': truncated,
        f'questions {effect}, because their answer is not in the text or has no piece': unanswered,
    }
    return builder.build(notes=[format_list(title, ids) for title, ids in ids_by_title.items() if ids])
