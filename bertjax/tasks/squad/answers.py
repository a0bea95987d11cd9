"""Finds the best spans of a window, and ranks the answers to a question."""

import dataclasses

import numpy as np

from bertjax.metrics.softmax import softmax

SPANS_PER_BEST = 4  # spans per window, as a multiple of n_best; above 1, because spans with equal texts are merged
NO_CHOICE = 1e9  # the null_odds if 'no answer' is the only possible answer


@dataclasses.dataclass(frozen=True)
class AnswerSpan:
    """An answer, which is a span of the context.

    Attributes:
      text: the text of the span; '' for no answer.
      start, end: the character offsets in the context; `end` is exclusive. Both are None for no answer.
      start_logit, end_logit: the logits of the first and last piece, or of [CLS] for no answer.
      probability: the softmax over the scores of Answers.nbest; 1 if this answer is not in `nbest`.
    """

    text: str
    start: int | None
    end: int | None
    start_logit: float
    end_logit: float
    probability: float = 1.0

    @property
    def score(self) -> float:
        """The score that ranks the answers."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Answers:
    """The prediction for a question.

    Attributes:
      nbest: the best spans with different texts, and `null` if the question may have no answer or has no span; best
        first.
      best: the best non-empty span; `null` if no such span exists.
      null: the span that means 'no answer'.
      null_odds: the score of `null` minus the score of `best` (log odds); NO_CHOICE if `best` is `null`.
    """

    nbest: tuple[AnswerSpan, ...]
    best: AnswerSpan
    null: AnswerSpan
    null_odds: float


def best_spans(
    start_logits: np.ndarray, end_logits: np.ndarray, first: np.ndarray, last: np.ndarray, *, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the first and last pieces of a window's best spans, int64, best first.

    All valid spans are candidates. run_squad.py, by contrast, only combines the n best starts with the n best ends.

    Args:
      start_logits, end_logits: The logits of the S pieces, float [S].
      first: The first character of each piece, int32 [S]; -1 if no answer may start there.
      last: The character after each piece, int32 [S]; -1 if no answer may end there, for example at the last [SEP].
      longest, count: The maximum number of pieces in an answer, and the maximum number of spans to return.
    """
    begins, longest = np.flatnonzero(first >= 0), min(longest, len(last))  # [N], the possible starts
    ends = np.minimum(begins[:, None] + np.arange(longest), len(last) - 1)  # [N, longest]
    sums = start_logits[begins, None].astype(np.float64) + end_logits[ends]
    sums = np.where(last[ends] >= 0, sums, -np.inf).ravel()
    count = min(count, int(np.isfinite(sums).sum()))
    if not count:
        return begins[:0], begins[:0]
    top = np.argpartition(-sums, count - 1)[:count]
    top = top[np.lexsort((top, -sums[top]))]
    return begins[top // longest], ends.ravel()[top]


def rank_answers(
    context: str, spans: list[tuple[int, int, float, float]], null: AnswerSpan, n_best: int, with_null: bool
) -> Answers:
    """Ranks the answers to a question about `context`: at most `n_best` spans, and `null`, which means 'no answer'.

    `spans` are the candidates, (first character, end, start logit, end logit) each. `with_null` is whether the question
    may have no answer.
    """
    best_by_text: dict[str, AnswerSpan] = {}
    for first, end, a, b in sorted(spans, key=lambda span: (-span[2] - span[3], span[:2])):
        text = context[first:end]
        if text.strip() and text not in best_by_text:
            best_by_text[text] = AnswerSpan(text, first, end, a, b)
            if len(best_by_text) == n_best:
                break
    nbest = list(best_by_text.values())
    best = nbest[0] if nbest else null
    null_odds = null.score - best.score if nbest else NO_CHOICE
    if with_null or not nbest:
        nbest = sorted([*nbest, null], key=lambda span: -span.score)
    probabilities = softmax(np.array([span.score for span in nbest]))
    nbest = [dataclasses.replace(span, probability=p) for span, p in zip(nbest, probabilities.tolist(), strict=True)]
    by_text = {span.text: span for span in nbest}
    return Answers(tuple(nbest), by_text[best.text], by_text.get('', null), null_odds)
