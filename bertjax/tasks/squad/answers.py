"""From the logits of windows to the n best answers to a question."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import Features
from bertjax.metrics.softmax import softmax
from bertjax.tasks.squad.questions import SquadQuestion

# Spans kept in each window, as a multiple of n_best, because spans with the same text count once.
_SPARE = 4
# null_odds of a context without pieces, where no answer is the only one.
NO_CHOICE = 1e9


@dataclasses.dataclass(frozen=True)
class AnswerSpan:
    """An answer.

    Attributes:
      text: cut from the context; '' for no answer.
      start, end: its characters; None for no answer.
      start_logit, end_logit: of its first and last piece, or of [CLS].
      probability: its share among the n best.
    """

    text: str
    start: int | None
    end: int | None
    start_logit: float
    end_logit: float
    probability: float = 1.0

    @property
    def score(self) -> float:
        """What answers are ranked by."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Answers:
    """The prediction for a question.

    Attributes:
      nbest: the best spans, best first, without repeated texts; includes `null` at its rank where it may be chosen.
      best: the best non-empty one; an empty one where there is no other.
      null: no answer.
      null_odds: score of `null` minus that of `best`, log odds.
    """

    nbest: tuple[AnswerSpan, ...]
    best: AnswerSpan
    null: AnswerSpan
    null_odds: float


def best_spans(
    start_logits: np.ndarray, end_logits: np.ndarray, first: np.ndarray, last: np.ndarray, *, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` spans of a window with the highest sums, highest first: positions of first and last piece, int64.

    All spans are considered. (run_squad.py only considers those between the n best starts and the n best ends of the
    window, which can be pieces of the question or pieces that count in other windows, and so can miss the best one.)

    Args:
      start_logits, end_logits: float [S].
      first: int32 [S], -1 where no answer may begin.
      last: int32 [S], -1 where no answer may end; the last piece of a window is [SEP], where none may.
      longest: pieces of an answer.
      count: how many, at most.
    """
    begins = np.flatnonzero(first >= 0)  # [N]
    ends = np.minimum(begins[:, None] + np.arange(longest), len(last) - 1)  # [N, A]
    sums = start_logits[begins, None].astype(np.float64) + end_logits[ends]
    sums = np.where(last[ends] >= 0, sums, -np.inf).ravel()
    count = min(count, int(np.isfinite(sums).sum()))
    if not count:
        return begins[:0], begins[:0]
    top = np.argpartition(-sums, count - 1)[:count]
    top = top[np.lexsort((top, -sums[top]))]
    return begins[top // longest], ends.ravel()[top]


def answers(
    questions: Sequence[SquadQuestion],
    features: Features,
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best: int,
    max_answer: int,
    with_null: bool,
) -> list[Answers]:
    """The answers to each question.

    Args:
      questions: N.
      features: of all their windows, R rows, not made for training.
      start_logits, end_logits: R arrays, each as long as its row.
      n_best: spans kept.
      max_answer: pieces of the longest answer.
      with_null: whether there may be no answer.
    """
    bounds = np.searchsorted(features.record, np.arange(len(questions) + 1))
    found = []
    for question, begin, end in zip(questions, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        spans: list[tuple[int, int, float, float]] = []
        null = None
        for row in range(begin, end):
            here = slice(features.offsets[row], features.offsets[row + 1])
            first, last = features.token['token_first'][here], features.token['token_last'][here]
            starts, ends = start_logits[row], end_logits[row]
            # A question is unanswerable only if no window has an answer: the minimum over its windows counts.
            if null is None or starts[0] + ends[0] < null.score:
                null = AnswerSpan('', None, None, float(starts[0]), float(ends[0]))
            a, b = best_spans(starts, ends, first, last, longest=max_answer, count=_SPARE * n_best)
            spans += zip(first[a].tolist(), last[b].tolist(), starts[a].tolist(), ends[b].tolist(), strict=True)
        found.append(_ranked(question.context, spans, null, n_best, with_null))
    return found


def _ranked(
    context: str, spans: list[tuple[int, int, float, float]], null: AnswerSpan, n_best: int, with_null: bool
) -> Answers:
    """The n best of (first character, end, start logit, end logit)."""
    chosen: dict[str, AnswerSpan] = {}
    for first, end, a, b in sorted(spans, key=lambda span: (-span[2] - span[3], span[:2])):
        text = context[first:end]
        if text.strip() and text not in chosen:
            chosen[text] = AnswerSpan(text, first, end, a, b)
            if len(chosen) == n_best:
                break
    nbest = list(chosen.values())
    best = nbest[0] if nbest else null
    null_odds = null.score - best.score if nbest else NO_CHOICE
    if with_null or not nbest:
        nbest = sorted([*nbest, null], key=lambda span: -span.score)
    shares = softmax(np.array([span.score for span in nbest]))
    nbest = [dataclasses.replace(span, probability=p) for span, p in zip(nbest, shares.tolist(), strict=True)]
    by_text = {span.text: span for span in nbest}
    return Answers(tuple(nbest), by_text[best.text], by_text.get('', null), null_odds)
