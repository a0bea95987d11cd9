"""A user mistake gives exit status 2 and a one-line message with the fix, before any compute."""

import gzip
import pathlib
import re
import shutil

import pytest
from running import Program, assert_one_line

from bertjax.commands import show
from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import flatten
from bertjax.usage import verbs

MISTAKES = [
    (('--config.typo=1',), ('--config.typo', 'unknown config key')),
    (('--config.model.widht=64',), ('did you mean --config.model.width?',)),
    (('--config.learning_rat=1',), ('did you mean --config.learning_rate?',)),
    (('--config.batch_size=many',), ('--config.batch_size', 'a whole number')),
    (('--config.phases=1 of 2',), ("--config.phases: found '1 of 2'", 'expected a list such as (1, 2)')),
    (('--config.learning_rate=high',), ('--config.learning_rate', 'a number')),
    (('--config.export=perhaps',), ('--config.export', 'true or false')),
    (('--config.steps=soon',), ('config.steps', 'a number of steps')),
    (('--config.steps=0',), ('config.steps', 'at least 1 step')),
    (('--config.run=dance',), ('config.run', 'pretrain')),
    (('--config.model.num_heads=3',), ('config.model.num_heads', 'divisor of width 32')),
    (('--config.model.causal=True',), ('config.pairs.mode: found nsp with config.model.causal=True', 'doc_sentences')),
    (('--config.model.pre_norm=True',), ('config.model.pre_norm', 'config.export_formats=orbax')),
    (('--config.model.attention=fused_tpu',), ('config.model.attention', 'a kernel for TPUs', 'attention=auto')),
    (('--config.seq_len=1024',), ('config.seq_len', 'max_positions')),
    (('--config.mesh.data=3',), ('config.mesh', '1 device')),
    (('--config.batch_size=9', '--config.grad_accum_steps=2'), ('config.grad_accum_steps', 'divisor')),
    (('--config.pairs.mode=random',), ('config.pairs.mode', 'nsp')),
    (('--config.pair_plans=0',), ('config.pair_plans', 'from 1 to')),
    (('--config.pair_plans=99999999999999',), ('config.pair_plans', '10,000')),
    (('--config.masking.rate=0',), ('config.masking.rate',)),
    (('--config.schedule.name=square',), ('config.schedule.name', 'cosine')),
    (('--config.optimizer.name=sgd',), ('config.optimizer.name', 'lamb')),
    (('--config.seed=-1',), ('config.seed', '-1')),
    (('--config.corpus=/nowhere/*.txt',), ('config.corpus', '/nowhere/*.txt')),
    (('--config.tokenizer=/nowhere/vocab.txt',), ('/nowhere/vocab.txt',)),
    (('--config.data=/nowhere/store',), ('/nowhere/store',)),
    (('--config.init=/nowhere/model',), ('config.init',)),
    (('--config.run=compile',), ('config.topology', 'v5e:4x4')),
    (('--config.run=compile', '--config.topology=v9:1'), ('config.topology', 'v9:1')),
    (('--config.run=export',), ('--workdir', 'train first')),
    (('--config.run=plot',), ('metrics.jsonl', 'train first')),
    (('--config=pretrain_mini',), ('configs/pretrain_tiny.py:adam and pretrain_mini', 'one recipe')),
    (('--noconfig.exprot',), ('did you mean --config.export?',)),
    (('--flagfile=/nowhere/flags',), ('--flagfile', '/nowhere/flags')),
    (('--nope=1',), ('--nope', 'unknown flag', 'see --help')),
    (('stray',), ("'stray'", 'see --help')),
    # Keys without effect.
    (
        ('--config.schedule.power=2',),
        (
            "config.schedule.power: found 2.0 with config.schedule.name='linear'",
            'or set --config.schedule.name to poly',
        ),
    ),
    (
        ('--config.optimizer.momentum=0.9', '--config.optimizer.name=lamb'),
        ('no value', 'config.optimizer.name to muon'),
    ),
    (('--config.masking.max_span=4',), ('config.masking.max_span', "with config.masking.unit='token'")),
    (('--config.tracker_run=first',), ('config.tracker_run', 'or set --config.tracker')),
    (('--config.step=10',), ("with config.run='pretrain'", 'config.run to evaluate or predict or export')),
    # Names that other programs use.
    (('--config.lr=1',), ('did you mean --config.learning_rate?',)),
    (('--config.max_steps=1',), ('did you mean --config.steps?',)),
    (('--config.num_train_epochs=1',), ('did you mean --config.epochs?',)),
    (('--config.per_device_train_batch_size=1',), ('did you mean --config.batch_size?',)),
    (('--config.model.hidden_size=1',), ('did you mean --config.model.width?',)),
    (('--learning_rate', '1'), ('--learning_rate: found an unknown flag', 'did you mean --config.learning_rate?')),
    (('--learning_rate=1',), ('--learning_rate: found an unknown flag', 'did you mean --config.learning_rate?')),
    (('--lr=1',), ('did you mean --config.learning_rate?',)),
    (('--output_dir=out',), ('did you mean --workdir?',)),
    (('--noconfig.epochs',), ('did you mean --config.epochs?',)),
    (('--config.run=eval',), ('did you mean --config.run=evaluate?',)),
    (('--config.run=train',), ('did you mean --config.run=pretrain?',)),
    # Words of the short form.
    (('finetune',), ('did you mean glue:rte run=finetune?',)),
    (('glue:rte',), ('glue:rte and configs/pretrain_tiny.py:adam', 'one recipe')),
    (('steps=0',), ('config.steps', 'at least 1 step')),
    (('typo=1',), ('--config.typo', 'unknown config key')),
    (('lr=high',), ('--config.learning_rate', 'a number')),
    (('help',), ('did you mean --help?',)),
]


