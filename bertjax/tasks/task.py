"""What every task is: from files to records, features, a head, predictions, figures and the files of a benchmark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from flax import linen as nn

from bertjax.data.features import Features
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.text.tokenizer import Tokenizer

Record = TypeVar('Record')
Prediction = TypeVar('Prediction')

# {name of a model output: an array for each row of the features}, those of token_logits, start_logits and end_logits
# cut to the row's length.
Outputs = Mapping[str, Sequence[np.ndarray]]


class Task(Protocol, Generic[Record, Prediction]):
    """One task. Made with its options (the fields of config.task) and the folder of its data.

    Attributes:
      name: for titles, such as 'RTE'.
      score: the name in `metrics` that the best run goes by; higher is better.
      objective: what the head is trained for.
      labels: the names of the head's outputs, in their order, as far as they are known; none where outputs have none.
      complete: whether the head is known; else `learn` or `restore` must come first.
    """

    name: str
    score: str
    objective: Objective
    labels: Sequence[str]
    complete: bool

    def splits(self) -> Sequence[str]:
        """The labelled splits that `records` has: 'train', 'dev', and where there are labels 'test'; MNLI has
        'dev_mismatched' too. All but 'train' are evaluated at the end."""
        ...

    def records(self, split: str) -> Sequence[Record]:
        """Reads a split ('train', 'dev', 'test' ...), in the order of the file. `test` may lack labels.

        Raises:
          UserError: no such file or split, or a malformed row: file, line, what was expected. No row is dropped.
        """
        ...

    def parse(self, text: str, where: str) -> Sequence[Record]:
        """Records without labels, from the text of a user's own file or of standard input (`where` names it).

        Raises:
          UserError: see `records`.
        """
        ...

    def learn(self, records: Sequence[Record]) -> None:
        """Takes from the training records what the head needs: the labels. Says (prints) what a person should know."""
        ...

    def learned(self) -> dict[str, Any]:
        """What `learn` and `tune` found, as JSON; it is kept beside the model."""
        ...

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Sets what an earlier run has `learned`."""
        ...

    def features(self, records: Sequence[Record], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Tokenises. Without `training`, records need no labels, and every record has at least one row."""
        ...

    def model(self, config: BertConfig) -> nn.Module:
        """The encoder with the task's head (model/heads.py)."""
        ...

    def predictions(self, records: Sequence[Record], features: Features, outputs: Outputs) -> list[Prediction]:
        """One prediction a record, from the outputs of all rows of its features."""
        ...

    def tune(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> None:
        """Sets what is searched for on dev (the null threshold of SQuAD 2.0); most tasks have nothing."""
        ...

    def metrics(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> dict[str, float | None]:
        """All figures of labelled records; None where one is not defined."""
        ...

    def collapsed(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> bool:
        """Whether a run has learned nothing: one answer for all records."""
        ...

    def report(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> str:
        """What a person looks at beside the figures: a table per class, a confusion table; '' for none."""
        ...

    def rows(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        """One JSON object a record: labels and probabilities, spans, or tags."""
        ...

    def official_files(
        self, split: str, records: Sequence[Record], predictions: Sequence[Prediction]
    ) -> dict[str, str]:
        """{file name: text} in the form of the benchmark's server or script; {} where there is none."""
        ...

    def huggingface(self) -> tuple[str, dict[str, Any]]:
        """transformers' class of the model, and what its config.json says beside the encoder (id2label ...)."""
        ...
