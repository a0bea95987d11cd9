"""bertjax: pre-train BERT in JAX and take it to its tasks.

`bertjax.load(path)` gives a trained model to a program or a notebook, see api.py; training is `python -m bertjax.main`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.api import Bert, load

__version__ = '0.1.0'
__all__ = ['Bert', '__version__', 'load']


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: the worker processes that build a corpus import the package, too, and need no JAX.
    if name in ('Bert', 'load'):
        from bertjax import api

        return getattr(api, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
