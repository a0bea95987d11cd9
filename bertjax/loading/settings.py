"""The settings of a verb that uses a trained model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.model.config import BertConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """The keys of `recipe.using_config`; other attributes have the names of their keys.

    Attributes:
      options: The options of the verb, config.VERB, as plain values.
    """

    init: str
    step: int
    input: str = ''
    dtype: str = 'float32'
    batch_size: int = 64
    max_length: int = 0
    options: Mapping[str, Any]

    def longest(self, config: BertConfig, default: int) -> int:
        """Returns the length in tokens to which texts are truncated: config.max_length, or `default` if that is 0.

        Raises:
          UserError: config.max_length exceeds the number of positions of the model.
        """
        limit = config.max_positions
        if self.max_length > limit:
            fix = 'leave it out for the longest'
            raise UserError('config.max_length', str(self.max_length), f'4 to {limit}, the positions of the model', fix)
        return self.max_length or default


def inference_settings(config: ConfigDict, verb: str) -> InferenceSettings:
    """Makes the settings from a config.

    Raises:
      UserError: The recipe is for another verb.
    """
    if verb not in config:
        found = f'a recipe without config.{verb}'
        raise UserError(f'--config.run={verb}', found, expected='one that has it', fix=f'give the recipe {verb}')
    names = [field.name for field in dataclasses.fields(InferenceSettings) if field.name != 'options']
    return InferenceSettings(**{name: config[name] for name in names if name in config}, options=dict(config[verb]))
