"""Checks the machine (the package versions, the devices, the disk), and the workdir in a folder or in a bucket."""

import contextlib
import importlib.metadata
import pathlib
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement

from bertjax.doctor.check import FAIL, OK, WARN, Check, check
from bertjax.errors import UserError
from bertjax.files import disk
from bertjax.files.atomic import lock_directory
from bertjax.parallel.devices import unused_accelerator
from bertjax.remote.lease import lease_holder
from bertjax.remote.object_store import RemoteFolder, split_address
from bertjax.remote.retry import DeniedError
from bertjax.training.health.gradient_check import training_devices

_DEVICE_PACKAGES = ('libtpu', 'jax-cuda', 'jax-rocm')  # a release of jax requires a certain version of each
_EXTRAS = {'TPU': 'tpu', 'GPU': 'cuda'}
# {scheme: {right: the name that Amazon or Google gives to the permission}}.
_RIGHTS = {
    's3': {'list': 's3:ListBucket', 'read': 's3:GetObject', 'write': 's3:PutObject', 'delete': 's3:DeleteObject'},
    'gs': {right: f'storage.objects.{name}' for right, name in
           (('list', 'list'), ('read', 'get'), ('write', 'create'), ('delete', 'delete'))},
}  # fmt: skip


@check('versions')
def versions() -> Iterator[Check]:
    """Compares the installed packages with the requirements of bertjax and jax."""
    all_match = True
    for owner in ('bertjax', 'jax'):
        for requirement in _requirements(owner):
            version = _version(requirement.name)
            if version and requirement.specifier.contains(version, prereleases=True):
                continue
            all_match = False
            installed = f'{requirement.name} {version}' if version else f'no {requirement.name}'
            status, needs = FAIL, f'needs {requirement.specifier}'
            fix = f"pip install '{requirement.name}{requirement.specifier}'"
            if requirement.name.startswith(_DEVICE_PACKAGES):
                status, needs = WARN, f'was released with {str(requirement.specifier).removeprefix("==")}'
                fix += ', unless run=compile or a short run works with the installed version'
            yield Check('versions', status, f'{installed}, and {owner} {_version(owner)} {needs}', fix)
    if all_match:
        names = {'Python': platform.python_version()}
        names |= {name: _version(name) for name in ('jax', 'jaxlib', 'libtpu', 'flax')}
        yield Check('versions', OK, ', '.join(f'{name} {version}' for name, version in names.items() if version))


def _requirements(owner: str) -> Iterator[Requirement]:
    """Yields the requirements of a package that apply to this machine or name an installed device package."""
    if _version(owner) is None:  # a checkout of bertjax that is not installed
        return
    seen: set[tuple[str, str]] = set()  # several extras may have the same requirement
    for requirement in map(Requirement, importlib.metadata.requires(owner) or []):
        is_device = requirement.name.startswith(_DEVICE_PACKAGES) and _version(requirement.name)
        applies = is_device or requirement.marker is None or requirement.marker.evaluate({'extra': ''})
        if applies and (key := (requirement.name, str(requirement.specifier))) not in seen:
            seen.add(key)
            yield requirement


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@check('devices')
def devices() -> Iterator[Check]:
    """Computes a gradient on JAX's first device, and looks for an accelerator that JAX does not use."""
    available = training_devices()
    kind = f'{len(available)} x {available[0].device_kind}'
    if idle := unused_accelerator(available[0].platform):
        fix = f"pip install 'bertjax[{_EXTRAS[idle]}]', and read the messages of JAX at its start"
        yield Check('devices', WARN, f'{kind}, though this machine has a {idle}', fix)
    else:
        yield Check('devices', OK, f'{kind}, and a gradient on the first is correct')


@check('workdir')
def workdir(folder: pathlib.Path) -> Iterator[Check]:
    """Creates and removes a temporary file in the workdir, or in its nearest existing parent."""
    disk.check_writable(disk.nearest_folder(folder))
    state = 'can be written to' if folder.exists() else 'does not exist, and can be created'
    yield Check('workdir', OK, f'{folder} {state}')


def is_at_work(folder: pathlib.Path) -> bool:
    """Returns whether a process is working in this workdir."""
    if not folder.exists():
        return False
    with contextlib.suppress(UserError), lock_directory(folder, 'works in this workdir'):
        return False
    return True


@check('disk')
def disk_space(
    folder: pathlib.Path, needed: Mapping[str, int], other: str = 'give a --workdir on another disk'
) -> Iterator[Check]:
    """Compares the free disk space with `needed`, {name of files: bytes}. Fails if the first entry does not fit."""
    free = shutil.disk_usage(disk.nearest_folder(folder)).free
    message = f'{gib(free)} free; {", ".join(f"{name} {gib(size)}" for name, size in needed.items())}'
    if free < next(iter(needed.values())):
        yield Check('disk', FAIL, message, f'make room, or {other}')
    elif free < sum(needed.values()):
        yield Check('disk', WARN, f'{message}: not enough for all of them', 'make room or lower config.checkpoint_keep')
    else:
        yield Check('disk', OK, message)


def gib(size: float) -> str:
    """Formats a number of bytes as GiB or MiB."""
    return f'{size / 2**30:.1f} GiB' if size >= 2**30 else f'{size / 2**20:.0f} MiB'


def bucket_rights(url: str) -> Iterator[Check]:
    """Checks the rights to list, read, write and delete objects in the workdir gs://… or s3://…"""
    folder, probe = RemoteFolder(url, '--workdir'), f'.doctor-{secrets.token_hex(8)}'
    actions = {
        'list': folder.find,
        'read': lambda: folder.read(probe),  # no such object: 404 with the rights to list and read, else 403
        'write': lambda: folder.write(probe, b'run=doctor'),
        'delete': lambda: folder.remove(probe),
    }
    is_written = False
    for right, act in actions.items():
        try:
            with contextlib.suppress(FileNotFoundError):
                act()
        except DeniedError as error:
            remains = f'; the object {probe} remains' if right == 'delete' and is_written else ''
            fix = f'give these credentials {_RIGHTS[split_address(url)[0]][right]}, or use others: {error.fix}'
            yield Check(right, FAIL, f'{error.found}{remains}', fix)
        except UserError as error:  # the bucket is missing or unreachable, so the other checks would fail too
            yield Check('bucket', FAIL, error.found, error.fix)
            return
        else:
            is_written |= right == 'write'
            yield Check(right, OK, f'allowed in {folder}')


def bucket_lease(url: str) -> Iterator[Check]:
    """Yields a warning with the holder of the workdir's lease, if there is one."""
    with contextlib.suppress(UserError):  # `bucket_rights` reports the error
        if owner := lease_holder(RemoteFolder(url)):
            yield Check('lease', WARN, f'{owner} works in {url}, or was killed there', 'wait for it, or end it')