@pytest.mark.parametrize(('arguments', 'parts'), MISTAKES, ids=lambda value: value[0] if value else '')
def test_a_mistake_is_a_one_line_error(
    program: Program, tmp_path: pathlib.Path, arguments: tuple[str, ...], parts: tuple[str, ...]
):
    workdir = tmp_path / 'run'
    error = program.error(f'--workdir={workdir}', *arguments)
    for part in parts:
        assert part in error, error
    for name in ('checkpoints', 'metrics.jsonl', 'store', 'tokenizer'):
        assert not (workdir / name).exists()


@pytest.mark.parametrize('verb', ['pretrain', 'corpus', 'vocab'])
@pytest.mark.parametrize('name', ['texts', 'texts/*', 'texts/facts.csv.gz'])
def test_a_table_is_not_read_as_text(program: Program, tmp_path: pathlib.Path, verb: str, name: str):
    texts = tmp_path / 'texts'
    texts.mkdir()
    (texts / 'a.txt').write_text('The mill stands by the river.\n' * 99)
    (texts / 'facts.csv.gz').write_bytes(gzip.compress(b'title,words\nMill,99\n'))
    workdir = tmp_path / 'run'
    error = program.error(f'--workdir={workdir}', f'--config.corpus={tmp_path / name}', f'--config.run={verb}')
    assert f'config.corpus: found {texts}/facts.csv.gz' in error, error
    assert 'expected plain text or JSON lines' in error and 'corpus_options.format=text' in error
    assert not (workdir / 'store').exists() and not (workdir / 'tokenizer').exists()


def test_a_process_ends_with_the_same_line(program: Program, tmp_path: pathlib.Path):
    """All other tests here call the same entry point in this process."""
    arguments = (f'--workdir={tmp_path}', '--config.steps=0')
    assert assert_one_line(program.spawn(*arguments, status=2)) == program.error(*arguments)


@pytest.mark.parametrize(
    ('recipe', 'part'),
    [
        ('configs/pretrain_hugh.py', 'configs/pretrain_tiny.py'),
        ('configs/pretrain_base.py:huge', 'l3_d768_h12'),
        ('configs/pretrain_base.py:mask=3', 'did you mean masking?'),
        ('configs/pretrain_base.py:masking=50/50/50', '80/10/10'),
        ('configs/pretrain_base.py:ltr,bilstm', "found 'bilstm', expected size (str, default 'base')"),
        ('configs/pretrain_mini.py:large', 'takes no argument'),
        ('configs/pretrain_tiny.py:adamw', 'adam (bool, default False)'),
        ('README.md', 'README.md'),
    ],
)
def test_a_wrong_recipe_is_an_error(program: Program, tmp_path: pathlib.Path, recipe: str, part: str):
    assert part in program.error(f'--workdir={tmp_path}', recipe=recipe, small=False)


def test_missing_flags_are_errors(program: Program):
    for changes in ((), ('--config.steps=3',)):
        assert '--config=configs/pretrain_tiny.py' in program.error(*changes, recipe='', small=False)
    assert '--workdir' in program.error()
    for word, suggestion in {
        'finetune': 'glue:rte run=finetune',
        'train': 'pretrain_tiny run=pretrain',
        'report': 'RECIPE run=report',
        'pretrain_tinny': 'pretrain_tiny',
        '--num_train_epochs=3': '--config.epochs',
    }.items():
        assert program.error(word, recipe='', small=False).endswith(f'; did you mean {suggestion}?')
    evaluation = ('--workdir=out', '--config.run=eval')
    assert program.error(*evaluation, recipe='glue', small=False).endswith('; did you mean --config.run=evaluate?')


