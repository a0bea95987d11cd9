"""The types of a model's results, for type checkers and editors."""

from collections.abc import Sequence
from typing import TypedDict


class Filling(TypedDict):
    """One candidate for a mask: the piece, its probability, and the text with the piece filled in."""

    token: str
    probability: float
    text: str


class JointFilling(TypedDict):
    """All masks of a text filled together; `order` lists the mask numbers in the order of filling."""

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
    """The result of a classification or a regression.

    A single-label task gives `label` and a multi-label task `labels`, with `probabilities`; a regression gives `score`.
    """

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
    """An answer and its character span in the context; `null_odds` if the task allows questions without an answer."""

    null_odds: float


class TaggedEntity(TypedDict):
    """An entity over the characters of a text, or the words of a list, from `start` up to but excluding `end`.

    `score` is the mean probability of its words.
    """

    type: str
    start: int
    end: int
    text: str
    score: float


class _Tagged(TypedDict):
    words: Sequence[str]
    tags: Sequence[str]
    probabilities: Sequence[float]


class TaggedWords(_Tagged, total=False):
    """A tag and its probability for each word.

    `entities` is present if the tags follow a scheme such as BIO, `offsets` if the input was a text.
    """

    entities: list[TaggedEntity]
    offsets: Sequence[tuple[int, int]]


class ChoiceAnswer(TypedDict):
    """The best ending of a context; `prediction` is its index in `endings`."""

    prompt: str
    start: str
    endings: Sequence[str]
    prediction: int
    ending: str
    probabilities: Sequence[float]
