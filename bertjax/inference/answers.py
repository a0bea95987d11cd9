"""The forms of what a model answers, for type checkers and editors."""

from collections.abc import Sequence
from typing import TypedDict


class Filling(TypedDict):
    """What a mask may be: a piece, its share, and the text with it."""

    token: str
    probability: float
    text: str


class JointFilling(TypedDict):
    """All masks of a text filled together; `order`: the numbers of the masks as they were filled."""

    text: str
    tokens: list[str]
    order: list[int]
    log_probability: float


class Score(TypedDict):
    """The pseudo-log-likelihood of a text, in nats."""

    log_likelihood: float
    tokens: int
    words: int
    perplexity: float | None


class Label(TypedDict, total=False):
    """`label` of one of several classes, `labels` of any number of them, each with `probabilities`; or `score`."""

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float


class _Answer(TypedDict):
    id: str
    question: str
    answer: str
    start: int | None
    end: int | None
    probability: float


class Answer(_Answer, total=False):
    """An answer and its place, in characters of the context; `null_odds` where there may be none."""

    null_odds: float


class TaggedEntity(TypedDict):
    """Characters of a text, or words of a list, from `start` to before `end`; `score` is the mean of the words'."""

    type: str
    start: int
    end: int
    text: str
    score: float


class _Tagged(TypedDict):
    words: Sequence[str]
    tags: Sequence[str]
    probabilities: Sequence[float]


class Tagged(_Tagged, total=False):
    """A tag and its share for each word; `entities` where the tags have a scheme; of a text the words' `offsets`."""

    entities: list[TaggedEntity]
    offsets: Sequence[tuple[int, int]]


class ChoiceAnswer(TypedDict):
    """`prediction`, the number of the best ending, and `ending` itself."""

    prompt: str
    start: str
    endings: Sequence[str]
    prediction: int
    ending: str
    probabilities: Sequence[float]