@pytest.mark.parametrize('recipe', ['configs/glue.py:rte', 'configs/adapt.py', 'configs/distilbert.py:glue:rte'])
def test_a_missing_initial_model_is_an_error(program: Program, tmp_path: pathlib.Path, recipe: str):
    line = program.error(f'--workdir={tmp_path}', recipe=recipe, small=False)
    assert 'found nothing, expected ' in line and 'google-bert/bert-base-uncased' in line  # a name on the hub


@pytest.mark.slow
def test_data_sets_are_not_downloaded(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The message has the command that prepares the data, as in the notebook about fine-tuning."""
    ours = program.with_environment({'TFDS_DATA_DIR': str(tmp_path / 'data')})
    start = (f'--workdir={tmp_path / "run"}', f'--config.init={trained}')
    line = assert_one_line(ours.spawn(*start, recipe='configs/glue.py:mrpc', small=False, status=2))
    assert "config.data: found 'glue/mrpc', not prepared" in line
    notebook = (program.repository / 'docs' / 'colab' / 'finetune.ipynb').read_text(encoding='utf-8')
    prepare = re.search(r'run once: (import .*?); (tfds\..*\(\)), or give files', line)
    assert all(part in notebook for part in prepare.groups())


def test_a_key_before_the_recipe_is_an_error(program: Program):
    changes = ('--config.seq_len=64', '--config=configs/pretrain_tiny.py')
    assert 'put --config=… first' in program.error(*changes, recipe='', small=False)


@pytest.mark.parametrize(
    ('recipe', 'keys'),
    [
        ('pretrain_tiny', ('corpus[0]', 'corpus[-1]', 'corpus[:]', 'model["width"]', 'model.width.real')),
        ('pretrain_tiny', ('items', 'lock', '_fields', '__class__', 'model.__dict__', 'model.items', 'model.get_type')),
        ('pretrain_tiny', ('', 'model.', '.corpus', 'corpus ', '(corpus)', 'corpus\n', '5', 'x' * 5000, '[0]' * 2000)),
        ('pretrain_large', ('phases[0]', 'phases[-1].steps', 'phases[2].steps', 'phases[0:1]', 'phases[0].items')),
        ('extract', ('extract.layers[0]', 'extract.layers[-1]', 'keys', 'extract.update')),
    ],
)
def test_unknown_keys_are_errors(program: Program, recipe: str, keys: tuple[str, ...]):
    """ml_collections would accept some of these as methods, characters of a string or elements of a tuple."""
    for key in keys:
        error = program.error(f'--config.{key}=1', recipe=recipe, small=False)
        assert 'unknown config key' in error or 'a group of keys' in error, error


@pytest.mark.parametrize('value', ['{}', '{"width": 64}', '5', ''])
def test_a_value_for_a_group_of_keys_is_an_error(program: Program, value: str):
    error = program.error(f'--config.optimizer={value}', recipe='pretrain_tiny', small=False)
    assert error.endswith('expected keys such as optimizer.name; for example --config.optimizer.name=VALUE')


def test_a_value_that_is_nested_too_deeply_is_an_error(program: Program):
    assert 'nested too deeply' in program.error('--config.steps=1' + '+1' * 5000)


@pytest.mark.parametrize('form', ['-config', '--config', '-config=', '--flagfile='])
def test_every_form_of_the_recipe_flag_is_accepted(program: Program, tmp_path: pathlib.Path, form: str):
    recipe, flag = 'configs/pretrain_tiny.py', form
    if form == '--flagfile=':
        (tmp_path / 'flags').write_text(f'--config={recipe}\n')
        flag += str(tmp_path / 'flags')
    flags = (flag, recipe) if form.endswith('config') else (flag + recipe * (form == '-config='),)
    assert 'did you mean' in program.error(*flags, '--config.batchsize=1', recipe='', small=False)
    assert 'expected a folder for the run' in program.error(*flags, '--config.batch_size=8', recipe='', small=False)


def test_a_missing_or_binary_flagfile_is_reported_in_one_line(program: Program, tmp_path: pathlib.Path):
    (tmp_path / 'flags').write_bytes(b'\xff')
    assert '--flagfile: found' in program.error(f'--flagfile={tmp_path / "flags"}', recipe='', small=False)
    # Unlike a fork, a new process imports the definitions of the flags, with its arguments in sys.argv.
    new = program.without_forks()
    assert '/nowhere' in assert_one_line(new.spawn('--flagfile=/nowhere', recipe='', small=False, status=2))


def test_a_tilde_means_the_home_folder(program: Program, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    export = ('--workdir=~/out', '--config.run=export')
    assert f'no checkpoints in {tmp_path}/out' in program.error(*export)
    (tmp_path / 'bert').mkdir()
    (tmp_path / 'bert' / 'config.json').touch()
    assert f'{tmp_path}/bert' in program.error('--workdir=~/out', '--config.init=~/bert')
    assert f'{tmp_path}/store: found no manifest' in program.error('--workdir=~/out', '--config.data=~/store')


def test_help_lists_recipes_and_verbs(program: Program):
    text = program.run('--help', recipe='', small=False).stdout
    for part in (
        '--config=RECIPE',
        '--workdir=DIR',
        'pretrain',
        'roberta_large',
        'configs/pretrain_tiny.py',
        '--version',
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120
    for verb in verbs():  # each verb has one line: the summary of its module
        (line,) = [line for line in text.splitlines() if line.startswith(f'  {verb} ')]
        assert re.fullmatch(rf'  {verb} +[a-z].{{20,}}[^.]', line)
        if verb == 'show':
            assert show.__doc__ == f'run=show: {line[len("  show") :].strip()}.'


def test_help_of_a_recipe_lists_its_keys(program: Program):
    for form in (('--config=glue',), ('--config', 'configs/glue.py:mrpc')):
        text = program.run('--help', *form, recipe='', small=False).stdout
        assert text.startswith('GLUE: CoLA, SST-2, MRPC') and '| grid     |' in text
        assert re.search(r"^  task.task +'(rte|mrpc)'  ", text, re.MULTILINE)
        keys = {line.split()[0] for line in text.partition('Keys of')[2].splitlines()[1:] if line}
        assert keys == set(flatten(load_recipe(find_recipe('glue'))))
        assert '.; ' not in text
    assert 'did you mean glue?' in program.error('--help', '--config=gleu', recipe='', small=False)


def test_strict_corpus_names_file_and_line(program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path):
    broken = tmp_path / 'broken.txt'
    broken.write_bytes(b'A first line.\nA second \xff\xfe line.\n\n' + corpus.read_bytes())
    error = program.error(
        f'--workdir={tmp_path / "run"}', f'--config.corpus={broken}', '--config.corpus_options.strict=True'
    )
    assert 'broken.txt:2' in error and 'UTF-8' in error


def test_keys_that_an_existing_vocabulary_contradicts_are_errors(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir, cased, family = (
        f'--workdir={tmp_path / "run"}',
        '--config.vocab.lowercase=False',
        '--config.vocab.family=bpe',
    )
    for key, path in (('init', trained), ('tokenizer', trained / 'tokenizer')):
        for verb in ('pretrain', 'corpus'):
            line = program.error(workdir, f'--config.{key}={path}', f'--config.run={verb}', cased)
            assert f'config.vocab.lowercase: found False, expected True, as in {path}; leave it out' in line
        line = program.error(workdir, f'--config.{key}={path}', family)
        assert f'config.vocab.family: found bpe, expected wordpiece, as in {path}; leave it out' in line
    doctor = program.run(workdir, f'--config.tokenizer={path}', family, '--config.run=doctor', status=2).stdout
    assert 'FAIL  tokenizer    config.vocab.family: found bpe, expected wordpiece' in doctor
    tokenizer = shutil.copytree(trained / 'tokenizer', tmp_path / 'cased')
    (tokenizer / 'tokenizer_config.json').write_text('{"do_lower_case": false}')
    program.run(workdir, f'--config.tokenizer={tokenizer}', '--config.run=corpus', cased)
    program.run(workdir, f'--config.tokenizer={tokenizer}', '--config.run=corpus')  # the recipe says True


def test_a_corpus_of_one_document_is_refused_for_pairs(program: Program, tmp_path: pathlib.Path):
    single = tmp_path / 'single.txt'
    single.write_text('\n'.join(f'The old river number {i} runs under a slow green bird.' for i in range(80)))
    assert 'config.corpus' in program.error(f'--workdir={tmp_path / "run"}', f'--config.corpus={single}')


@pytest.mark.parametrize('flag', ['--config.batch_size=9', '--config.mesh.tensor=8'])
def test_a_mesh_that_does_not_divide_the_run_is_an_error_before_the_text_is_read(
    program: Program, tmp_path: pathlib.Path, flag: str
):
    line = program.error(f'--workdir={tmp_path / "run"}', flag, devices=8)
    assert line.startswith(f'error: {flag[2:].partition("=")[0]}: found ')
    assert not (tmp_path / 'run' / 'tokenizer').exists()
