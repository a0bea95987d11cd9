"""bertjax: pre-train and fine-tune BERT in JAX.

`bertjax.train(recipe, workdir)` trains, see program.py, and `bertjax.load(path)` loads a trained model in a program or
a notebook, see api.py. `python -m bertjax.main` is the same program on the command line.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.api import Bert, load, load_vectors
    from bertjax.errors import NonFiniteError, PreemptedError, UserError
    from bertjax.program import FinishedRun, Recipe, recipe, run, train

__version__ = '0.1.0'
_MODULES = {
    'api': ('Bert', 'load', 'load_vectors'),
    'errors': ('NonFiniteError', 'PreemptedError', 'UserError'),
    'program': ('Recipe', 'FinishedRun', 'recipe', 'run'),
}
__all__ = [
    'Bert',
    'FinishedRun',
    'NonFiniteError',
    'PreemptedError',
    'Recipe',
    'UserError',
    '__version__',
    'load',
    'load_vectors',
    'recipe',
    'run',
    'train',
]


def __getattr__(name: str) -> Any:
    # Lazy imports: the worker processes that build a corpus also import this package, but do not need JAX.
    if name in ('program', 'train'):  # `train` is a package that can be called.
        return importlib.import_module(f'bertjax.{name}')
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f'bertjax.{module}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
