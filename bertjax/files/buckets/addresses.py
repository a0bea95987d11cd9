"""Addresses in buckets, gs://BUCKET/PATH and s3://BUCKET/PATH, and names below them."""

import os
import re
from collections.abc import Iterable

_ADDRESS = re.compile(r'(gs|s3)://([^/]+)/?(.*)', re.DOTALL)


def is_bucket(path: str | os.PathLike) -> bool:
    """Whether the path is an address in a bucket."""
    return _ADDRESS.match(os.fspath(path)) is not None


def parts_of(url: str) -> tuple[str, str, str]:
    """('gs' or 's3', the bucket, the path in it without a slash at its ends)."""
    scheme, bucket, path = _ADDRESS.fullmatch(url).groups()
    return scheme, bucket, path.strip('/')


def sorted_names(names: Iterable[str]) -> list[str]:
    """Sorted as a walk through folders comes by them: part by part."""
    return sorted(names, key=lambda name: name.split('/'))
