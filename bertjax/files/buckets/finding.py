"""Texts in a bucket, found as on a disk: an object, the objects of a folder, or those of a pattern."""

import dataclasses

from bertjax.errors import UserError
from bertjax.files.buckets.addresses import sorted_names
from bertjax.files.buckets.objects import Bucket
from bertjax.files.paths import is_hidden, is_pattern, name_matches, split_pattern


@dataclasses.dataclass(frozen=True)
class Found:
    """An object.

    Attributes:
      url: its address.
      name: as a file of the same place would be called in reports.
      size: bytes.
      tag: another one for any other content.
      single: it was found in a folder.
    """

    url: str
    name: str
    size: int
    tag: str
    single: bool = False


def found_in_bucket(spec: str, where: str) -> tuple[list[Found], bool]:
    """What an address or a pattern stands for, in the order of files on a disk; and whether it was searched for.

    In folders, and by `**`, names that begin with '.' or '_' are left out.

    Args:
      spec: gs://… or s3://…
      where: the config key, for messages.

    Raises:
      UserError: nothing is there; see `Bucket` too.
    """
    fix = f'check it with: {"gcloud storage" if spec.startswith("gs:") else "aws s3"} ls'
    top, pattern = split_pattern(spec) if is_pattern(spec) else (spec, [])
    if top.endswith(':') or top.endswith('/'):
        raise UserError(where, repr(spec), 'the name of a bucket before any wildcard', fix)
    one = Bucket(spec, where).about() if not pattern or '/' in top.partition('://')[2] else None
    if one is not None:
        return [Found(spec, spec.rpartition('/')[2], one.size, one.tag)], False
    bucket = Bucket(top, where)
    objects = bucket.objects()
    parts = {name: name.split('/') for name in sorted_names(objects)}
    names = [name for name, own in parts.items() if (name_matches(own, pattern) if pattern else not is_hidden(own))]
    if not names:
        raise UserError(where, f'nothing at {spec!r}', 'an object, a folder of them, or a glob that matches some', fix)
    prefix = '' if pattern else bucket.url.rpartition('/')[2] + '/'
    some = ((f'{bucket}/{name}', prefix + name, objects[name]) for name in names)
    return [Found(url, name, o.size, o.tag, single=not pattern) for url, name, o in some], True
