"""Damage of a ledger is reported by line and step; an undamaged ledger is not reported."""

import json

import pytest

from bertjax.checkpoint import Position
from bertjax.train.health.ledger import ledger_damage, summarize_damage

# Six steps of 4 in phase 0, four of 8 in phase 1.
ROWS = [{'step': i + 1, 'phase': 0, 'first': 4 * i, 'count': 4} for i in range(6)]
ROWS += [{'step': i + 7, 'phase': 1, 'first': 8 * i, 'count': 8} for i in range(4)]
LINES = [json.dumps(row) for row in ROWS]
END = Position(10, 1, 32)


def changed(number: int, *lines: str) -> list[str]:
    """Returns the lines with line `number` (from 1) replaced."""
    return [*LINES[: number - 1], *lines, *LINES[number:]]


@pytest.mark.parametrize(
    ('lines', 'said'),
    [
        (LINES, []),
        ([*LINES, json.dumps({'step': 11, 'phase': 1, 'first': 32, 'count': 8})], []),  # after the checkpoint
        (changed(3), ['is missing: step 3']),
        ([*LINES[:2], *LINES[5:]], ['is missing: step 3-5']),
        (changed(3, '{"step": 3, "ph'), ['cannot be read: line 3', 'is missing: step 3']),
        (changed(3, '\0' * 40), ['cannot be read: line 3', 'is missing: step 3']),
        (changed(3, '[' * 100_000), ['cannot be read: line 3', 'is missing: step 3']),
        (changed(3, LINES[2].replace('"first": 8', '"first": 9')), ['does not follow the line before it: line 3-4']),
        (changed(3, LINES[2].replace('3', '93')), ['is missing: step 3']),
        (changed(7, LINES[6].replace('"first": 0', '"first": 4')), ['does not follow the line before it: line 7-8']),
        (changed(3, LINES[2], LINES[2]), ['does not follow the line before it: line 4']),
        (LINES[:8], ['is missing: step 9-10']),
        (LINES[4:], ['is missing: step 1-4']),
        ([], ['is missing: step 1-10']),
        ([*LINES[::2], '?', LINES[9]], ['cannot be read: line 6', 'is missing: step 2, 4, 6, 8']),
    ],
    ids=str,
)
def test_damage(tmp_path, lines, said):
    path = tmp_path / 'ledger.jsonl'
    path.write_text(''.join(f'{line}\n' for line in lines))
    before = path.read_bytes()
    assert ledger_damage(path, END) == said
    assert path.read_bytes() == before  # gaps are not filled
    path.write_bytes(before + b'{"step": 1')  # a kill during the write of a line
    assert ledger_damage(path, END) == said


def test_the_last_line_must_match_the_checkpoint(tmp_path):
    path = tmp_path / 'ledger.jsonl'
    path.write_text(''.join(f'{line}\n' for line in LINES))
    assert ledger_damage(path, Position(10, 1, 40)) == ['does not end where the checkpoint does: step 10']


def test_a_missing_ledger(tmp_path):
    assert ledger_damage(tmp_path / 'ledger.jsonl', END) == ['is missing: step 1-10']


def test_ranges_are_summarized():
    assert summarize_damage([(1, 1), (2, 2), (5, 9)]) == '1-2, 5-9'
    assert summarize_damage([(i, i) for i in range(0, 20, 2)]) == '0, 2, 4, 6, 8 and 5 more'
