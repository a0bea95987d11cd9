"""The folder of the compilation cache; errors of the cache never stop a run."""

import pathlib

import jax
import pytest

from bertjax.parallel import compile_cache
from bertjax.parallel.compile_cache import VARIABLE, enable_compile_cache


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch):
    """kept() -> the cache folder that is chosen in a new process, or None."""
    before = jax.config.jax_compilation_cache_dir

    def choose() -> str | None:
        jax.config.update('jax_compilation_cache_dir', None)
        enable_compile_cache()
        return jax.config.jax_compilation_cache_dir

    monkeypatch.delenv(VARIABLE, raising=False)
    yield choose
    jax.config.update('jax_compilation_cache_dir', before)


def test_the_users_cache_folder(kept, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    folder = pathlib.Path(kept())
    assert folder.parent == tmp_path / '.cache' / 'bertjax' / 'compiled' and folder.is_dir()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert pathlib.Path(kept()).parent == tmp_path / 'xdg' / 'bertjax' / 'compiled'


@pytest.mark.parametrize('chosen', ['', '/somewhere'])
def test_jax_own_variable_wins(kept, monkeypatch: pytest.MonkeyPatch, chosen: str):
    monkeypatch.setenv(VARIABLE, chosen)
    assert kept() is None  # JAX itself reads the variable


def test_short_compilations_are_cached(kept, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    name = 'jax_persistent_cache_min_compile_time_secs'
    before = getattr(jax.config, name)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    try:
        for given, then in ((1.0, compile_cache.MIN_COMPILE_SECONDS), (0.0, 0.0)):
            jax.config.update(name, given)
            kept()
            assert getattr(jax.config, name) == then
        monkeypatch.setenv(name.upper(), '5')
        jax.config.update(name, 5.0)
        kept()
        assert getattr(jax.config, name) == 5.0
    finally:
        jax.config.update(name, before)


def test_an_existing_setting_is_not_changed(tmp_path: pathlib.Path, kept):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path))
    enable_compile_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_no_folder_to_write_to(kept, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert kept() is None
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(compile_cache.os, 'access', lambda path, mode: False)
    assert kept() is None


def test_the_least_recently_used_programs_are_removed(tmp_path: pathlib.Path):
    import os

    for age, name in enumerate(('new', 'old', 'oldest')):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 5))
    compile_cache._prune(tmp_path, max_bytes=20)
    assert {path.name for path in tmp_path.iterdir()} == {'new', 'old'}


def test_a_folder_or_a_vanished_file_does_not_disable_the_cache(
    kept, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """On a GPU, the compiler stores a folder of autotuning results beside the programs."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    folder = pathlib.Path(kept())
    (folder / 'xla_gpu_per_fusion_autotune_cache_dir').mkdir()
    (folder / 'program').write_bytes(bytes(10))
    listed, prune = pathlib.Path.iterdir, compile_cache._prune
    monkeypatch.setattr(pathlib.Path, 'iterdir', lambda path: [*listed(path), path / 'pruned by another'])
    monkeypatch.setattr(compile_cache, '_prune', lambda folder: prune(folder, max_bytes=5))
    assert kept() == str(folder)
    assert [path.name for path in listed(folder)] == ['xla_gpu_per_fusion_autotune_cache_dir']
