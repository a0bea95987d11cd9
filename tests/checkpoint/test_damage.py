"""Tests that damaged checkpoints are reported and the previous checkpoint is used."""

import json

import numpy as np
import pytest
from checkpoint_states import bits, mesh_of, state_at, template_on
from marks import mostly_slow

from bertjax.checkpoint import checksums
from bertjax.checkpoint.position import Position
from bertjax.errors import UserError


def largest(directory):
    return max((path for path in directory.rglob('*') if path.is_file()), key=lambda path: path.stat().st_size)


def flip_bit(path, byte=None, bit=3):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if byte is None else byte] ^= 1 << bit
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def in_state(damage):
    return lambda directory: damage(largest(directory / 'state'))


def write_seal(data):
    return lambda directory: (directory / checksums.FILE).write_bytes(data)


DAMAGES = {
    'one bit of an array': (in_state(flip_bit), 'does not match its checksum'),
    'a truncated file': (in_state(truncate), 'bytes instead of'),
    'an emptied file': (in_state(lambda path: path.write_bytes(b'')), '0 bytes instead of'),
    'a missing file': (in_state(lambda path: path.unlink()), 'is missing'),
    'one bit of the position': (lambda directory: flip_bit(largest(directory / 'position')), 'not match its checksum'),
    'no JSON': (write_seal(b'\xff{'), 'damaged or missing'),
    'an empty record': (write_seal(b''), 'damaged or missing'),
    'a record without end': (write_seal(b'[' * 100_000), 'damaged or missing'),
    'another record': (write_seal(b'[1]'), 'damaged or missing'),
}


@pytest.mark.parametrize('kind', mostly_slow(DAMAGES, 'one bit of an array', 'a missing file', 'a record without end'))
def test_the_checkpoint_before_a_damaged_one_is_used(saved_steps, open_checkpoints, kind):
    damage, reason = DAMAGES[kind]
    directory = saved_steps({10: 1.0, 20: 2.0})
    damage(directory / '20')
    checkpoints, messages = open_checkpoints()
    saved = checkpoints.latest()
    assert saved.position == Position(10, 0, 160)
    (line,) = messages
    assert line.startswith('checkpoint 20 is damaged (')
    assert reason in line
    assert (directory / 'damaged' / '20').is_dir()
    assert checkpoints.steps() == [10]
    assert bits(checkpoints.restore(saved.position.step, template_on(mesh_of()))) == bits(state_at(10))
    # The run reaches step 20 again and saves it under the same number.
    checkpoints.save(state_at(20), Position(20, 0, 320), {}, None)
    checkpoints.close()
    again, messages = open_checkpoints()
    assert again.latest().position == Position(20, 0, 320)
    assert not messages


def test_a_step_that_is_damaged_twice_is_moved_aside_twice(saved_steps, open_checkpoints):
    directory = saved_steps({10: None, 20: None})
    for _ in range(2):
        in_state(flip_bit)(directory / '20')
        checkpoints, messages = open_checkpoints()
        assert checkpoints.latest().position.step == 10
        assert len(messages) == 1
        checkpoints.save(state_at(20), Position(20, 0, 320), {}, None)
        checkpoints.close()
    assert sorted(path.name for path in (directory / 'damaged').iterdir()) == ['20', '20-2']


def test_only_damaged_checkpoints_are_an_error(saved_steps, open_checkpoints):
    directory = saved_steps({10: None, 20: None, 30: None})
    for step in (10, 20, 30):
        in_state(flip_bit)(directory / str(step))
    checkpoints, messages = open_checkpoints()
    with pytest.raises(UserError, match=r'3 checkpoint\(s\), all damaged.*--workdir'):
        checkpoints.latest()
    assert [line.split()[1] for line in messages] == ['30', '20', '10']
    assert sorted(path.name for path in (directory / 'damaged').iterdir()) == ['10', '20', '30']


def test_an_older_damaged_checkpoint_is_ignored(saved_steps, open_checkpoints):
    directory = saved_steps({10: None, 20: None})
    in_state(flip_bit)(directory / '10')
    checkpoints, messages = open_checkpoints()
    assert checkpoints.latest().position.step == 20
    assert not messages


def test_any_flipped_bit_is_detected(saved_steps):
    directory = saved_steps({1: 1.25}) / '1'
    assert checksums.find_damage(directory) is None
    rng = np.random.default_rng(0)
    files = [path for path in directory.rglob('*') if path.is_file() and path.stat().st_size]
    assert len(files) > 5
    for path in files:
        original = path.read_bytes()
        positions = rng.integers(0, len(original), 400 if path.name == checksums.FILE else 5)
        before = json.loads(original) if path.name == checksums.FILE else None
        for position in positions:
            flip_bit(path, position, int(rng.integers(8)))
            if checksums.find_damage(directory) is None:
                # In the seal, a change of one whitespace character to another is invisible to a JSON reader.
                assert path.name == checksums.FILE
                assert json.loads(path.read_bytes()) == before
        path.write_bytes(original)
    assert checksums.find_damage(directory) is None


def test_a_changed_loss_in_the_seal_is_ignored(saved_steps):
    directory = saved_steps({1: 2.25}) / '1'
    file = directory / checksums.FILE
    file.write_text(file.read_text().replace('2.25', '0.25'))
    assert checksums.read_cost(directory) is None
    assert checksums.find_damage(directory) is not None
