"""`python -m bertjax`: what the command `bertjax` does."""

from bertjax.main import console

if __name__ == '__main__':  # worker processes import this file, too
    console()
