"""Loads google-research/bert's create_pretraining_data.py from a checkout, without TensorFlow 1."""

import sys
import types
from types import ModuleType


def load_checkout(path: str) -> tuple[ModuleType, ModuleType]:
    """Returns the modules `create_pretraining_data` and `tokenization` of a checkout.

    A stub replaces TensorFlow. It has only `flags`, which are ignored, and `gfile`, so nothing can write records.

    Args:
      path: A checkout of github.com/google-research/bert.
    """
    stub = types.ModuleType('tensorflow')
    ignored = {f'DEFINE_{kind}': lambda *_: None for kind in ('string', 'bool', 'integer', 'float')}
    stub.flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(do_whole_word_mask=False), **ignored)
    stub.gfile = types.SimpleNamespace(GFile=open)
    original = sys.modules.get('tensorflow')
    sys.modules['tensorflow'] = stub
    sys.path.insert(0, path)
    try:
        import create_pretraining_data
        import tokenization
    finally:
        sys.path.remove(path)
        if original is None:
            del sys.modules['tensorflow']
        else:
            sys.modules['tensorflow'] = original
    return create_pretraining_data, tokenization
