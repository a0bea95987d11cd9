"""Complaints about older systems that no other test covers; docs/troubleshooting.md lists all of them."""

import pathlib

import pytest
from running import GLUE, Program


@pytest.fixture
def other(tmp_path: pathlib.Path) -> pathlib.Path:
    """A vocabulary with more pieces than the encoder of `trained` has embedding rows."""
    words = [f'word{i}' for i in range(500)]
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]
    (tmp_path / 'vocab.txt').write_text('\n'.join(pieces) + '\n', encoding='utf-8')
    return tmp_path / 'vocab.txt'


@pytest.mark.slow
def test_a_vocabulary_that_is_not_the_models(
    program: Program, tune: tuple[str, ...], trained: pathlib.Path, other: pathlib.Path, tmp_path: pathlib.Path
):
    """google-research/bert#82: ids beyond the embedding gave NaN. Training refuses them before the first step."""
    flags = (f'--workdir={tmp_path / "run"}', f'--config.tokenizer={other}')
    line = program.error(*flags, *tune, **GLUE)
    assert 'config.tokenizer: found no ' in line and f'expected the vocabulary of {trained}' in line
    pieces = (trained / 'tokenizer' / 'vocab.txt').read_text(encoding='utf-8').splitlines()
    other.write_text('\n'.join([*pieces, 'oldstone']), encoding='utf-8')
    assert "config.tokenizer: found the new piece 'oldstone', expected the" in program.error(*flags, *tune, **GLUE)
    other.write_text('\n'.join([*pieces[:-1], 'oldstone']), encoding='utf-8')
    line = program.error(*flags, f'--config.init={trained}', '--config.steps=2')
    assert 'config.tokenizer: found no ' in line and 'leave config.tokenizer empty' in line
    assert not (tmp_path / 'run' / 'checkpoints').exists() or not any((tmp_path / 'run' / 'checkpoints').iterdir())
