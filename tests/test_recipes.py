"""Every shipped recipe builds: pre-training recipes train one step at reduced width, task recipes build a model."""

import dataclasses
import itertools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax import usage
from bertjax.config.check import check_ranges, config_keys
from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.inference import INFERENCE_KEYS
from bertjax.config.plain import flatten, to_plain
from bertjax.config.schema import keys_of
from bertjax.config.suggestions import KEYS, VERBS, nearest_name
from bertjax.distill.settings import DistillationSettings
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
from bertjax.model.config import BertConfig, parameter_count
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.tasks.registry import options
from bertjax.training.compiled_steps import compile_steps

CONFIGS = sorted((pathlib.Path(__file__).parent.parent / 'configs').glob('*.py'))
ARGUMENTS = {
    'pretrain_tiny': ['', 'adam'],
    'pretrain_base': ['', 'no_nsp', 'ltr', 'masking=0/20/80', 'size=l6_d768_h3', 'cased'],
    'ettin': ['', '17m', '32m', '68m', '150m', '400m', '1b'],
    'glue': ['', 'all', 'cola', 'sst2', 'mrpc,grid', 'stsb', 'qqp', 'mnli,seq=256', 'qnli', 'rte,grid,seeds=5', 'wnli'],
    'squad': ['', 'v1', 'v2'],
    'ner': [
        '', 'context', 'plain', 'features=embeddings', 'features=second_to_last', 'features=last',
        'features=sum_last_four,units=384', 'features=concat_last_four,context', 'features=sum_all,units=0',
    ],
    'swag': ['', 'codah', 'jsonl'],
    'classify': ['', 'regression', 'long=truncate', 'long=head_tail', 'long=windows,seq=512'],
    'multi_label': ['', 'long=windows,seq=512'],
    'sick': ['e', 'r'],
    'embed': ['', 'pairs', 'stsb', 'nli', 'simcse', 'pool=cls,seq=256'],
    'rerank': ['', 'stsb', 'seq=128'],
    'colbert': ['', 'seq=300,query=40,dim=64'],
    'extract': ['', 'sentences', 'last_four'],
    'fill': ['', 'masks', 'score', 'pairs', 'continue'],
    'relation': ['', 'starts', 'markers=typed', 'starts,markers=mask', 'markers=words,seq=256'],
}  # fmt: skip


def load(path: pathlib.Path, argument: str) -> ConfigDict:
    return load_recipe(f'{path}:{argument}')


TASKS = [path for path in CONFIGS if 'task' in load(path, '')]
FINISHED_MODEL = [path for path in CONFIGS if load(path, '').run in INFERENCE_KEYS]  # recipes that use a finished model
CASES = {path: [(path, argument) for argument in ARGUMENTS.get(path.stem, [''])] for path in CONFIGS}
NAME = {'ids': lambda value: getattr(value, 'stem', value)}
DISTILLATIONS = [path for path in CONFIGS if 'distill' in load(path, '')]  # the argument may name a task
PRETRAINING_CASES = [case for path, cases in CASES.items() if path not in (*TASKS, *FINISHED_MODEL) for case in cases]
TASK_CASES = [case for path in TASKS for case in CASES[path]]
TASK_CASES += [
    (path, task) for path in DISTILLATIONS for task in ('glue:rte', 'squad:v1', 'ner', 'swag', 'classify', 'rerank')
]


@pytest.mark.parametrize(('path', 'argument'), PRETRAINING_CASES, **NAME)
def test_recipe_resolves(path: pathlib.Path, argument: str):
    config = load(path, argument)
    settings = pretraining_settings(config)
    settings.check()
    settings.model_config(config.vocab.size)  # at full size, but no parameters are created
    phases = settings.resolve_phases(settings.total_steps(1e6))
    assert phases[0].first_step == 0 and all(a.last_step == b.first_step for a, b in itertools.pairwise(phases))


