"""Whether this process writes files: of the processes of one run only the first does, and the others read them."""

_muted = False


def mute() -> None:
    """From now on files, directories and lines that this process writes go nowhere, and it takes no locks."""
    global _muted
    _muted = True


def is_muted() -> bool:
    """Whether `mute` was called."""
    return _muted
