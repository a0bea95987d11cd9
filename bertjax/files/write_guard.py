"""A switch that disables writes. In a run of several processes, only the primary process writes files."""

_disabled = False


def disable_writes() -> None:
    """Makes this process discard everything that it writes from now on, and take no locks."""
    global _disabled
    _disabled = True


def writes_are_disabled() -> bool:
    """Returns whether `disable_writes` was called."""
    return _disabled
