"""Whether this process writes files. In a run of several processes only the first one writes; the others read."""

_disabled = False


def disable_writes() -> None:
    """Discards all files, directories and lines that this process writes from now on; it takes no locks either."""
    global _disabled
    _disabled = True


def writes_are_disabled() -> bool:
    """Whether `disable_writes` was called."""
    return _disabled
