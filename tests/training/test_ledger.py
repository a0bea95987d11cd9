"""Damage of a ledger is reported with its lines and steps."""

import json

import pytest

from bertjax.checkpoint.position import Position
from bertjax.training.health.ledger import ledger_damage, summarize_damage

# Six steps with 4 examples in phase 0, then four steps with 8 examples in phase 1.
ROWS = [{'step': i + 1, 'phase': 0, 'first': 4 * i, 'count': 4} for i in range(6)]
ROWS += [{'step': i + 7, 'phase': 1, 'first': 8 * i, 'count': 8} for i in range(4)]
LINES = [json.dumps(row) for row in ROWS]
END = Position(10, 1, 32)


def replace_line(number: int, *lines: str) -> list[str]:
    """Returns the lines with line `number` (from 1) replaced."""
    return [*LINES[: number - 1], *lines, *LINES[number:]]


@pytest.mark.parametrize(
    ('lines', 'expected'),
    [
        (LINES, []),
        ([*LINES, json.dumps({'step': 11, 'phase': 1, 'first': 32, 'count': 8})], []),  # a row after the checkpoint
        (replace_line(3), ['missing: step 3']),
        ([*LINES[:2], *LINES[5:]], ['missing: step 3-5']),
        (replace_line(3, '{"step": 3, "ph'), ['unreadable: line 3', 'missing: step 3']),
        (replace_line(3, '\0' * 40), ['unreadable: line 3', 'missing: step 3']),
        (replace_line(3, '[' * 100_000), ['unreadable: line 3', 'missing: step 3']),
        (
            replace_line(3, LINES[2].replace('"first": 8', '"first": 9')),
            ['out of order: line 3-4'],
        ),
        (replace_line(3, LINES[2].replace('3', '93')), ['missing: step 3']),
        (
            replace_line(7, LINES[6].replace('"first": 0', '"first": 4')),
            ['out of order: line 7-8'],
        ),
        (replace_line(3, LINES[2], LINES[2]), ['out of order: line 4']),
        (LINES[:8], ['missing: step 9-10']),
        (LINES[4:], ['missing: step 1-4']),
        ([], ['missing: step 1-10']),
        ([*LINES[::2], '?', LINES[9]], ['unreadable: line 6', 'missing: step 2, 4, 6, 8']),
    ],
    ids=str,
)
def test_damage_is_reported(tmp_path, lines, expected):
    path = tmp_path / 'ledger.jsonl'
    path.write_text(''.join(f'{line}\n' for line in lines))
    before = path.read_bytes()
    assert ledger_damage(path, END) == expected
    assert path.read_bytes() == before  # the ledger is not repaired
    path.write_bytes(before + b'{"step": 1')  # an incomplete line, as after a kill
    assert ledger_damage(path, END) == expected


def test_the_last_line_must_match_the_checkpoint(tmp_path):
    path = tmp_path / 'ledger.jsonl'
    path.write_text(''.join(f'{line}\n' for line in LINES))
    assert ledger_damage(path, Position(10, 1, 40)) == ['last example differs from the checkpoint: step 10']


def test_a_missing_ledger_lacks_all_steps(tmp_path):
    assert ledger_damage(tmp_path / 'ledger.jsonl', END) == ['missing: step 1-10']


def test_ranges_are_summarized():
    assert summarize_damage([(1, 1), (2, 2), (5, 9)]) == '1-2, 5-9'
    assert summarize_damage([(i, i) for i in range(0, 20, 2)]) == '0, 2, 4, 6, 8 and 5 more'
