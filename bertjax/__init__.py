"""bertjax: pre-train and fine-tune BERT in JAX.

`bertjax.load(path)` loads a trained model in a program or a notebook; see api.py. `python -m bertjax.main` trains.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.api import Bert, load

__version__ = '0.1.0'
__all__ = ['Bert', '__version__', 'load']


def __getattr__(name: str) -> Any:
    # A lazy import: the worker processes that build a corpus also import this package, but do not need JAX.
    if name in ('Bert', 'load'):
        from bertjax import api

        return getattr(api, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
