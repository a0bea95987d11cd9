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
      where: The path of the model, for error messages.
      description_file: The path of the file with `values`, for error messages.
      values: The content of config.json, but with BERT's names of classes in `architectures`. For other formats, at
        least the task's keys, and `architectures` for a task's model.
      fields: The fields of a BertConfig.
      read: A function that reads the tensors. It is called when `tensors` is first used, because many callers
        need only the sizes of a model.
      kind: The class of transformers that the description names, or ''.
      keys: {our field: its key in the description}, where they differ, for error messages.
      unused_content: A description of unused content of the directory, such as the variables of an optimizer.
    """

    where: str
    description_file: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any]
    read: Callable[[], dict[str, StoredTensor]]
    kind: str
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused_content: str = ''

    @functools.cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by their names in the BERT classes of transformers.

        The conversion to our arrays removes the converted tensors from the dictionary. Raises a UserError if a file is
        damaged or a tensor has an unsupported type.
        """
        return self.read()