def small_config(path: pathlib.Path, argument: str) -> ConfigDict:
    config = load(path, argument)
    config.model.width, config.model.mlp_dim, config.model.num_heads, config.model.num_layers = 16, 32, 2, 1
    config.mesh.data = 1
    for i, phase in enumerate(config.phases):
        phase.batch_size, phase.grad_accum_steps = 4, min(2, phase.get('grad_accum_steps', 1))
        phase.seq_len = 16 * (i + 1)
        phase.max_predictions = phase.seq_len if config.packing else 3
    config.batch_size, config.grad_accum_steps = 4, min(2, config.grad_accum_steps)
    config.seq_len, config.max_predictions = 16, 3
    return config


def program_key(config: ConfigDict) -> str:
    """Returns text that two small configs share if their train steps are the same program, except for constants."""
    phase = config.phases[-1] if config.phases else config
    names = ('seq_len', 'max_predictions', 'grad_accum_steps')
    values = [config.model, config.optimizer.name, config.pairs.mode, config.packing, 'distill' in config]
    values += [bool(x) for x in (config.z_loss, config.ema_decay, config.optimizer.clip_norm)]
    return json.dumps([to_plain(values), [phase[name] or config[name] for name in names]])


# One recipe for each different program of a train step. Most are in the slow suite.
STEPS = {program_key(small_config(*case)): case for case in reversed(PRETRAINING_CASES)}
STEPS = [
    pytest.param(*case, marks=() if (case[0].stem, case[1]) == ('pretrain_tiny', '') else pytest.mark.slow)
    for case in reversed(STEPS.values())
]


@pytest.mark.parametrize(('path', 'argument'), STEPS, **NAME)
def test_recipe_takes_a_step(path: pathlib.Path, argument: str):
    config = small_config(path, argument)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    settings = pretraining_settings(config)
    setup = build_pretraining_setup(settings, settings.model_config(100), mesh)
    phase = settings.resolve_phases(settings.total_steps(1e6))[-1]
    # Any finite parameters suffice; random initialization would take longer than the step.
    state = jax.tree.map(lambda x: jax.device_put(np.full(x.shape, 0.01, x.dtype), x.sharding), setup.state)
    ones = {name: np.ones(shape, dtype) for name, (shape, dtype) in phase.batches[phase.seq_len].items()}
    batch = jax.device_put(ones, batch_sharding(mesh))
    step = compile_steps(setup, phase, phase.batches)[phase.seq_len]
    new, metrics = step(state, batch, jnp.uint32(0), phase.make_schedule(phase.learning_rate), jnp.uint32(0))
    assert int(new.step) == 1 and int(new.skipped) == 0
    assert np.isfinite(float(metrics['scalars']['grad_norm']))


def test_the_keys_and_verbs_that_are_suggested_exist():
    known = {key for path in CONFIGS for key in flatten(load(path, ''))}
    for name, ours in KEYS.items():
        assert set(ours) <= known, name
        assert (
            nearest_name(name, known - {name}) == ours[0] and nearest_name(f'model.{name}', known - {name}) == ours[0]
        )
    assert all(set(verbs) <= {*usage.verbs()} for verbs in VERBS.values())


@pytest.mark.parametrize(
    ('recipe', 'names'),
    [
        ('pretrain_tiny', {'train_file': 'corpus', 'validation_file': 'heldout_texts', 'dupe_factor': 'pair_plans'}),
        ('pretrain_tiny', {'do_whole_word_mask': 'masking.unit', 'do_lower_case': 'vocab.lowercase', 'num_labels': ''}),
        ('glue', {'train_file': 'data', 'do_lower_case': 'tokenizer', 'do_eval': 'run', 'line_by_line': ''}),
        ('classify', {'test_file': 'task.test', 'num_labels': 'task.labels', 'metric_for_best_model': 'task.metric'}),
        ('ner', {'text_column_name': 'task.words', 'label_column_name': 'task.tags', 'metric_for_best_model': ''}),
        ('squad', {'validation_file': 'task.dev_file', 'load_best_model_at_end': 'use_checkpoint'}),
    ],
)
def test_the_equivalent_of_a_name_depends_on_the_recipe(recipe: str, names: dict[str, str]):
    known = flatten(load_recipe(find_recipe(recipe)))
    assert {name: nearest_name(name, known) for name in names} == names


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_docstring_has_the_command(path: pathlib.Path):
    text = path.read_text(encoding='utf-8')
    assert f'python -m bertjax.main --config=configs/{path.name}' in text
    assert 'ardware' in text or 'CPU' in text


