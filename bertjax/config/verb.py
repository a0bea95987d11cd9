"""The declaration of a verb. Each file of bertjax/commands/ has one, its constant VERB."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """The requirements and the properties of a verb.

    The function `run` of a verb takes the config and the workdir. It may also take these arguments:

      recipe: The recipe as the command line or the Python program spells it.
      flag_keys: The config keys that the user set, see `config.files.Recipe`.
      command_line_keys: The keys in `flag_keys`, and the keys that the argument of the recipe sets.

    Attributes:
      needs: The config key that the recipe must have, such as 'corpus' or 'extract'; '' for none.
      teacher: Whether the verb accepts a recipe with config.distill.
      trains: Whether the verb trains a model.
      processes: Whether several processes can run the verb together.
      devices: Whether the verb computes on devices.
      workdir: Whether the verb needs a workdir.
      bucket: How the verb uses a workdir in a bucket. 'write' takes the workdir's lease and publishes
        changes. 'look' reads the workdir, also during a run, and publishes at most one file. 'inspect' needs only the
        right to read.
    """

    needs: str = ''
    teacher: bool = True
    trains: bool = False
    processes: bool = False
    devices: bool = True
    workdir: bool = True
    bucket: Literal['write', 'look', 'inspect'] = 'write'


# {config key: a recipe that has it}. Any other key that a verb needs is also the name of a recipe that has it.
EXAMPLES = {'corpus': 'pretrain_tiny', 'task': 'glue:rte', 'distill': 'distilbert'}
