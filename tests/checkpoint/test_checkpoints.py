"""Tests saving, restoring and removing checkpoints in real files."""

import json
import shutil
from unittest import mock

import jax
import orbax.checkpoint as ocp
import pytest
from checkpoint_states import CONFIG, bits, mesh_of, state_at, template_on

from bertjax.checkpoint import checksums
from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position
from bertjax.errors import UserError


@pytest.mark.parametrize('mesh_axes', [{}, {'data': 8}, {'fsdp': 8}, {'fsdp': 4, 'tensor': 2}])
def test_a_restore_on_any_mesh_gives_the_same_bits(open_checkpoints, mesh_axes):
    state = state_at(20, mesh_of(fsdp=2, tensor=2))
    checkpoints, _ = open_checkpoints()
    checkpoints.save(state, Position(20, 1, 320), CONFIG, 2.5)
    checkpoints.close()
    checkpoints, messages = open_checkpoints()
    saved = checkpoints.latest()
    assert saved.position == Position(20, 1, 320)
    assert saved.config == CONFIG
    template = template_on(mesh_of(**mesh_axes))
    restored = checkpoints.restore(saved.position.step, template)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert bits(restored) == bits(state)
    for x, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(template), strict=True):
        assert x.dtype == expected.dtype
        assert x.sharding.is_equivalent_to(expected.sharding, x.ndim)
    assert not messages


def test_an_empty_folder_has_no_latest_checkpoint(open_checkpoints):
    checkpoints, messages = open_checkpoints()
    assert checkpoints.latest() is None
    assert checkpoints.steps() == []
    assert not messages


def test_the_state_may_be_donated_when_save_returns(open_checkpoints):
    """The next step donates the arrays while the background thread still writes them."""
    checkpoints, _ = open_checkpoints()
    state = state_at(1)
    expected = bits(state)
    checkpoints.save(state, Position(1, 0, 16), CONFIG, None)
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)(state)
    jax.block_until_ready(doubled)
    checkpoints.wait()
    assert bits(checkpoints.restore(1, template_on(mesh_of()))) == expected


def test_a_step_does_not_wait_for_a_running_save(open_checkpoints, monkeypatch):
    """Orbax gets copies of the arrays, because a step that donates the originals would wait for the disk."""
    saved, save = [], ocp.AsyncCheckpointer.save

    def record_arrays(self, directory, *, args):
        saved.extend(jax.tree.leaves(args['state'].item))
        return save(self, directory, args=args)

    def buffers(arrays):
        return {shard.data.unsafe_buffer_pointer() for x in arrays for shard in x.addressable_shards}

    monkeypatch.setattr(ocp.AsyncCheckpointer, 'save', record_arrays)
    state = state_at(1, mesh_of(fsdp=2, tensor=2))
    checkpoints, _ = open_checkpoints()
    checkpoints.save(state, Position(1, 0, 16), CONFIG, None)
    originals = jax.tree.leaves(state)
    assert not buffers(originals) & buffers(saved)
    assert [x.sharding for x in saved] == [x.sharding for x in originals]


@pytest.mark.parametrize(
    ('losses', 'keep', 'kept'),
    [
        pytest.param({1: None, 2: None, 3: None, 4: None}, 2, [3, 4], marks=pytest.mark.slow),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: None}, 2, [2, 4, 5]),
        pytest.param({1: 3.0, 2: 2.0, 3: 1.0}, 1, [3], marks=pytest.mark.slow),
        pytest.param({1: 1.0, 2: 2.0, 3: None}, 1, [1, 3], marks=pytest.mark.slow),
        ({1: float('nan'), 2: 2.0, 3: 3.0, 4: 3.0}, 1, [2, 4]),  # NaN is never the best loss.
        ({1: 3.0, 2: 2.0, 3: 2.0, 4: 2.0}, 1, [2, 4]),  # The first of equal losses is the best.
    ],
)
def test_the_newest_and_the_best_are_kept(saved_steps, open_checkpoints, losses, keep, kept):
    saved_steps(losses, keep)
    checkpoints, _ = open_checkpoints(keep)
    assert checkpoints.steps() == kept
    folders = [path.name for path in checkpoints.directory.iterdir() if path.is_dir()]
    assert sorted(folders, key=int) == [str(step) for step in kept]


def test_there_is_an_undamaged_checkpoint_at_every_moment(open_checkpoints, monkeypatch):
    checkpoints, _ = open_checkpoints(keep=1)
    seen = []
    delete, write_checksums = shutil.rmtree, checksums.write_checksums

    def undamaged():
        return [
            step for step in checkpoints.steps() if checksums.find_damage(checkpoints.directory / str(step)) is None
        ]

    def recorded(event, function):
        def call(*args):
            seen.append((event, undamaged()))
            function(*args)
            seen.append((f'{event} done', undamaged()))

        return call

    monkeypatch.setattr(shutil, 'rmtree', recorded('delete', delete))
    monkeypatch.setattr(checksums, 'write_checksums', recorded('finish', write_checksums))
    for step in (1, 2, 3):
        checkpoints.save(state_at(step), Position(step), CONFIG, None)
    checkpoints.wait()
    assert seen == [
        ('finish', []), ('finish done', [1]),
        ('finish', [1]), ('finish done', [1, 2]), ('delete', [1, 2]), ('delete done', [2]),
        ('finish', [2]), ('finish done', [2, 3]), ('delete', [2, 3]), ('delete done', [3]),
    ]  # fmt: skip


