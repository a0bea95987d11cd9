"""Encodes shards, and computes the training data of a vocabulary, with Apache Beam."""

import logging

from bertjax.errors import UserError


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
