"""The common representation of a saved model in any format: its description and its tensors, as in transformers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class StoredTensor(NamedTuple):
    """A tensor of a saved model."""

    name: str  # the name in the format, for error messages
    dtype: str  # the stored dtype, as in NumPy
    values: np.ndarray  # float32


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A saved model of any format.

    Attributes:
      where: The directory, for error messages.
      description_file: The path of the file with `values`, for error messages.
      values: The content of an equivalent config.json of model_type 'bert'. For Orbax, it has only `architectures`
        and the task's fields.
      fields: The fields of a BertConfig.
      read: A function that reads the tensors. It is called when `tensors` is first used, because many callers
        need only the sizes of a model.
      key_names: {key in BERT: its name in the format}, for names that differ. Error messages have the names of the
        format.
      unused_content: A description of unused content of the directory, such as the variables of an optimizer.
    """

    where: str
    description_file: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any]
    read: Callable[[], dict[str, StoredTensor]]
    key_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused_content: str = ''

    @functools.cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by their names in the BERT classes of transformers.

        The conversion to our arrays removes the converted tensors from the dictionary. Raises a UserError if a file is
        damaged or a tensor has an unsupported type.
        """
        return self.read()

    @property
    def kind(self) -> str:
        """The class of transformers that the description names, or ''."""
        classes = self.values.get('architectures')
        return self.key_names.get('architectures', str(classes[0]) if isinstance(classes, list) and classes else '')
