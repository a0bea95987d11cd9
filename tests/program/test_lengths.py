"""The number of padded lengths of a run, which a resumed run keeps."""

import json
import pathlib

import pytest
from running import GLUE, Program, copy_workdir

from bertjax.finetune.run import _recorded_rows

FREE = (
    '--config.max_padded_lengths=0',
    '--config.packing=off',
    '--config.eval_every=0',
    '--config.checkpoint_every=0',
    '--config.export=False',
)


def test_the_lengths_and_the_packing_come_from_the_run(tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    assert _recorded_rows(workdir) == (2, 'off')
    for damaged in ('{"max_padded_lengths"', '[' * 100_000, '[8]', '{"max_padded_lengths": 8}'):
        (workdir / 'config.json').write_text(damaged)
        assert _recorded_rows(workdir) == (0, '')
    (tmp_path / 'new').mkdir()
    (tmp_path / 'new' / 'config.json').write_text('{"max_padded_lengths": 8, "packing": "on"}')
    assert _recorded_rows(tmp_path / 'new') == (0, '')  # no checkpoint: the run starts from the beginning


def config(workdir: pathlib.Path) -> dict:
    return json.loads((workdir / 'config.json').read_text(encoding='utf-8'))


@pytest.mark.slow
def test_a_short_run_has_one_length_and_keeps_it(program: Program, tune, tmp_path: pathlib.Path):
    flags = (f'--workdir={tmp_path}', *tune, *FREE, '--config.trainable=head')
    assert '1 padded length: ' in program.run(*flags, '--config.steps=3', **GLUE).stdout
    assert config(tmp_path)['max_padded_lengths'] == 1
    out = program.run(*flags, '--config.steps=40', **GLUE).stdout
    assert 'continuing at step 3 of 40' in out and '1 padded length: ' in out


@pytest.mark.slow
def test_a_run_of_an_early_version_keeps_its_lengths(program: Program, tune, tmp_path: pathlib.Path):
    """Early versions had 8 lengths by default."""
    flags = (f'--workdir={tmp_path}', *tune, *FREE)
    out = program.run(*flags, '--config.max_padded_lengths=2', '--config.steps=2', **GLUE).stdout
    assert '2 padded lengths: ' in out
    out = program.run(*flags, '--config.steps=4', **GLUE).stdout
    assert 'continuing at step 2 of 4' in out and '2 padded lengths: ' in out and 'changed' in out
