"""Data that a page carries for its scripts."""

import json
from typing import Any

from markupsafe import Markup


def inline(value: Any, name: str = '') -> Markup:
    """Data for a script of the page: `JSON.parse(document.getElementById(name).textContent)`.

    No text in it can end the element: `<`, `>` and `&` are written as JSON's own escapes.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(',', ':'), allow_nan=False)
    for char in '<>&\u2028\u2029':
        text = text.replace(char, f'\\u{ord(char):04x}')
    identifier = Markup(' id="{}"').format(name) if name else ''
    return Markup('<script type="application/json"{}>{}</script>').format(identifier, Markup(text))
