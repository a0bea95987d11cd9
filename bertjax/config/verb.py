"""The declaration of a verb, the constant VERB in its file of bertjax/commands/."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """The needs of a verb.

    Besides the config and the workdir, its `run` may take three parameters: `recipe`, the recipe as the command line
    names it; `overridden`, the keys that the command line sets; and `given`, these and the keys that the recipe's
    argument decides.

    Attributes:
      needs: The config key that its recipes must have, see EXAMPLES; '' for none.
      teacher: Whether it accepts a recipe with config.distill, because it uses the teacher or trains nothing.
      trains: Whether it trains a model.
      processes: Whether several processes can compute it together.
      devices: Whether it computes on devices.
      workdir: Whether it needs a workdir.
      bucket: How it uses a workdir in a bucket. 'write' holds the lease and publishes changes. 'look' reads it, also
        while a run is active, and publishes at most one file. 'inspect' reads even if other rights are denied.
    """

    needs: Literal['', 'corpus', 'task', 'distill'] = ''
    teacher: bool = True
    trains: bool = False
    processes: bool = False
    devices: bool = True
    workdir: bool = True
    bucket: Literal['write', 'look', 'inspect'] = 'write'


# {config key: a recipe that has it}.
EXAMPLES = {'corpus': 'pretrain_tiny', 'task': 'glue:rte', 'distill': 'distilbert'}
