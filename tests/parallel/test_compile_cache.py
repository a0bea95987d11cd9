"""Tests the folder of the compilation cache, and that errors of the cache never stop a run."""

import pathlib

import jax
import pytest

from bertjax.parallel import compile_cache
from bertjax.parallel.compile_cache import VARIABLE, enable_compile_cache


@pytest.fixture
def cache_folder(monkeypatch: pytest.MonkeyPatch):
    """cache_folder() -> the cache folder that a new process would choose, or None."""
    before = jax.config.jax_compilation_cache_dir

    def choose() -> str | None:
        jax.config.update('jax_compilation_cache_dir', None)
        enable_compile_cache()
        return jax.config.jax_compilation_cache_dir

    monkeypatch.delenv(VARIABLE, raising=False)
    yield choose
    jax.config.update('jax_compilation_cache_dir', before)


def test_the_cache_is_in_the_users_cache_folder(cache_folder, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    folder = pathlib.Path(cache_folder())
    assert folder.parent == tmp_path / '.cache' / 'bertjax' / 'compiled' and folder.is_dir()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert pathlib.Path(cache_folder()).parent == tmp_path / 'xdg' / 'bertjax' / 'compiled'


@pytest.mark.parametrize('chosen', ['', '/somewhere'])
def test_the_variable_of_jax_is_not_overridden(cache_folder, monkeypatch: pytest.MonkeyPatch, chosen: str):
    monkeypatch.setenv(VARIABLE, chosen)
    assert cache_folder() is None  # JAX reads the variable.


def test_short_compilations_are_cached(cache_folder, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    name = 'jax_persistent_cache_min_compile_time_secs'
    before = getattr(jax.config, name)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    try:
        for value, expected in ((1.0, compile_cache.MIN_COMPILE_SECONDS), (0.0, 0.0)):
            jax.config.update(name, value)
            cache_folder()
            assert getattr(jax.config, name) == expected
        monkeypatch.setenv(name.upper(), '5')
        jax.config.update(name, 5.0)
        cache_folder()
        assert getattr(jax.config, name) == 5.0
    finally:
        jax.config.update(name, before)


def test_an_existing_setting_is_not_changed(tmp_path: pathlib.Path, cache_folder):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path))
    enable_compile_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_without_a_writable_folder_there_is_no_cache(
    cache_folder, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert cache_folder() is None
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(compile_cache.os, 'access', lambda path, mode: False)
    assert cache_folder() is None


def test_the_least_recently_used_programs_are_removed(tmp_path: pathlib.Path):
    import os

    for age, name in enumerate(('new', 'old', 'oldest')):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 5))
    compile_cache.prune(tmp_path, max_bytes=20)
    assert {path.name for path in tmp_path.iterdir()} == {'new', 'old'}


def test_a_folder_or_a_vanished_file_does_not_disable_the_cache(
    cache_folder, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """The compiler for GPUs stores a folder of autotuning results among the programs."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    folder = pathlib.Path(cache_folder())
    (folder / 'xla_gpu_per_fusion_autotune_cache_dir').mkdir()
    (folder / 'program').write_bytes(bytes(10))
    listed, prune = pathlib.Path.iterdir, compile_cache.prune
    monkeypatch.setattr(pathlib.Path, 'iterdir', lambda path: [*listed(path), path / 'pruned by another'])
    monkeypatch.setattr(compile_cache, 'prune', lambda folder: prune(folder, max_bytes=5))
    assert cache_folder() == str(folder)
    assert [path.name for path in listed(folder)] == ['xla_gpu_per_fusion_autotune_cache_dir']
