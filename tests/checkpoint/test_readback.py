"""Tests unknown folders in checkpoints/, the readback of a save, and the order of writes."""

import os
import pathlib
import shutil
import types
from unittest import mock

import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint_states import CONFIG, bits, mesh_of, state_at, template_on
from killing import watch
from marks import slow

from bertjax.checkpoint import checksums
from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position
from bertjax.convert.content import ExportContent
from bertjax.convert.orbax import export_orbax
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig


def names(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize('name', ['exp[1]', *slow('a*b', 'what?', '**')])
def test_a_path_may_contain_wildcards(tmp_path, name):
    """Orbax treats paths as glob patterns. The symbolic link that avoids this is removed at the end.

    An interrupted `close` finishes the save, too.
    """
    folder = tmp_path / name / 'checkpoints'
    for step in (1, 2):
        checkpoints = Checkpoints(folder, keep=1)
        assert (checkpoints.latest() is None) == (step == 1)
        checkpoints.save(state_at(step), Position(step), CONFIG, None)
        if step == 1:
            checkpoints.close()
        else:
            interrupt = mock.patch.object(checkpoints._saving, 'exception', side_effect=KeyboardInterrupt)
            with interrupt, pytest.raises(KeyboardInterrupt):
                checkpoints.close()
    checkpoints = Checkpoints(folder, keep=1, read_only=True)
    assert checkpoints.latest().position == Position(2)
    assert bits(checkpoints.restore(2, template_on(mesh_of()))) == bits(state_at(2))
    link = checkpoints._orbax_directory
    checkpoints.close()
    assert names(folder) == ['2'] and not link.exists()
    module, tokenizer = BertForPreTraining(BertConfig(vocab_size=8)), types.SimpleNamespace(save=lambda folder: None)
    export_orbax(ExportContent(module, {'a': np.arange(3.0)}, tokenizer), tmp_path / name / 'orbax')
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.restore(tmp_path / name / 'orbax' / 'params')['a'].tolist() == [0, 1, 2]


def _delete_manifest(step: pathlib.Path) -> None:
    (step / 'state' / 'manifest.ocdbt').unlink()


def _rename_array(step: pathlib.Path) -> None:
    path = step / 'state' / '_METADATA'
    path.write_text(path.read_text().replace('bias', 'bies'))


def _change_position(step: pathlib.Path) -> None:
    path = step / 'position' / 'metadata'
    path.write_text(path.read_text().replace('2', '3'))


@pytest.mark.parametrize('damage', [_change_position, *slow(_delete_manifest, _rename_array)])
def test_a_save_that_cannot_be_read_back_is_an_error(saved_steps, open_checkpoints, monkeypatch, damage):
    """The previous checkpoint remains, and the same run resumes from it."""
    saved_steps({1: None})
    checkpoints, _ = open_checkpoints(keep=1)
    close, step = ocp.AsyncCheckpointer.close, checkpoints.directory / '2'
    close_and_damage = lambda saver: (close(saver), damage(step))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(ocp.AsyncCheckpointer, 'close', close_and_damage)
        checkpoints.save(state_at(2), Position(2), CONFIG, None)
        with pytest.raises(UserError, match='checkpoint 2: found a save that cannot be read back'):
            checkpoints.wait()
    checkpoints.close()
    again, messages = open_checkpoints(keep=1)
    assert again.latest().position == Position(1, 0, 16)
    assert messages == ['checkpoint 2 is incomplete: it is removed']
    again.save(state_at(2), Position(2), CONFIG, None)
    again.close()
    assert names(again.directory) == ['2']


def test_unknown_folders_are_not_deleted(saved_steps, open_checkpoints):
    directory = saved_steps({1: None, 2: None})
    for name in ('100 (copy)', '100.bak', '0100', 'keep'):
        shutil.copytree(directory / '1', directory / name)
    (directory / '3').mkdir()  # This folder has neither a seal nor a mark of this program.
    (directory / 'notes.txt').touch()
    checkpoints, messages = open_checkpoints(keep=1)
    assert checkpoints.steps() == [1, 2] and checkpoints.latest().position.step == 2
    names_in_log = [line.split(' is not')[0].split('/')[-1] for line in messages]
    assert names_in_log == ['0100', '100 (copy)', '100.bak', '3', 'keep']
    checkpoints.save(state_at(3), Position(3), CONFIG, None)
    checkpoints.save(state_at(4), Position(4), CONFIG, None)
    checkpoints.close()
    assert names(directory) == ['0100', '100 (copy)', '100.bak', '4', 'damaged', 'keep', 'notes.txt']
    assert names(directory / 'damaged') == ['3']


def test_an_unsealed_higher_step_does_not_prevent_a_save(saved_steps, open_checkpoints):
    """Orbax itself does not save a step below the highest number of any folder."""
    directory = saved_steps({1: None, 2: None})
    (directory / '9').mkdir()
    checkpoints, _ = open_checkpoints(keep=2)
    for step in (3, 4):
        checkpoints.save(state_at(step), Position(step), CONFIG, None)
    checkpoints.close()
    again, _ = open_checkpoints()
    assert again.steps() == [3, 4] and again.latest().position.step == 4
    assert names(directory) == ['3', '4', '9']


def test_unsealed_checkpoints_are_an_error(saved_steps, open_checkpoints):
    directory = saved_steps({1: None, 2: None})
    for step in (1, 2):
        (directory / str(step) / checksums.FILE).unlink()
    checkpoints, _ = open_checkpoints()
    with pytest.raises(
        UserError, match=r'2 folder\(s\) that may be checkpoints \(1, 2\), all damaged or renamed.*seal\.json'
    ):
        checkpoints.latest()
    assert names(directory) == ['1', '2']
    for step in (1, 2):
        shutil.rmtree(directory / str(step))
    assert checkpoints.latest() is None
    (directory / 'old').mkdir()  # This folder is not a checkpoint, so it is ignored.
    assert checkpoints.latest() is None


def test_a_folder_with_only_a_renamed_checkpoint_is_an_error(saved_steps, open_checkpoints):
    directory = saved_steps({1: None})
    (directory / '1').rename(directory / '1.bak')
    checkpoints, _ = open_checkpoints()
    with pytest.raises(UserError, match=r'1\.bak'):
        checkpoints.latest()


def test_a_reader_changes_nothing(saved_steps):
    """A training run may be saving at the same time, so unfinished steps may belong to it."""
    directory = saved_steps({1: None, 2: None})
    (directory / '3').mkdir()
    (directory / '3.unfinished').touch()
    (directory / '4.orbax-checkpoint-tmp').mkdir()
    (directory / '2' / 'position' / 'metadata').write_text('{}')
    before, messages = names(directory), []
    reader = Checkpoints(directory, keep=1, log=messages.append, read_only=True)
    assert reader.latest().position.step == 1 and names(directory) == before
    (line,) = messages
    assert line.startswith('checkpoint 2 is damaged (position/metadata has 2 bytes') and 'it is skipped' in line
    reader.close()


def test_reading_creates_no_folder(tmp_path):
    reader = Checkpoints(tmp_path / 'checkpoints', keep=1, read_only=True)
    assert reader.latest() is None and reader.best() is None
    reader.close()
    assert not (tmp_path / 'checkpoints').exists()


def test_files_are_synced_before_the_seal(open_checkpoints):
    """The order is: the mark, every file and folder, the parent folder, the seal, the removal of the mark."""
    checkpoints, _ = open_checkpoints()
    directory, events = checkpoints.directory, []
    with watch(lambda name, path: events.append(f'{name} {os.path.relpath(path, directory)}'), directory):
        checkpoints.save(state_at(1), Position(1), CONFIG, None)
        checkpoints.wait()
    files = {path.relative_to(directory).as_posix() for path in (directory / '1').rglob('*')}
    sealed, renamed = events.index(f'replace 1/{checksums.FILE}'), events.index('rename 1')
    synced = events[renamed:sealed]
    assert {f'fsync {name}' for name in files - {f'1/{checksums.FILE}'}} <= set(synced)
    (seal,) = [name for name in synced if name.startswith(f'fsync 1/.{checksums.FILE}.tmp-')]
    assert synced.index('fsync 1') < synced.index('fsync .') < synced.index(seal)
    assert events[sealed:] == [f'replace 1/{checksums.FILE}', 'fsync 1', 'unlink 1.unfinished']
    assert events[:2] == ['open 1.unfinished', 'fsync .']
