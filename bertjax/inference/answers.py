"""The types of the results of `api.Bert`, for type checkers and editors."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class Filling(TypedDict):
    """A candidate for a mask: a piece, its probability, and the text with this piece in place of the mask."""

    token: str
    probability: float
    text: str


class JointFilling(TypedDict):
    """A text with all its masks filled. `order` lists the indices of the masks in the order of filling."""

    text: str
    tokens: list[str]
    order: list[int]
    log_probability: float


class Score(TypedDict):
    """The pseudo-log-likelihood of a text in nats, its numbers of pieces and words, and its pseudo-perplexity."""

    log_likelihood: float
    tokens: int
    words: int
    perplexity: float | None


class Label(TypedDict, total=False):
    """The result of a classification or a regression.

    A single-label task sets `label`, and a multi-label task sets `labels`. Both also set `probabilities`. A regression
    sets only `score`.
    """

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float


class Answer(TypedDict):
    """An answer and its character span in the context.

    `start` and `end` are None if there is no answer. `null_odds` exists only if the task has unanswerable questions.
    """

    id: str
    question: str
    answer: str
    start: int | None
    end: int | None
    probability: float
    null_odds: NotRequired[float]


class TaggedEntity(TypedDict):
    """An entity in a text or in a list of words.

    The entity begins at `start` and ends before `end`. Both are character offsets in a text, or word indices in a list.
    `score` is the mean probability of the entity's words.
    """

    type: str
    start: int
    end: int
    text: str
    score: float


class TaggedWords(TypedDict):
    """The tag of each word with its probability.

    `entities` is present only if the tags follow a scheme such as BIO. `offsets` is present only for a text.
    """

    words: Sequence[str]
    tags: Sequence[str]
    probabilities: Sequence[float]
    entities: NotRequired[list[TaggedEntity]]
    offsets: NotRequired[Sequence[tuple[int, int]]]


class ChoiceAnswer(TypedDict):
    """The best ending for the context `prompt`. `prediction` is its index in `endings`. `start` is ''."""

    prompt: str
    start: str
    endings: Sequence[str]
    prediction: int
    ending: str
    probabilities: Sequence[float]
