"""Tests that the image of launch/Dockerfile is built and runs, if there are a builder and a base image."""

import os
import pathlib
import shutil
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
# A builder may be installed but not work, such as docker without its daemon.
BUILDERS = {'buildah': ['bud', '--isolation=chroot'], 'podman': ['build'], 'docker': ['build']}


def call(*command: str) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, f'{" ".join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}'
    return done.stdout


@pytest.mark.slow
def test_an_image_is_built_and_prints_its_help():
    base = os.environ.get('BERTJAX_BASE_IMAGE') or pytest.skip('BERTJAX_BASE_IMAGE names no base image to build on')
    installed = [name for name in BUILDERS if shutil.which(name)]
    works = [name for name in installed if subprocess.run([name, 'info'], capture_output=True).returncode == 0]
    builder = works[0] if works else pytest.skip(f'none of {", ".join(BUILDERS)} works here; installed: {installed}')
    # More arguments, such as --volume and --env for a package index.
    more = os.environ.get('BERTJAX_BUILD_ARGUMENTS', '').split()
    extra = os.environ.get('BERTJAX_IMAGE_EXTRA', 'gcs')
    arguments = ['-f', 'launch/Dockerfile', '--build-arg', f'BASE={base}', '--build-arg', f'EXTRA={extra}', *more]
    call(builder, *BUILDERS[builder], *arguments, '-t', 'bertjax-test', '.')
    if builder == 'buildah':
        container = call('buildah', 'from', 'bertjax-test').strip()
        try:
            output = call('buildah', 'run', '--isolation=chroot', container, 'python', '-m', 'bertjax.main', '--help')
        finally:
            call('buildah', 'rm', container)
    else:
        output = call(builder, 'run', '--rm', 'bertjax-test', '--help')
    assert '--workdir' in output
