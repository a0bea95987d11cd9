"""A saved model once it is read, whatever its format: what it says of itself, and its tensors, in one vocabulary."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from etils import epath


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """What any saved model is once read, so that whoever starts from one need not know its format.

    Attributes:
      where: the directory, for messages.
      described_in: the file that `values` come from, for messages.
      values: what a config.json of model_type 'bert' says, with `architectures` and `id2label` where the format has
        them. Beyond that, `type_vocab_size` 0 stands for no segment embedding, and `pooler_act` for the pooler's
        activation where it is not tanh (both DistilBERT's).
      read: reads the tensors; called when they are first asked for, since a model's sizes are often all that is wanted.
      called: {name of a tensor or key of `values`: what the format calls it}, for messages, where that differs.
      fields: of a BertConfig, of our own format, which need not say them in `values`.
      aside: what was found beside the model and is not taken, in words, such as an optimiser's variables.
      dtypes: {name of a tensor: numpy's name of the type that it is stored in}, filled by `read`; where a name is not
        in it, float32.
    """

    where: str
    described_in: str
    values: Mapping[str, Any]
    read: Callable[[], dict[str, np.ndarray]]
    called: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aside: str = ''
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        """{name as in transformers' BertForPreTraining, BertForSequenceClassification ...: float32 array}; whoever
        makes a model of them takes them out.

        Raises:
          UserError: damaged files, tensors of another kind.
        """
        return self.read()

    @property
    def kind(self) -> str:
        """The class of transformers that it says it is; '' where it says none."""
        named = self.values.get('architectures')
        return self.called.get('architectures', str(named[0]) if isinstance(named, list) and named else '')

    def name(self, of: str) -> str:
        """What the format calls a tensor or a key."""
        return self.called.get(of, of)


class Format(Protocol):
    """A way to save a model: a module with these two functions, and a line in formats.py."""

    def recognises(self, directory: epath.Path) -> bool:
        """Whether a directory holds this format, told by the names of its files."""

    def read(self, directory: epath.Path) -> CheckpointSource:
        """What the directory holds; its tensors are not read yet.

        Raises:
          UserError: a damaged description, or one of another kind of model.
        """
