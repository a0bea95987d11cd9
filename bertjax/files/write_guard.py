"""Whether this process writes files: of the processes of one run only the first does, and the others read them."""

_muted = False


def disable_writes() -> None:
    """From now on files, directories and lines that this process writes go nowhere, and it takes no locks."""
    global _muted
    _muted = True


def writes_are_disabled() -> bool:
    """Whether `disable_writes` was called."""
    return _muted
