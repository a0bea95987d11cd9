"""config of a verb that uses a finished model -> UsingSettings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.model.config import BertConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """The keys of `recipe.using_config`; where no more is said, the attribute is the key.

    Attributes:
      options: those of the verb, config.VERB, in plain form.
    """

    init: str
    step: int
    input: str = ''
    dtype: str = 'float32'
    batch_size: int = 64
    max_length: int = 0
    options: Mapping[str, Any]

    def longest(self, config: BertConfig, usual: int) -> int:
        """Tokens that a text of a model is cut to; `usual` where config.max_length does not say.

        Raises:
          UserError: more than it has positions.
        """
        most = config.max_positions
        if self.max_length > most:
            fix = 'leave it out for the longest'
            raise UserError('config.max_length', str(self.max_length), f'4 to {most}, the positions of the model', fix)
        return self.max_length or usual


def inference_settings(config: ConfigDict, verb: str) -> InferenceSettings:
    """The settings of a config.

    Raises:
      UserError: the recipe of another verb.
    """
    if verb not in config:
        found, expected = f'a recipe without config.{verb}', 'one that has it'
        raise UserError(f'--config.run={verb}', found, expected, f'give the recipe {verb}')
    names = [field.name for field in dataclasses.fields(InferenceSettings) if field.name != 'options']
    return InferenceSettings(**{name: config[name] for name in names if name in config}, options=dict(config[verb]))
