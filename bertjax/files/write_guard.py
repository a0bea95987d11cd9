"""A switch that disables writes. In a run of several processes, only the primary process writes files."""

_disabled = False


def disable_writes() -> None:
    """Makes this process discard all files, directories and lines that it writes, and take no locks, from now on."""
    global _disabled
    _disabled = True


def writes_are_disabled() -> bool:
    """Returns whether `disable_writes` was called."""
    return _disabled
