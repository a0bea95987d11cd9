"""Marks that several test files share."""

from collections.abc import Iterator
from typing import Any

import pytest


def slow(*cases: Any) -> Iterator[Any]:
    """Yields cases marked as slow, for the list of a `parametrize`; a tuple is one value."""
    return (pytest.param(case, marks=pytest.mark.slow) for case in cases)


# A model with scanned layers, and in the slow suite with unrolled layers.
SCAN = pytest.mark.parametrize('scan', [True, *slow(False)], ids=['scanned', 'unrolled'])
