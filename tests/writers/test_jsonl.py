"""Tests the truncation of JSON lines to a step, and its cost."""

import json
import random

import pytest

from bertjax.writers import jsonl
from bertjax.writers.jsonl import JsonLines


def truncate_simply(data: bytes, step: int) -> bytes:
    """Returns all bytes up to the last complete line whose step is at most `step`."""
    remaining = b''
    so_far = b''
    for line in data.splitlines(keepends=True):
        so_far += line
        try:
            valid = line.endswith(b'\n') and json.loads(line)['step'] <= step
        except ValueError:
            valid = False
        if valid:
            remaining = so_far
    return remaining


def random_file(rng: random.Random) -> tuple[bytes, int]:
    data, step = b'', 0
    for _ in range(rng.choice([0, 1, 2, 7, 40])):
        step += rng.choice([0, 1, 1, 5])
        # Some letters have several bytes.
        filler = rng.choice('xé字') * rng.choice([0, 1, 13, 60, 64, 65, 500])
        data += json.dumps({'step': step, 'text': filler}, ensure_ascii=False).encode() + b'\n'
    incomplete = json.dumps({'step': step + 1, 'text': 'half'}).encode()
    return data + incomplete[: rng.choice([0, 0, 1, 5, len(incomplete)])], step


def test_truncation_equals_a_plain_implementation(tmp_path):
    rng = random.Random(1)
    seen_cut = seen_whole = 0
    for i in range(150):
        data, last = random_file(rng)
        path = tmp_path / f'{i}.jsonl'
        path.write_bytes(data)
        step = rng.choice([-1, 0, last // 2, last - 1, last, last + 10])
        cut = JsonLines(path).truncate_after(step)
        expected = truncate_simply(data, step)
        assert path.read_bytes() == expected, (data, step)
        assert cut == len(data) - len(expected)
        seen_cut += 0 < cut < len(data)
        seen_whole += cut == 0 and len(data) > 0
    assert seen_cut > 10
    assert seen_whole > 5


def test_the_cost_depends_only_on_the_removed_lines(tmp_path, monkeypatch):
    path = tmp_path / 'ledger.jsonl'
    row = '{{"step": {}, "phase": 0, "first": {}, "count": 256}}\n'
    path.write_text(''.join(row.format(step, 256 * step) for step in range(1, 200_001)))
    size = path.stat().st_size
    assert size > 8e6
    parsed, parse_row = [], jsonl.parse_row
    monkeypatch.setattr(jsonl, 'parse_row', lambda line: parsed.append(line) or parse_row(line))
    removed = JsonLines(path).truncate_after(199_997)
    assert len(parsed) == 4 and removed == sum(map(len, parsed[:3])) == size - path.stat().st_size
    lines = path.read_text().splitlines()
    assert len(lines) == 199_997
    assert json.loads(lines[-1])['step'] == 199_997


def test_written_lines_are_visible_before_the_file_is_closed(tmp_path):
    lines = JsonLines(tmp_path / 'deep' / 'metrics.jsonl')
    lines.write({'step': 1, 'name': 'ä'})
    lines.write({'step': 2, 'loss': None})
    text = lines.path.read_text(encoding='utf-8')
    assert [json.loads(line) for line in text.splitlines()] == [{'step': 1, 'name': 'ä'}, {'step': 2, 'loss': None}]
    assert 'ä' in text


def test_writing_continues_after_truncation(tmp_path):
    lines = JsonLines(tmp_path / 'metrics.jsonl')
    for step in (1, 2, 3):
        lines.write({'step': step})
    assert lines.truncate_after(1) == 2 * len('{"step": 2}\n')
    lines.write({'step': 2, 'again': True})
    lines.close()
    rows = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert rows == [{'step': 1}, {'step': 2, 'again': True}]


def test_truncating_a_missing_file_creates_no_file(tmp_path):
    assert JsonLines(tmp_path / 'none.jsonl').truncate_after(0) == 0
    assert not (tmp_path / 'none.jsonl').exists()


def test_rows_of_the_same_step_are_truncated_together(tmp_path):
    lines = JsonLines(tmp_path / 'metrics.jsonl')
    for step in (5, 10):
        for split in ('train', 'heldout'):
            lines.write({'step': step, 'split': split})
    lines.truncate_after(9)
    rows = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert rows == [{'step': 5, 'split': 'train'}, {'step': 5, 'split': 'heldout'}]


def test_a_removed_file_is_started_again(tmp_path, caplog):
    """If the file's folder was removed too, the run fails."""
    lines = JsonLines(tmp_path / 'run' / 'ledger.jsonl')
    for step in (1, 2):
        lines.write({'step': step})
        lines.path.rename(tmp_path / str(step))
        lines.sync()
    assert (tmp_path / '2').read_text() == '{"step": 2}\n' and caplog.text.count('was removed or moved') == 2
    lines.write({'step': 3})
    (tmp_path / 'run').rename(tmp_path / 'moved')
    with pytest.raises(FileNotFoundError):
        lines.sync()
    assert not (tmp_path / 'run').exists()
