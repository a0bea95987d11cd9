"""google-research/bert's create_pretraining_data.py, from a checkout, without TensorFlow 1, which only writes there."""

import sys
import types
from types import ModuleType


def load_checkout(path: str) -> tuple[ModuleType, ModuleType]:
    """Its modules `create_pretraining_data` and `tokenization`.

    Of TensorFlow they are given files, strings and flags that do nothing; what writes records is not there.

    Args:
      path: a checkout of github.com/google-research/bert.
    """
    stand_in = types.ModuleType('tensorflow')
    ignored = {f'DEFINE_{kind}': lambda *_: None for kind in ('string', 'bool', 'integer', 'float')}
    stand_in.flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(do_whole_word_mask=False), **ignored)
    stand_in.gfile = types.SimpleNamespace(GFile=open)
    kept = sys.modules.get('tensorflow')
    sys.modules['tensorflow'] = stand_in
    sys.path.insert(0, path)
    try:
        import create_pretraining_data
        import tokenization
    finally:
        sys.path.remove(path)
        if kept is None:
            del sys.modules['tensorflow']
        else:
            sys.modules['tensorflow'] = kept
    return create_pretraining_data, tokenization
