"""bertjax: pre-train and fine-tune BERT in JAX.

In Python, `bertjax.train(recipe, workdir)` trains a model (program.py), and `bertjax.load(path)` loads a trained model
(api.py). On the command line, `python -m bertjax.main` runs the same program.
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
    'program': ('Recipe', 'FinishedRun', 'recipe', 'run', 'train'),
}
__all__ = [
    'Bert', 'FinishedRun', 'NonFiniteError', 'PreemptedError', 'Recipe', 'UserError', '__version__', 'load',
    'load_vectors', 'recipe', 'run', 'train',
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Imports are lazy, because the worker processes that encode a corpus import this package but do not need JAX.
    if name == 'program':
        return importlib.import_module('bertjax.program')
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f'bertjax.{module}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
