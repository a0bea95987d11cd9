"""The backends of a build: processes on this machine, or pipelines of Apache Beam.

Both apply the same functions to each shard and each bucket of hashes, so both build the same store.
"""

import functools
import logging
from collections.abc import Callable

import numpy as np

from bertjax.corpus import duplicates, workers
from bertjax.corpus.merge import Shard, rewrite_train_file
from bertjax.errors import UserError


class Backend:
    """A backend that runs on this machine, and the base class of other backends."""

    encode = staticmethod(workers.encode_shards)

    def compare(self, shards: list[Shard]) -> tuple[np.ndarray, int]:
        """Returns the results of `duplicates.find_repeats` and `duplicates.count_distinct_lines` for all shards."""
        return duplicates.find_repeats(shards), duplicates.count_distinct_lines(shards)

    def prepare_rewrite(
        self, shards: list[Shard], destinations: list[np.ndarray], itemsize: int
    ) -> Callable[[Shard, np.ndarray], str]:
        """Returns the function that `merge.merge_shards` calls to rewrite the train file of each changed shard."""
        return functools.partial(rewrite_train_file, itemsize=itemsize)


def check_beam(flags: str) -> None:
    """Checks that a pipeline can run with `flags`, the value of config.beam.

    Raises:
      UserError: Apache Beam or the package of a runner is not installed, a flag is unknown, or a Dask scheduler does
        not answer.
    """
    logging.disable(logging.WARNING)  # Beam warns that packages for BigQuery are missing
    try:
        from bertjax.corpus.beam.flags import check_flags
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] != 'apache_beam':
            raise
        fix = "pip install 'bertjax[beam]', in a separate environment (docs/data.md)"
        raise UserError('config.beam', f'{flags!r} without Apache Beam', 'the package apache-beam', fix) from None
    finally:
        logging.disable(logging.NOTSET)
    check_flags(flags)


def make_backend(beam: str) -> Backend:
    """Makes the backend of a build. `beam` is the value of config.beam; '' means processes on this machine.

    Raises:
      UserError: See `check_beam`.
    """
    if not beam:
        return Backend()
    check_beam(beam)
    from bertjax.corpus.beam.store import BeamBackend

    return BeamBackend(beam)
