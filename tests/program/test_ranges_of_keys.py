"""Values at the limits of their ranges and beyond: the program exits with status 0, or 2 with one line."""

import ast
import pathlib
import random

import numpy as np
import pytest
import safetensors.numpy
from running import GLUE, Program

from bertjax.config.check import config_keys
from bertjax.config.plain import flatten
from bertjax.config.ranges import Range
from bertjax.config.recipes import finetuning_config, pretraining_config

RECIPE = """
from bertjax.config.recipes import {imported}

def get_config():
    {body}
    return config
"""


@pytest.mark.parametrize(
    ('arguments', 'part'),
    [
        (('--config.optimizer.eps=-1',), 'config.optimizer.eps: found -1.0, expected a number from 1e-30 to 1; for'),
        (('--config.optimizer.weight_decay=nan',), 'config.optimizer.weight_decay: found nan, expected a number'),
        (('--config.epochs=nan',), 'config.epochs: found nan'),
        (('--config.steps=nan',), "config.steps: found 'nan', expected a number of steps"),
        (('--config.model.max_positions=99999999999999',), 'config.model.max_positions: found 99999999999999,'),
        (('--config.model.num_layers=9999', '--config.model.width=131072'), 'config.model: found'),
        (('--config.batch_size=1048576', '--config.seq_len=512', '--config.model.width=4096'), 'config.batch_size: fo'),
        (('--config.run=plot', '--config.log_every=-1'), 'config.log_every: found -1'),
        (('--config.run=vocab', '--config.vocab.unused=-1'), 'config.vocab.unused: found -1'),
        (('--config.vocab.unused=399',), 'config.vocab.unused: found 399 of 400 pieces'),
        (('--config.max_predictions=33',), 'config.max_predictions: found 33, expected at most seq_len = 32'),
        (('--config.max_predictions=33', '--config.masking.rate=0.4'), 'use about 0.4 x seq_len'),
        (
            ('--config.run=compile', '--config.topology=v5e:2x2', '--config.grad_accum_steps=-1'),
            'config.grad_accum_steps: found',
        ),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_at_once(
    program: Program, tmp_path: pathlib.Path, arguments: tuple[str, ...], part: str
):
    assert part in program.error(f'--workdir={tmp_path / "run"}', *arguments)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('imported', 'body', 'part'),
    [
        ('pretraining_config', "config = pretraining_config('tiny', batch_size='many')", 'TypeError'),
        ('pretraining_config', "config = pretraining_config('tiny', corpus=['a.txt'])", 'TypeError'),
        ('pretraining_config', "config = pretraining_config('tiny'); del config.corpus; config.corpus = ['a']",
         "config.corpus: found ['a'], expected text"),
        ('pretraining_config', "config = pretraining_config('tiny', batch_size=True)", 'config.batch_size: found True'),
        ('pretraining_config', "config = pretraining_config('tiny', data='a\\0b')", "config.data: found 'a\\x00b'"),
        ('pretraining_config', "config = pretraining_config('tiny', phases=(1,))", 'config.phases: found [1]'),
        ('pretraining_config', "config = pretraining_config('tiny', masks=1)", 'did you mean --config.masking?'),
        ('finetuning_config', "config = finetuning_config('glue', task='rte', stride=-1)", 'config.task.stride: found'),
        ('finetuning_config', "config = finetuning_config('classification', labels=(0, 1))", 'config.task.labels: fo'),
        ('finetuning_config', "config = finetuning_config('glue'); config.seq_len = 3", 'a whole number from 4'),
        ('finetuning_config', "config = {'batch_size': 3}", 'found a dict from get_config'),
        ('no_such_thing', 'config = 1', 'ImportError'),
    ],
)  # fmt: skip
def test_a_wrong_recipe_file_is_an_error(program: Program, tmp_path: pathlib.Path, imported: str, body: str, part: str):
    recipe = tmp_path / 'own.py'
    recipe.write_text(RECIPE.format(imported=imported, body=body), encoding='utf-8')
    error = program.error(f'--workdir={tmp_path / "run"}', recipe=str(recipe), small=False)
    assert part in error
    assert 'Error' not in part or f'{recipe}:{2 if imported == "no_such_thing" else 5}: found {part}' in error


def test_weights_that_are_not_finite_are_refused(
    program: Program, trained: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path
):
    model = tmp_path / 'model'
    model.mkdir()
    for file in (trained / 'export' / 'hf').iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    tensors = safetensors.numpy.load_file(model / 'model.safetensors')
    name = 'bert.encoder.layer.1.output.dense.bias'
    tensors[name] = np.where(np.arange(tensors[name].size) < 2, [np.nan, np.inf] * 16, tensors[name]).astype(np.float32)
    safetensors.numpy.save_file(tensors, model / 'model.safetensors', {'format': 'pt'})
    message = f'{model}: {name}: found 2 values that are nan or inf, expected finite numbers'
    task = (f'--config.init={model}', f'--config.data={rte}', '--config.seq_len=24')
    assert message in program.error(f'--workdir={tmp_path / "tuned"}', *task, **GLUE)
    assert message in program.error(f'--workdir={tmp_path / "more"}', f'--config.init={model}', '--config.steps=1')


ODD = ('-1', 'nan', '99999999999999999', '')
NAMES = ('corpus', 'run', 'init', 'input', 'data', 'tokenizer', 'topology', 'split')  # their values name files or verbs


def parse(text: str, default: object) -> object:
    """Converts `text` as a flag does."""
    if isinstance(default, bool):
        return {'0': False, '1': True}[text]
    return ast.literal_eval(text) if isinstance(default, tuple) else type(default)(text)


def inside(text: str, allowed: Range, default: object) -> bool:
    try:
        return allowed.contains(parse(text, default))
    except (KeyError, TypeError, ValueError, SyntaxError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['pretraining', 'glue'])
def test_every_key_is_checked_by_the_program(
    program: Program, trained: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path, kind: str
):
    """Values out of range are one-line errors before anything is written.

    For two keys, the smallest legal value is used in a run of two steps.
    """
    tiny = ('--config.export=False', '--config.eval_every=0', '--config.checkpoint_every=0', '--config.steps=2')
    if kind == 'pretraining':
        config, options = pretraining_config('tiny'), {}
        tiny += (f'--config.data={trained / "store"}', f'--config.tokenizer={trained / "tokenizer"}')
    else:
        config, options = finetuning_config('glue', task='rte', long='truncate'), GLUE
        tiny += (
            f'--config.init={trained}',
            f'--config.data={rte}',
            '--config.seq_len=24',
            '--config.max_padded_lengths=1',
        )
    legal = []
    for number, (key, declared) in enumerate(config_keys(config).items()):
        allowed, default = declared.allowed, declared.default
        if key in NAMES or key not in flatten(config):
            continue
        command = (f'--workdir={tmp_path / key}', *tiny)
        if outside := [text for text in ODD if not inside(text, allowed, default)]:
            text = outside[number % len(outside)]  # one for each key, because all give the same error
            assert key.split('.')[-1] in program.error(*command, f'--config.{key}={text}', **options), (key, text)
            assert not (tmp_path / key).exists()
        least = next((text for text in ('0', '1') if inside(text, allowed, default)), None)
        is_number = not isinstance(default, bool | str) and not declared.used_with
        if least is not None and is_number and float(least) != default:
            legal.append(f'--config.{key}={least}')
    for number, change in enumerate(random.Random(kind).sample(legal, 2)):
        result = program.run(f'--workdir={tmp_path / str(number)}', *tiny, change, status=None, **options)
        assert result.returncode in (0, 2) and 'Traceback' not in result.stderr, (change, result.stderr)


@pytest.mark.parametrize('name', ['pretrain_tiny', 'pretrain_base:no_nsp'])
def test_a_recipe_is_found_by_name(program: Program, tmp_path: pathlib.Path, name: str):
    changes = (f'--workdir={tmp_path}', '--config.seq_len=1024', '--config.phases=()')
    error = program.error(*changes, recipe=name, small=False)
    assert 'config.seq_len: found 1024, expected at most config.model.max_positions = 512' in error


def test_unknown_names_of_recipes_are_errors(program: Program, tmp_path: pathlib.Path):
    assert 'did you mean pretrain_tiny?' in program.error(f'--workdir={tmp_path}', recipe='pretrain_tny', small=False)
    assert 'classify, colbert, convert, distilbert, embed, ettin, extract, ' in program.error(
        f'--workdir={tmp_path}', recipe='zzz', small=False
    )


def test_the_version_flag_prints_the_version(program: Program):
    from bertjax import __version__

    assert program.run('--version', recipe='', small=False).stdout == f'bertjax {__version__}\n'
