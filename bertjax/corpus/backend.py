"""By what the parts of a build are worked on: processes of this machine, or a pipeline of Apache Beam.

Either applies the same functions, shard by shard and bucket by bucket; what follows is the same for both, and so is
every byte.
"""

import functools
import logging
import pathlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from bertjax.corpus import duplicates, workers
from bertjax.corpus.merge import Shard, keep_documents
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.errors import UserError
from bertjax.text.tokenizer import Tokenizer


class Backend(Protocol):
    """What can be done shard by shard, or in one bucket of hashes after the other."""

    def encode(
        self,
        directory: pathlib.Path,
        shards: dict[int, list[TextPart]],
        tokenizer: Tokenizer,
        options: CorpusOptions,
        progress: workers.Progress,
    ) -> None:
        """Writes the files of the shards, see `encode.encode_shard`."""

    def compare(self, shards: list[Shard]) -> tuple[np.ndarray, int]:
        """See `duplicates`: `find_repeats` and `count_distinct_lines` of all shards."""

    def keep(
        self, shards: list[Shard], destinations: list[np.ndarray], itemsize: int
    ) -> Callable[[Shard, np.ndarray], str]:
        """What `merge.merge_shards` calls for a shard that has changed."""


class LocalBackend:
    """Processes of this machine."""

    def encode(
        self,
        directory: pathlib.Path,
        shards: dict[int, list[TextPart]],
        tokenizer: Tokenizer,
        options: CorpusOptions,
        progress: workers.Progress,
    ) -> None:
        """See `Backend`."""
        workers.encode_shards(directory, shards, tokenizer, options, progress)

    def compare(self, shards: list[Shard]) -> tuple[np.ndarray, int]:
        """See `Backend`."""
        return duplicates.find_repeats(shards), duplicates.count_distinct_lines(shards)

    def keep(
        self, shards: list[Shard], destinations: list[np.ndarray], itemsize: int
    ) -> Callable[[Shard, np.ndarray], str]:
        """See `Backend`: each is written when it is asked for."""
        return functools.partial(keep_documents, itemsize=itemsize)


def check_beam(flags: str) -> None:
    """Refuses a config.beam that no pipeline could run with.

    Raises:
      UserError: Apache Beam or the package of a runner is not installed, the flags are none of its own, or a Dask
        scheduler does not answer.
    """
    logging.disable(logging.WARNING)  # Beam warns of what it could do for BigQuery.
    try:
        from bertjax.corpus.beam_flags import check_flags
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] != 'apache_beam':
            raise
        fix = "pip install 'bertjax[beam]', in an environment of its own (docs/data.md)"
        raise UserError('config.beam', f'{flags!r} without Apache Beam', 'the package apache-beam', fix) from None
    finally:
        logging.disable(logging.NOTSET)
    check_flags(flags)


def make_backend(beam: str) -> Backend:
    """The means that config.beam names.

    Raises:
      UserError: see `check_beam`.
    """
    if not beam:
        return LocalBackend()
    check_beam(beam)
    from bertjax.corpus.beam_store import BeamBackend

    return BeamBackend(beam)
