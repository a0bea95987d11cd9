"""How many padded lengths a run has, and that a run which is continued keeps them."""

import json
import pathlib

import pytest
from running import GLUE, Program, copied

from bertjax.finetune.run import _recorded_length_count

FREE = (
    '--config.max_padded_lengths=0',
    '--config.packing=off',
    '--config.eval_every=0',
    '--config.checkpoint_every=0',
    '--config.export=False',
)


def test_what_the_checkpoints_have_goes_on(tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    assert _recorded_length_count(own) == 2
    (own / 'config.json').write_text('{"max_padded_lengths": 8}')
    assert _recorded_length_count(own) == 8
    for damaged in ('{"max_padded_lengths"', '[' * 100_000, '[8]', '{"max_padded_lengths": "8"}'):
        (own / 'config.json').write_text(damaged)
        assert _recorded_length_count(own) == 2  # as in the checkpoint
    (own / 'config.json').unlink()
    assert _recorded_length_count(own) == 2
    (tmp_path / 'new').mkdir()
    (tmp_path / 'new' / 'config.json').write_text('{"max_padded_lengths": 8}')
    assert _recorded_length_count(tmp_path / 'new') == 0  # nothing is saved: the run begins anew


def config(workdir: pathlib.Path) -> dict:
    return json.loads((workdir / 'config.json').read_text(encoding='utf-8'))


@pytest.mark.slow
def test_a_short_run_has_few_and_keeps_them(program: Program, tune, tmp_path: pathlib.Path):
    given = (f'--workdir={tmp_path}', *tune, *FREE)
    assert '1 padded length: ' in program.run(*given, '--config.steps=3', **GLUE).stdout
    assert config(tmp_path)['max_padded_lengths'] == 1
    out = program.run(*given, '--config.steps=40', **GLUE).stdout
    assert 'continuing at step 3 of 40' in out and '1 padded length: ' in out


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_its_own(program: Program, tune, tmp_path: pathlib.Path):
    """It had 8 without being asked."""
    given = (f'--workdir={tmp_path}', *tune, *FREE)
    out = program.run(*given, '--config.max_padded_lengths=3', '--config.steps=2', **GLUE).stdout
    assert '3 padded lengths: ' in out
    out = program.run(*given, '--config.steps=4', **GLUE).stdout
    assert 'continuing at step 2 of 4' in out and '3 padded lengths: ' in out and 'changed' in out
