"""The common representation of a saved model in any format: its description and its tensors, as in transformers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


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
      format_names: {name of a tensor or key in BERT: its name in the format}, for names that differ. Error messages
        have the names of the format.
      unused_content: A description of unused content of the directory, such as the variables of an optimizer.
      dtypes: {name of a tensor: NumPy name of its stored dtype}, filled in by `read`. The default is float32.
    """

    where: str
    description_file: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any]
    read: Callable[[], dict[str, np.ndarray]]
    format_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused_content: str = ''
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        """The float32 arrays by their names in the BERT classes of transformers.

        The conversion to our arrays removes the converted arrays from the dictionary. Raises a UserError if a file is
        damaged or a tensor has an unsupported type.
        """
        return self.read()

    @property
    def kind(self) -> str:
        """The class of transformers that the description names, or ''."""
        classes = self.values.get('architectures')
        return self.format_names.get('architectures', str(classes[0]) if isinstance(classes, list) and classes else '')

    def name(self, key: str) -> str:
        """Returns the name of a tensor or key in the format."""
        return self.format_names.get(key, key)
