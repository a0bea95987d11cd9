"""The entry point of `python -m bertjax`, which is equivalent to the command `bertjax`."""

from bertjax.main import console

if __name__ == '__main__':  # False in worker processes, which import this file.
    console()
