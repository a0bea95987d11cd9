"""The trainer, the loop and the step of all trainings. `bertjax.train(recipe, workdir)` calls `program.train`.

The import of this package sets the attribute `train` of `bertjax` to the package, so the package must be callable.
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
