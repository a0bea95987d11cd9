"""Questions of SQuAD as rows `[CLS] question [SEP] window of the context [SEP]`, with RoBERTa's tokenizer two [SEP].

Source of the rules: google-research/bert, run_squad.py. Answers are kept as character offsets of the context, so that
no text is ever reassembled from pieces.
"""

import re
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.text.tokenizer import Tokenizer

_LISTED = 100
# Where in its context an answer is: at its offset; there, up to white space; elsewhere; nowhere.
FOUND = ('exact', 'spaces', 'elsewhere', 'missing')


def find_answer(context: str, answer: str, start: int) -> tuple[str, int, int]:
    """(one of FOUND, first character, end) of an answer that should begin at `start`; 0, 0 where it is missing.

    White space may differ. An answer that is elsewhere (a common cause is offsets in bytes or UTF-16) is taken from the
    occurrence as whole words that is nearest to `start`.
    """
    if answer.strip() and context.startswith(answer, start):
        return 'exact', start, start + len(answer)
    words = r'\s+'.join(map(re.escape, answer.split()))
    if words:
        here = re.compile(rf'\s*({words})').match(context, start)
        if here:
            return 'spaces', here.start(1), here.end(1)
        places = [match.span() for match in re.finditer(rf'(?<!\w){words}(?!\w)', context)]
        if places:
            return 'elsewhere', *min(places, key=lambda place: abs(place[0] - start))
    return 'missing', 0, 0


def window_bounds(length: int, room: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """First tokens and ends (int64 [W] each) of the windows, at most `room` tokens, of a context of `length` tokens.

    Each begins `stride` after the previous one; the last ends with the context. An empty context has one empty window.
    """
    more = max(0, length - room)
    starts = np.arange(1 + -(-more // min(stride, room))) * min(stride, room)
    return starts, np.minimum(starts + room, length)


def widest_context(starts: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """For each token, the number (int64 [T]) of the window with the most context on the token's shorter side.

    Args:
      starts, ends: int64 [W], of the windows.
      length: T.
    """
    token = np.arange(length)
    left, right = token - starts[:, None], ends[:, None] - 1 - token  # [W, T]
    context = np.minimum(left, right) + 0.01 * (ends - starts)[:, None]  # the share of run_squad.py
    return np.where((left >= 0) & (right >= 0), context, -1.0).argmax(0)  # [T], the first of equals


def answer_tokens(starts: np.ndarray, ends: np.ndarray, first: int, end: int) -> tuple[int, int] | None:
    """The first and last piece with characters of [first, end), None where there is none.

    Args:
      starts, ends: int32 [T], characters where pieces begin and end.
      first, end: characters.
    """
    a = int(np.searchsorted(ends, first, side='right'))
    b = int(np.searchsorted(starts, end, side='left')) - 1
    return (a, b) if a <= b else None


def listed(what: str, lines: Sequence[str]) -> str:
    """How many there are, and the first 100, one per line."""
    more = [f'… and {len(lines) - _LISTED:,} more'] if len(lines) > _LISTED else []
    return '\n  '.join([f'{what}: {len(lines):,}', *lines[:_LISTED], *more])


def squad_features(
    questions: Sequence[SquadQuestion],
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    stride: int,
    max_query: int,
    training: bool,
) -> Features:
    """Rows of questions.

    Row arrays: int32 `start`, `end`, the positions of the first and last piece of the question's first answer; both 0,
    which is [CLS], where the window does not contain all of it or there is none. A question whose answer is not in the
    context has no rows in `training`, and otherwise rows of weight 0; such questions, and truncated ones, are noted.

    Token arrays, without `training`: int32 `token_first`, the character of the context where the piece begins, -1 where
    no answer may begin (which includes pieces with more context in another window); `token_last`, the character where
    it ends, -1 where no answer may end.

    Args:
      questions: with answers, if `training`.
      tokenizer: of the model.
      seq_len: S.
      stride: tokens from one window to the next.
      max_query: tokens that a question is cut to.
      training: see above.

    Raises:
      UserError: no question is left for training.
    """
    contexts = list(dict.fromkeys(question.context for question in questions))
    pieces = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    queries = tokenizer.encode([question.question for question in questions])
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    between = sep * tokenizer.separators
    long = [question.id for question, query in zip(questions, queries, strict=True) if len(query) > max_query]
    builder, lost = FeatureBuilder(), []
    for number, (question, query) in enumerate(zip(questions, queries, strict=True)):
        ids, firsts, lasts = pieces[question.context]
        query = query[:max_query]
        head = 1 + len(query) + len(between)
        answer, weight = None, np.float32(1)
        if question.answers:
            _, a, b = find_answer(question.context, question.answers[0], question.starts[0])
            answer = answer_tokens(firsts, lasts, a, b)
            if answer is None:
                lost.append(question.id)
                weight = np.float32(0)
                if training:
                    continue
        starts, ends = window_bounds(len(ids), seq_len - head - 1, stride)
        best = widest_context(starts, ends, len(ids))
        for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            places = {}
            if not training:
                outside, after = np.full(head, -1, np.int32), np.full(1, -1, np.int32)
                begins = np.where(best[start:end] == window, firsts[start:end], np.int32(-1))
                places['token_first'] = np.concatenate([outside, begins, after])
                places['token_last'] = np.concatenate([outside, lasts[start:end], after])
            builder.add_sequence(np.concatenate([cls, query, between, ids[start:end], sep]), head, **places)
            inside = answer is not None and start <= answer[0] and answer[1] < end
            target = (answer[0] - start + head, answer[1] - start + head) if inside else (0, 0)
            builder.add_row(number, start=np.int32(target[0]), end=np.int32(target[1]), weights=weight)
    if training and len(lost) == len(questions):
        found = f'{len(lost):,} questions, none with an answer that is in its context'
        raise UserError('config.data', found, 'answers that are cut from their contexts', 'correct the data')
    what = 'left out of training' if training else 'without part in the loss'
    what = f'questions {what}, because their answer is not in the text or has no piece'
    found = {f'questions cut to their first {max_query} pieces': long, what: lost}
    return builder.build(notes=[listed(what, ids) for what, ids in found.items() if ids])
