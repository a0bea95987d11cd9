"""Tests the bytes of TensorBoard's files."""

import base64
import pathlib
import time

from bertjax.files.protobuf import bytes_field, varint_field
from bertjax.writers.tensorboard import TensorBoard

# tensorboardX 2.6.5 wrote these bytes with the same events.
EVENTS = (
    '7ytkO00000qkl^x2><|)w18#OK^hHWa$#w1E=6`_Zge^_?Evxt4*&oF00000ZBr`=2><|)w18#OK@bNz0tf+@>bBY@000000001UPvZay005A*fM'
    'wD_5C<w53Kt3xXk~0<Z*_DpZES5{Y;SXO6#xJrKni_->?i;L000000RM0nN(le}khFkh(m@ahDjNzJ3KD2#Y-DeBbT4paa&T;AcxiNb6#xK$e=|7'
    '!ups~d0000000DdK_6Yz0khFkh(m@cc0xA;<5ef=)a$#w1FKlmfa}~|Z%sqYgz0d'
)


def test_events_have_the_bytes_of_tensorboardx(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(time, 'time', lambda: 1234567890.25)
    board = TensorBoard(tmp_path)
    board.truncate_after(6)
    board.write({'step': 7, 'split': 'heldout', 'phase': 0, 'mlm_loss': 2.5, 'perplexity': 1e300, 'nsp_loss': None})
    board.write({'step': 300, 'split': 'train', 'loss': 0.1})
    board.close()
    (file,) = tmp_path.glob('events.out.tfevents.1234567890.*')
    assert file.read_bytes() == base64.b85decode(EVENTS)


def test_the_names_ascend_if_the_clock_is_set_back(tmp_path: pathlib.Path, monkeypatch):
    """TensorBoard reads the files in this order, and the start of a session hides the rows that it has read."""
    (tmp_path / 'events.out.tfevents.profile-empty').touch()
    for number, now in enumerate((1234567890, 1234567890, 1200000000)):
        monkeypatch.setattr(time, 'time', lambda now=now: now)
        board = TensorBoard(tmp_path)
        board.write({'step': number, 'split': f'part{number}', 'loss': 2.5})
        board.close()
    files = sorted(tmp_path.glob('events.out.tfevents.1*'))
    assert [f'part{number}/loss'.encode() in path.read_bytes() for number, path in enumerate(files)] == [True] * 3


def test_another_text_of_a_finished_run_has_a_tag_and_hides_no_row(tmp_path: pathlib.Path):
    board = TensorBoard(tmp_path)
    board.truncate_after(6)
    board.write({'step': 6, 'split': 'heldout:bio', 'mlm_loss': 2.5})
    board.close()
    (file,) = tmp_path.iterdir()
    assert b'heldout:bio/mlm_loss' in file.read_bytes()
    session_start = varint_field(2, 7) + bytes_field(7, varint_field(1, 1))  # rows of step 6 stay visible
    assert session_start in file.read_bytes()
