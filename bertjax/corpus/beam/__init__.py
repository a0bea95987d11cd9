"""Encodes shards, and computes the training data of a vocabulary, with Apache Beam."""

import logging

from bertjax.errors import UserError


def check_beam(flags: str) -> None:
    """Checks that a pipeline can run with `flags`, the value of config.beam, and silences the logs of Beam.

    Raises:
      UserError: Apache Beam or the package of a runner is not installed, a flag is unknown, or a Dask scheduler does
        not answer.
    """
    # The warnings of Beam, such as those about missing packages for BigQuery, do not matter to users.
    logging.getLogger('apache_beam').setLevel(logging.ERROR)
    logging.getLogger('distributed.client').setLevel(logging.CRITICAL)
    try:
        from bertjax.corpus.beam.flags import check_scheduler, parse_flags
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] != 'apache_beam':
            raise
        fix = "pip install 'bertjax[beam]', in a separate environment (docs/data.md)"
        raise UserError('config.beam', f'{flags!r} without Apache Beam', 'the package apache-beam', fix) from None
    check_scheduler(*parse_flags(flags))
