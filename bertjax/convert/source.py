"""The common form of a saved model of any format: its description and its tensors, with the names of transformers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from etils import epath


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A saved model of any format.

    Attributes:
      where: The directory, for messages.
      description_file: The file of `values`, for messages.
      values: The content of a config.json of model_type 'bert', with `architectures` and `id2label` if the format has
        them. In addition, `type_vocab_size` 0 means no segment embedding, and `pooler_act` is the pooler's activation
        if it is not tanh (both for DistilBERT).
      read: Reads the tensors. It is called at their first use, because many callers need only the sizes of a model.
      called: {name of a tensor or key of `values`: its name in the format}, for messages, if they differ.
      fields: Fields of a BertConfig, instead of `values`, in our own format.
      unused_content: A description of content beside the model that is not used, such as an optimiser's variables.
      dtypes: {name of a tensor: numpy's name of its stored dtype}, filled by `read`; float32 for other names.
    """

    where: str
    description_file: str
    values: Mapping[str, Any]
    read: Callable[[], dict[str, np.ndarray]]
    called: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unused_content: str = ''
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        """{name in transformers' BertForPreTraining, BertForSequenceClassification ...: float32 array}.

        The conversion to our arrays removes them from the dictionary.

        Raises:
          UserError: A file is damaged, or a tensor is of another kind.
        """
        return self.read()

    @property
    def kind(self) -> str:
        """The class of transformers in the description; '' if there is none."""
        classes = self.values.get('architectures')
        return self.called.get('architectures', str(classes[0]) if isinstance(classes, list) and classes else '')

    def name(self, key: str) -> str:
        """Returns the name of a tensor or key in the format."""
        return self.called.get(key, key)


class Format(Protocol):
    """A format of saved models: a module with these two functions, and a line in formats.py."""

    def recognises(self, directory: epath.Path) -> bool:
        """Returns whether a directory holds this format, by the names of its files."""

    def read(self, directory: epath.Path) -> CheckpointSource:
        """Reads the description of a model; its tensors are read later.

        Raises:
          UserError: The description is damaged, or the model is of another kind.
        """
