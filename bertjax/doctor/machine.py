"""The machine: packages that go together, devices, the workdir, the disk."""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement

from bertjax.doctor.check import FAIL, OK, WARN, Check, looking_at
from bertjax.errors import UserError
from bertjax.files import disk
from bertjax.files.atomic import exclusive
from bertjax.parallel.devices import unused_accelerator
from bertjax.train.canary import training_devices

_SHOWN = ('jax', 'jaxlib', 'libtpu', 'flax')
_OF_DEVICES = ('libtpu', 'jax-cuda', 'jax-rocm')  # what jax names in extras: the version that it was released with
_EXTRAS = {'TPU': 'tpu', 'GPU': 'cuda'}


@looking_at('versions')
def versions() -> Iterator[Check]:
    """Whether the packages that are installed are those that bertjax and jax ask for."""
    found = ', '.join(f'{name} {version}' for name in _SHOWN if (version := _version(name)))
    there = f'Python {platform.python_version()}, {found}'
    wrong = [*_wrong('bertjax'), *_wrong('jax')]
    for name, version, asked, by in wrong:
        has = f'{name} {version}' if version else f'no {name}'
        if name.startswith(_OF_DEVICES):
            fix = f"pip install '{name}{asked}', unless run=compile or a short run has shown that it works"
            yield Check('versions', WARN, f'{has}, and {by} was released with {asked.removeprefix("==")}', fix)
        else:
            yield Check('versions', FAIL, f'{has}, and {by} needs {asked}', f"pip install '{name}{asked}'")
    if not wrong:
        yield Check('versions', OK, there)


def _wrong(distribution: str) -> Iterator[tuple[str, str | None, str, str]]:
    """(name, version that is installed, versions asked for, who asks) of each that is not as it should be."""
    try:
        asked = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # bertjax, where it runs from a checkout
        return
    by = f'{distribution} {importlib.metadata.version(distribution)}'
    for requirement in map(Requirement, asked):
        version = _version(requirement.name)
        always = requirement.marker is None or requirement.marker.evaluate({'extra': ''})
        if not always and (version is None or not requirement.name.startswith(_OF_DEVICES)):
            continue
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield requirement.name, version, str(requirement.specifier), by


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@looking_at('devices')
def devices() -> Iterator[Check]:
    """What JAX computes on, whether rightly, and whether something better lies idle."""
    try:
        found = training_devices()
    except RuntimeError as error:  # of JAX: a TPU that another process holds, for example
        reason = (str(error).strip() or 'no reason given').splitlines()[0]
        yield Check('devices', FAIL, f'JAX cannot start: {reason}', 'end what holds the devices, or fix the driver')
        return
    kind = f'{len(found)} x {found[0].device_kind}'
    idle = unused_accelerator(found[0].platform)
    if idle:
        fix = f"pip install 'bertjax[{_EXTRAS[idle]}]', and look at what JAX says when it starts"
        yield Check('devices', WARN, f'{kind}, though this machine has a {idle}', fix)
    else:
        yield Check('devices', OK, f'{kind}, and a gradient computed there is right')


@looking_at('workdir')
def workdir(folder: pathlib.Path) -> Iterator[Check]:
    """Whether the workdir can be written to, and nobody is at work there."""
    place = existing(folder)
    if not folder.exists():
        if not os.access(place, os.W_OK | os.X_OK):
            yield Check('workdir', FAIL, f'no folder can be made in {place}', 'change its permissions, or name another')
        else:
            yield Check('workdir', OK, f'{folder} is new, and can be made')
        return
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix='.doctor-'):
            pass
    except OSError as error:
        raise disk.refused(error, str(folder)) or error from None
    yield Check('workdir', OK, f'{folder} can be written to')


def is_at_work(folder: pathlib.Path) -> bool:
    """Whether a process works in this workdir now."""
    if not folder.exists():
        return False
    with contextlib.suppress(UserError), exclusive(folder, 'works in this workdir'):
        return False
    return True


@looking_at('disk')
def room(folder: pathlib.Path, needed: Mapping[str, int]) -> Iterator[Check]:
    """Whether what a run writes finds room: {what: bytes}, the first of which it cannot do without."""
    free, total = shutil.disk_usage(existing(folder)).free, sum(needed.values())
    wanted = ', '.join(f'{what} {gib(size)}' for what, size in needed.items())
    found = f'{gib(free)} free; {wanted}'
    if free < next(iter(needed.values())):
        yield Check('disk', FAIL, found, 'make room, lower config.checkpoint_keep, or give a --workdir elsewhere')
    elif free < total:
        yield Check('disk', WARN, f'{found}: in all more than there is', 'make room before the run is over')
    else:
        yield Check('disk', OK, found)


def existing(folder: pathlib.Path) -> pathlib.Path:
    """The folder, or the nearest above it that is there."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


def gib(size: float) -> str:
    """Bytes for reading."""
    return f'{size / 2**30:.1f} GiB' if size >= 2**30 else f'{size / 2**20:.0f} MiB'