def test_the_table_of_compiled_phases_matches_the_recipes():
    """docs/scaling.md lists each phase, the chips of the recipe's docstring, and memory that fits on a chip."""
    page = (CONFIGS[0].parent.parent / 'docs' / 'scaling.md').read_text(encoding='utf-8')
    row = (
        r'^\| (?:`configs/(\w+)\.py`)? ?\| (?:`v5e:(\d+)x(\d+)`)? ?\| (\d(?:, \d)*) \| (.+) \| ([\d.]+) \| '
        r'[\d.]+ ms, \d+ % \|$'
    )
    compiled, stem, chips = {}, '', 0
    for name, x, y, numbers, batch, gib in re.findall(row, page, re.MULTILINE):
        stem, chips = (name, int(x) * int(y)) if name else (stem, chips)
        assert float(gib) < 15.75  # GiB that a program can use of the 16 GiB
        compiled |= {(stem, int(number)): (batch, chips) for number in numbers.split(', ')}
    expected = {}
    for path in CONFIGS:
        named = re.search(r'Hardware: (\d+) chips of TPU v5e', path.read_text(encoding='utf-8'))
        if named:
            total = 1_000_000 if 'lamb' not in path.stem else 8601
            for phase in pretraining_settings(load(path, '')).resolve_phases(total):
                parts = f', {phase.grad_accum_steps}' if phase.grad_accum_steps > 1 else ''
                expected[path.stem, phase.number] = f'{phase.batch_size} x {phase.seq_len}{parts}', int(named[1])
    assert compiled == expected and len({stem for stem, _ in expected}) == 9


def test_ablations_have_the_settings_of_the_paper():
    base = CONFIGS[[path.stem for path in CONFIGS].index('pretrain_base')]
    masking = load(base, 'masking=0/20/80').masking
    assert (masking.mask, masking.random) == (0.0, 0.8)
    ltr = load(base, 'ltr')
    assert ltr.model.causal and ltr.pairs.mode == 'doc_sentences'
    assert load(base, 'size=l3_d768_h12').model.num_layers == 3
    with pytest.raises(UserError, match='masking'):
        load(base, 'masking=1/2')


def test_modern_phases_are_the_published_ones():
    """They agree with arXiv 2412.13663, arXiv 2507.11412 and their configs.

    The first phase makes the weights smaller by the published fraction in each step.
    """
    expected = {  # decay per step, billions of tokens in the warm-up, (billions of tokens, learning rate) of each phase
        ('modern_base', ''): (1e-5, 3, [(1719, 8e-4), (250, 3e-4), (50, 3e-4)]),
        ('modern_large', ''): (1e-5, 2, [(900, 5e-4), (800, 5e-5), (250, 5e-5), (50, 5e-5)]),
        ('ettin', '17m'): (3e-4, 4, [(1700, 3e-3), (250, 3e-3), (50, 1.5e-3)]),
        ('ettin', '1b'): (5e-5, 2, [(1700, 5e-4), (250, 5e-4), (50, 2.5e-4)]),
    }
    for (stem, argument), (decay, warmup, tokens_and_rates) in expected.items():
        config = load(CONFIGS[[path.stem for path in CONFIGS].index(stem)], argument)
        phases = pretraining_settings(config).resolve_phases(config.steps)
        assert config.optimizer.weight_decay * phases[0].learning_rate == pytest.approx(decay)
        assert phases[0].warmup_fraction * tokens_and_rates[0][0] == pytest.approx(warmup, rel=0.02)
        for phase, (billions, rate) in zip(phases, tokens_and_rates, strict=True):
            tokens = (phase.last_step - phase.first_step) * phase.batch_size * phase.seq_len
            assert tokens == pytest.approx(billions * 1e9, rel=2e-3) and phase.learning_rate == rate
        assert phases[-1].decay_fraction == 1.0 and phases[0].decay_fraction == 0.0
        assert parameter_count(pretraining_settings(config).model_config(50368)) > 1e6
    with pytest.raises(UserError, match='size'):
        load(CONFIGS[[path.stem for path in CONFIGS].index('ettin')], '5m')


