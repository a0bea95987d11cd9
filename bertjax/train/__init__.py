"""The trainer, the loop and the step of all trainings. `bertjax.train(recipe, workdir)` calls `program.train`.

The import system makes this package the attribute `bertjax.train` as soon as something imports it. The package is
therefore callable, like the function of the same name.
"""

import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    def __call__(self, recipe: Any, workdir: Any, *, on_row: Any = None, quiet: bool = False, **keys: Any) -> Any:
        """Trains with a recipe; see `bertjax.program.train`."""
        import bertjax

        return bertjax.program.train(recipe, workdir, on_row=on_row, quiet=quiet, **keys)


sys.modules[__name__].__class__ = _CallablePackage
