"""Marks that several test files share."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def slow(*cases: Any) -> Iterator[Any]:
    """Yields cases marked as slow, for the list of a `parametrize`; a tuple is one value."""
    return (pytest.param(case, marks=pytest.mark.slow) for case in cases)


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Returns the cases of a `parametrize`, all but `quick` marked as slow; a tuple is one value."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


# A model with scanned layers, and in the slow suite with unrolled layers.
SCAN = pytest.mark.parametrize('scan', [True, *slow(False)], ids=['scanned', 'unrolled'])