def test_lamb_phases_are_the_published_ones():
    lamb = CONFIGS[[path.stem for path in CONFIGS].index('pretrain_large_lamb')]
    phases = pretraining_settings(load(lamb, '')).resolve_phases(8601)
    assert [(p.last_step - p.first_step, p.batch_size, p.seq_len, p.learning_rate) for p in phases] == [
        (7038, 65536, 128, 6e-3),
        (1563, 32768, 512, 4e-3),
    ]


# The state that each kind of task learns from its training data.
LEARNED = {'tagging': {'labels': ['O', 'B-x', 'I-x'], 'scheme': ''}, 'classification': {'labels': ['no', 'yes']}}
LEARNED['relation'] = {'labels': ['no_relation', 'per:title']}
LEARNED['multi_label'] = {'labels': ['a', 'b'], 'separator': '|'}


@pytest.mark.parametrize(('path', 'argument'), TASK_CASES, **NAME)
def test_task_recipe_makes_a_model(path: pathlib.Path, argument: str):
    config = load(path, argument)
    assert config.run == ('distill' if path in DISTILLATIONS else 'benchmark' if argument == 'all' else 'finetune')
    check_ranges(config)
    if argument == 'all':
        config.task.task = 'mnli'  # one of the tasks
    settings = finetuning_settings(config)
    settings.check()
    assert all(trial.learning_rate > 0 for trial in make_trials(settings))
    task = settings.build_task()
    task.restore(LEARNED.get(config.task.kind, task.learned_state()))
    encoder = BertConfig(vocab_size=100, num_layers=4, width=16, num_heads=2, mlp_dim=32, max_positions=config.seq_len)
    shape = (2, 4, config.seq_len) if config.task.kind == 'multiple_choice' else (2, config.seq_len)
    ids = [jax.ShapeDtypeStruct(shape, np.int32)] * len(task.objective.inputs)
    model = task.build_module(encoder)
    outputs, _ = jax.eval_shape(lambda *inputs: model.init_with_output(jax.random.key(0), *inputs), *ids)
    assert all(x.dtype == np.float32 and x.shape[0] == 2 for x in outputs.values())


@pytest.mark.parametrize('path', FINISHED_MODEL, ids=lambda path: path.stem)
def test_recipe_that_uses_a_model_has_every_key(path: pathlib.Path):
    config = load(path, '')
    verb = config.run
    assert path.stem == verb and set(flatten(config)) == set(keys_of(INFERENCE_KEYS[verb]))
    for argument in ARGUMENTS.get(path.stem, ['']):
        check_ranges(load(path, argument))


@pytest.mark.parametrize('path', TASKS, ids=lambda path: path.stem)
def test_task_recipe_has_every_key(path: pathlib.Path):
    """It declares all keys of fine-tuning and all options of its task, so the command line can set each of them."""
    config = load(path, '')
    assert set(flatten(config)) == set(config_keys(config)) >= {f'task.{name}' for name in options(config.task.kind)}


