"""What a verb declares of itself, in its file of bertjax/commands/, as VERB."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """What a verb needs. Besides the config and the workdir its `run` may take `recipe`, the recipe as the command line
    names it; `overridden`, the keys that the command line sets one by one; and `given`, these and the keys that the
    recipe's argument decides.

    Attributes:
      needs: the config key that its recipes must have, see EXAMPLES; '' for none.
      teacher: whether a recipe with config.distill may be given: the verb asks the teacher, or trains nothing.
      trains: whether it trains a model.
      processes: whether several processes can compute it together.
      devices: whether it computes on devices.
      workdir: whether it needs a workdir.
      bucket: what it does to a workdir in a bucket: 'write' holds the lease and publishes what changes; 'look' reads
        it, also while a run is at work there, and publishes a file at most; 'inspect' reads more, whatever is denied.
    """

    needs: Literal['', 'corpus', 'task', 'distill'] = ''
    teacher: bool = True
    trains: bool = False
    processes: bool = False
    devices: bool = True
    workdir: bool = True
    bucket: Literal['write', 'look', 'inspect'] = 'write'


# A recipe that has the key.
EXAMPLES = {'corpus': 'pretrain_tiny', 'task': 'glue:rte', 'distill': 'distilbert'}