def test_a_finished_step_is_not_saved_again(open_checkpoints):
    checkpoints, _ = open_checkpoints()
    first = state_at(5)
    checkpoints.save(first, Position(5, 0, 80), CONFIG, None)
    checkpoints.save(state_at(6), Position(5, 0, 80), CONFIG, None)
    checkpoints.wait()
    assert bits(checkpoints.restore(5, template_on(mesh_of()))) == bits(first)


@pytest.mark.parametrize('when', ['next save', 'close', 'close after an interrupted wait'])
def test_an_error_of_the_background_thread_is_raised(open_checkpoints, monkeypatch, when):
    checkpoints, _ = open_checkpoints()

    def full(*args):
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as broken:
        broken.setattr(checksums, 'write_checksums', full)
        checkpoints.save(state_at(1), Position(1), CONFIG, None)
        if when == 'close after an interrupted wait':
            interrupt = mock.patch.object(checkpoints._saving, 'exception', side_effect=KeyboardInterrupt)
            with interrupt, pytest.raises(KeyboardInterrupt):
                checkpoints.wait()
        with pytest.raises(OSError, match='No space left'):
            if when == 'next save':
                checkpoints.save(state_at(2), Position(2), CONFIG, None)
            else:
                checkpoints.close()
    checkpoints.close()  # The error was raised before, so this call does nothing.
    again, messages = open_checkpoints()
    assert again.latest() is None
    assert messages == ['checkpoint 1 is incomplete: it is removed']


def test_a_checkpoint_that_cannot_be_removed_stays(open_checkpoints, monkeypatch):
    """On NFS, the folder of a file that another program reads cannot be removed."""
    checkpoints, messages = open_checkpoints(keep=1)

    def busy(path):
        raise OSError(16, 'Device or resource busy', str(path))

    with monkeypatch.context() as nfs:
        nfs.setattr(shutil, 'rmtree', busy)
        for step in (1, 2):
            checkpoints.save(state_at(step), Position(step), CONFIG, None)
        checkpoints.close()
        assert f'{checkpoints.directory / "1"} cannot be removed now (Device or resource busy)' in messages[-1]
        assert open_checkpoints(keep=1)[0].latest().position == Position(2)
    again, _ = open_checkpoints(keep=1)
    again.save(state_at(3), Position(3), CONFIG, None)
    again.close()
    assert again.steps() == [3]


def test_a_removal_that_was_killed_is_completed(saved_steps, open_checkpoints):
    """A marked step is removed even if its seal still exists. A marked step with all its files is kept."""
    directory = saved_steps({1: None, 2: None, 3: None})
    (directory / '1' / 'position' / 'metadata').unlink()
    for step in (1, 2):
        (directory / f'{step}.unfinished').touch()
    checkpoints, messages = open_checkpoints()
    assert checkpoints.steps() == [2, 3] and messages == ['checkpoint 1 is incomplete: it is removed']
    assert sorted(path.name for path in directory.iterdir()) == ['2', '3']


def test_leftovers_of_a_killed_process_are_removed(saved_steps, open_checkpoints):
    directory = saved_steps({1: None, 2: None})
    (directory / '2' / checksums.FILE).unlink()  # The process was killed before it wrote the checksums ...
    (directory / '2.unfinished').touch()
    (directory / '3.orbax-checkpoint-tmp' / 'state').mkdir(parents=True)  # ... or while Orbax wrote.
    (directory / 'damaged' / '7').mkdir(parents=True)  # An earlier start moved it here for the user.
    checkpoints, messages = open_checkpoints()
    assert sorted(path.name for path in directory.iterdir()) == ['1', 'damaged']
    assert 'checkpoint 2 is incomplete: it is removed' in messages
    assert checkpoints.latest().position == Position(1, 0, 16)
    checkpoints.save(state_at(2), Position(2), CONFIG, None)  # The step can be saved again.
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2]


def test_the_seal_records_the_loss(saved_steps):
    directory = saved_steps({3: 1.5, 4: None, 5: float('inf')})
    assert [checksums.read_cost(directory / str(step)) for step in (3, 4, 5)] == [1.5, None, None]


def test_the_seal_has_a_checksum_of_every_file(saved_steps):
    directory = saved_steps({1: 2.0}) / '1'
    recorded = json.loads((directory / checksums.FILE).read_text())
    files = {path.relative_to(directory).as_posix() for path in directory.rglob('*') if path.is_file()}
    assert set(recorded['files']) == files - {checksums.FILE}
    assert any(name.startswith('state/') for name in files)
    assert any(name.startswith('position/') for name in files)
    assert recorded['cost'] == 2.0


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / 'checkpoints').write_text('')
    with pytest.raises(UserError, match='a folder that can be written to'):
        Checkpoints(tmp_path / 'checkpoints', keep=1)