def test_distillations_have_the_settings_of_the_papers():
    distilbert, tinybert = (DistillationSettings(**load(path, '').distill) for path in DISTILLATIONS)
    base = BertConfig(vocab_size=100, num_layers=12, width=96, num_heads=12, mlp_dim=16)
    half_depth, thin = (load(path, '').model for path in DISTILLATIONS)
    student = dataclasses.replace(base, num_layers=half_depth.num_layers)
    assert distilbert.student_layers(base, student.num_layers) == (0, 2, 4, 7, 9, 11)
    spec = distilbert.make_spec(base, student)
    assert {part: factor for part, factor in spec.factors.items() if factor} == {'soft': 5, 'hard': 2, 'cosine': 1}
    assert (spec.temperature, spec.projection) == (2.0, False)
    assert (thin.num_layers, thin.width, thin.mlp_dim, thin.num_heads) == (4, 312, 1200, 12)
    spec = tinybert.make_spec(base, dataclasses.replace(base, num_layers=4, width=24))
    assert {part for part, factor in spec.factors.items() if factor} == {'embeddings', 'hidden', 'attention'}
    assert spec.layers == (2, 5, 8, 11) and spec.projection
    task = DistillationSettings(**load(DISTILLATIONS[1], 'glue:rte').distill)
    assert task.has_two_stages and task.intermediate_steps(23 * 78, 78) == 20 * 78
    with pytest.raises(UserError, match=r'for each of the two stages, of the 1 of the run; raise config.steps'):
        task.intermediate_steps(1, 78)
    for path in DISTILLATIONS:
        with pytest.raises(UserError, match='a recipe of a task'):
            load(path, 'pretrain_tiny')


@pytest.mark.parametrize('path', [*TASKS, *(path for path in FINISHED_MODEL if path.stem in ARGUMENTS)], **NAME)
def test_every_argument_in_the_docstring_is_tested(path: pathlib.Path):
    """Arguments come from the first column of the table and from the commands in the docstring."""
    text = path.read_text(encoding='utf-8').split('"""')[1]
    table = re.search(r'^\| argument.*?(?=\n\n)', text, re.MULTILINE | re.DOTALL)
    cells = re.findall(r'^\| (\w+)(?:=\w+)? +\|', table.group(), re.MULTILINE) if table else []
    written = re.findall(rf'(?:configs/{path.name}| or |[ (]):([\w=,]+)', text)
    named = {item.split('=')[0] for text in (*cells, *written) for item in text.split(',')} - {'argument', 'NAME'}
    tried = {item.split('=')[0] for argument in ARGUMENTS[path.stem] for item in argument.split(',')}
    assert named and named <= tried, named - tried


def test_task_recipes_have_the_settings_of_the_paper():
    glue, squad, ner, swag, sick = (next(p for p in TASKS if p.stem == name) for name in (
        'glue', 'squad', 'ner', 'swag', 'sick'
    ))  # fmt: skip
    grid, seeds, none = (
        make_trials(finetuning_settings(load(glue, argument))) for argument in ('rte,grid', 'rte,grid,seeds=5', 'rte')
    )
    assert {trial.learning_rate for trial in grid} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert {trial.batch_size for trial in grid} == {16, 32} and {trial.epochs for trial in grid} == {3.0}
    assert len(grid) == 8 and len(seeds) == 40 and not none
    rates = [(c.task.version, c.learning_rate, c.batch_size, c.epochs) for c in (load(squad, 'v1'), load(squad, 'v2'))]
    assert rates == [('1.1', 5e-5, 32, 3.0), ('2.0', 5e-5, 48, 2.0)]
    features = load(ner, 'features=concat_last_four')
    assert (features.trainable, features.export_formats, features.task.bilstm_units) == ('head', 'orbax', 768)
    assert features.task.frozen and features.task.layers == 'concat_last_four' and not load(ner, '').task.bilstm_units
    assert (load(swag, '').learning_rate, load(swag, '').batch_size, load(swag, '').epochs) == (2e-5, 16, 3.0)
    assert load(sick, 'r').task.regression and not load(sick, 'e').task.regression
    for path, argument in ((squad, 'v3'), (ner, 'features=first'), (swag, 'race'), (sick, 'x'), (glue, 'seed=3')):
        with pytest.raises(UserError):
            load(path, argument)
    with pytest.raises(UserError, match='rtee'):
        finetuning_settings(load(glue, 'rtee')).build_task()
