"""Mistakes of run=distill on text and on tasks are one-line errors before anything is computed."""

import contextlib
import json
import pathlib
from unittest import mock

import numpy as np
import pytest
from running import TUNE, Program, copy_workdir
from safetensors.numpy import load_file, save_file
from test_distill import GENERAL, RANDOM, TASK, TEXT, teacher

import bertjax
from bertjax.config.files import load_recipe
from bertjax.convert.content import ExportContent
from bertjax.convert.load import load_task_model
from bertjax.convert.orbax import export_orbax
from bertjax.distill.objective import HIDDEN_LOSSES
from bertjax.distill.settings import DistillationSettings
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.model.heads import BertForClassification

OF_TEXT, OF_TASK = '--config.distill.teacher={trained}', '--config.distill.teacher={tuned}'
MISTAKES_ON_TEXT = [
    ('', ('config.distill.teacher', 'nothing')),
    ('--config.distill.teacher=/nowhere', ('config.distill.teacher', '/nowhere')),
    (f'{OF_TEXT} --config.run=pretrain', ('--config.run=pretrain', 'run=distill')),
    (f'{OF_TEXT} --config.model.num_layers=3', ('config.model.num_layers', '3 blocks', 'at most 2')),
    (f'{OF_TEXT} --config.distill.student_init=0,2', ('distill.student_init', 'block 2', '0 to 1')),
    (f'{OF_TEXT} --config.model.width=16', ('config.model.width', '16', '32', 'student_init=random')),
    (f'{OF_TEXT} --config.model.width=16 {RANDOM}', ('config.distill.projection', 'width 16', '32')),
    (
        f'{OF_TEXT} --config.model.num_heads=4 {RANDOM} --config.distill.attention=1',
        ('config.distill.attention', '4 heads', '2'),
    ),
    (f'{OF_TEXT} --config.distill.layers=0,1 --config.distill.hidden=1', ('distill.layers', '2 blocks')),
    (f'{OF_TEXT} --config.init=/nowhere --config.distill.student_init=init', ('config.init: ', '/nowhere')),
    (f'{OF_TEXT} --config.init={{trained}}', ('distill.student_init', "'init'")),
    (f'{OF_TEXT} --config.vocab.add=words.txt', ('config.vocab.add', 'words.txt', 'vocabulary of its teacher')),
    (f'{OF_TEXT} --config.vocab.add=words.txt --config.tokenizer={{trained}}', ('config.vocab.add', 'words.txt')),
    (f'{OF_TEXT} --config.embeddings=e.npy', ('config.embeddings', 'e.npy', 'student_init=random')),
    (f'{OF_TEXT} --config.architecture_from=init', ('config.init', 'nothing')),
    (f'{OF_TEXT} --config.tokenizer={{vocab}}', ('config.distill.teacher', '96 pieces', '30 pieces')),
    (f'{OF_TEXT} --config.distill.layers=0', ('distill.layers', 'with config.distill.hidden=0')),
    (
        f'{OF_TEXT} --config.distill.soft=0 --config.distill.hard=0 --config.distill.cosine=0',
        ('config.distill', 'a weight above 0'),
    ),
]
RELATIONS = ''.join(
    [f'{{"text": "<<river>> of [[stone]]", "label": "{label}entailment"}}\n' for label in ('', 'not_')] * 4
)
MISTAKES_ON_A_TASK = [
    (OF_TEXT, ('config.distill.teacher', 'head/bias', 'a model tuned to RTE')),
    (f'{OF_TEXT} --config.distill.augment=1 --config.distill.augment_model={{trained}}', ('teacher', 'head/bias')),
    (f'{OF_TASK} --config.distill.num_layers=3', ('distill.student_init', '3 blocks', 'at most 2')),
    (f'{OF_TASK} --config.sweep.seeds=(0,1)', ('config.sweep', 'a single run')),
    (f'{OF_TASK} --config.distill.augment=1', ('distill.augment_model', 'mlm/bias', 'masked language model')),
    (f'{OF_TASK} --config.distill.intermediate_learning_rate=1e-4', ('intermediate_learning_rate', 'intermediate=0')),
    (
        f'{OF_TASK} --config.distill.augment=1 --config.distill.augment_model={{trained}} '
        '--config.distill.augment_candidates=400',
        ('distill.augment_candidates', '400', 'single-piece words of the vocabulary'),
    ),
    (f'{OF_TASK} --config.distill.intermediate=5', ('distill.intermediate', 'both stages')),
    (f'{OF_TASK} --config.distill.hidden=1 --config.trainable=head', ('found hidden with', 'trainable=head')),
    (
        f'{OF_TASK} --config.distill.embeddings=1 --config.trainable=last_1',
        ('found embeddings with', 'trainable=last_1'),
    ),
]
MISTAKES = [(TEXT, *mistake) for mistake in MISTAKES_ON_TEXT] + [(TASK, *mistake) for mistake in MISTAKES_ON_A_TASK]


@pytest.mark.parametrize(('recipe', 'arguments', 'named'), MISTAKES)
def test_a_mistake_is_a_one_line_error(program, trained, tuned, rte, tmp_path, recipe, arguments, named):
    vocab, workdir = tmp_path / 'vocab.txt', tmp_path / 'run'
    vocab.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghijklmnopqrstuvwxy']))
    data = [f'--config.corpus={program.corpus}', *GENERAL] if recipe is TEXT else [f'--config.data={rte}', *TUNE]
    flags = arguments.format(trained=trained, tuned=tuned, vocab=vocab).split()
    error = program.error(f'--workdir={workdir}', *data, *flags, **recipe)
    assert all(part in error for part in named), error
    assert not any((workdir / name).exists() for name in ('checkpoints', 'store', 'features'))


def test_a_teacher_with_more_embedding_rows_than_pieces_is_refused(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """A padded embedding table has outputs that are not pieces."""
    padded = copy_workdir(trained / 'export' / 'hf', tmp_path / 'padded')
    tensors, config = load_file(padded / 'model.safetensors'), json.loads((padded / 'config.json').read_text())
    pieces = config['vocab_size']
    for name, x in tensors.items():
        if len(x) == pieces:
            tensors[name] = np.concatenate([x, x[:4]])
    save_file(tensors, padded / 'model.safetensors')
    (padded / 'config.json').write_text(json.dumps(config | {'vocab_size': pieces + 4}))
    flags = (f'--workdir={tmp_path / "run"}', f'--config.corpus={program.corpus}', *GENERAL, teacher(padded), RANDOM)
    line = program.error(*flags, **TEXT)
    assert (
        f'distill.teacher: found a model with {pieces + 4} token embeddings' in line and f'expected {pieces},' in line
    )


def test_a_teacher_of_another_task_is_refused(program: Program, tuned, tmp_path: pathlib.Path):
    """Its head has the right labels, but their logits are for pairs of texts, or for several labels at once."""
    (tmp_path / 'train.csv').write_text('text,label\nriver stone,entailment\nwind,not_entailment\n' * 4)
    pairs = copy_workdir(tuned / 'export' / 'hf', tmp_path / 'pairs')
    task = json.loads((pairs / 'task.json').read_text())
    options = {'kind': 'classification', 'text_b': 'answer'}
    (pairs / 'task.json').write_text(json.dumps({**task, 'task': options, 'seq_len': 64}))
    several = copy_workdir(pairs, tmp_path / 'several')
    (several / 'task.json').write_text(json.dumps({**task, 'task': {**options, 'text_b': ''}, 'seq_len': 64}))
    config = json.loads((several / 'config.json').read_text())
    (several / 'config.json').write_text(json.dumps({**config, 'problem_type': 'multi_label_classification'}))
    flags = (f'--config.data={tmp_path}', *TUNE, '--config.task.dev_fraction=0', '--config.eval_every=0')
    recipe = {'recipe': 'configs/distilbert.py:classify', 'small': False}
    line = program.error(f'--workdir={tmp_path / "a"}', *flags, teacher(pairs), **recipe)
    assert f"config.task.text_b: found '', expected pairs, as in {pairs / 'task.json'}" in line
    out = program.run(f'--workdir={tmp_path / "b"}', *flags, teacher(several), status=2, **recipe)
    assert f'{several}, a model for multi_label_classification, expected single_label_classification' in out.stderr
    assert f'the teacher {several} was trained at seq_len=64, but gets config.seq_len=24 here' in out.stdout


def test_mistakes_are_reported_before_the_augmentation(program, trained, tuned, rte, tmp_path):
    recipe = {'recipe': 'configs/tinybert.py:glue:rte', 'small': False}
    broken = copy_workdir(rte, tmp_path / 'broken')
    (broken / 'dev.tsv').open('a').write('x\ty\n')
    flags = (f'--workdir={tmp_path / "run"}', *TUNE, teacher(tuned), f'--config.init={trained}')
    flags += ('--config.distill.augment=1', f'--config.distill.augment_model={trained}')
    with mock.patch('bertjax.distill.augment.augment_split', side_effect=AssertionError):
        profile = ('--config.profile=90000:90002', '--config.distill.intermediate=2epochs')
        for arguments, named in (
            ((f'--config.data={rte}', *profile), "config.profile: found '90000:90002', expected steps up to"),
            ((f'--config.data={rte}', '--config.packing=on'), "config.packing: found 'on' in a distillation"),
            ((f'--config.data={broken}',), f'{broken / "dev.tsv"}:35'),
            ((f'--config.data={rte}',), 'config.distill.intermediate: found 20epochs, which is 240 steps'),
        ):
            assert named in program.error(*flags, *arguments, **recipe)


@pytest.mark.parametrize(
    ('options', 'flags', 'named'),
    [
        ({'kind': 'relation', 'markers': 'words'}, '', "config.task.markers: found 'entity', expected 'words', as in "),
        ({'kind': 'relation', 'pool': 'starts'}, '', "config.task.pool: found 'cls', expected 'starts', as in "),
        ({'kind': 'relation', 'pool': 'starts'}, '--config.distill.soft=0', 'config.task.pool: '),  # copies the head
        (
            {'kind': 'relation', 'pool': 'starts'},
            '--config.distill.soft=0 --config.distill.student_init=init --config.init={trained}',
            'config.packing: ',
        ),
        ({'kind': 'embed', 'pool': 'mean'}, '', 'config.packing: '),  # the pooling of another kind of head
    ],
)
def test_a_teacher_that_was_trained_with_other_options_is_refused(
    program: Program, trained, tuned, tmp_path: pathlib.Path, options, flags, named
):
    """Its head has the right labels, but would get unknown marks or another input. config.packing is checked later."""
    (tmp_path / 'train.jsonl').write_text(RELATIONS)
    model = copy_workdir(tuned / 'export' / 'hf', tmp_path / 'model')
    task = json.loads((model / 'task.json').read_text())
    (model / 'task.json').write_text(json.dumps({**task, 'task': options}))
    arguments = (f'--workdir={tmp_path / "run"}', f'--config.data={tmp_path}', *TUNE, '--config.eval_every=0')
    arguments += ('--config.packing=on', *flags.format(trained=trained).split(), teacher(model))
    assert named in program.error(*arguments, recipe='configs/distilbert.py:relation', small=False)


def test_a_teacher_with_another_bilstm_is_refused(program: Program, tuned, rte, tmp_path):
    bert, model = bertjax.load(tuned), tmp_path / 'model'
    module = BertForClassification(bert.config, 2, bilstm_units=bert.config.width // 2)  # the head has the usual shape
    params = load_task_model(str(tuned / 'export' / 'hf'), module, bert.task.head).params
    facts = {'head': bert.task.head, 'task': bert.task.huggingface()}
    export_orbax(ExportContent(module, params, bert.tokenizer, **facts), model)
    (tmp_path / 'train.jsonl').write_text(RELATIONS)
    for data, recipe in ((rte, TASK), (tmp_path, {**TASK, 'recipe': 'configs/distilbert.py:relation'})):
        arguments = (f'--workdir={tmp_path / "run"}', f'--config.data={data}', *TUNE, '--config.eval_every=0')
        line = program.error(*arguments, '--config.packing=on', teacher(model), **recipe)
        assert 'model, whose BiLSTM differs, expected bilstm_units=0, as in this run; set ' in line
    flags = (f'--workdir={tmp_path / "run"}', f'--config.data={rte}', *TUNE, '--config.distill.soft=0')
    line = program.error(*flags, '--config.task.bilstm_units=16', teacher(tuned / 'export' / 'hf'), **TASK)
    assert 'hf, whose BiLSTM differs, expected bilstm_units=16, as in this run; set ' in line


@pytest.mark.parametrize(
    ('trainable', 'losses', 'refused'),
    [
        ('all', {'embeddings': 1.0, 'attention': 1.0}, ''),
        ('last_1', {'hidden': 1.0, 'attention': 1.0, 'cosine': 1.0}, ''),
        ('last_1', {'embeddings': 1.0, 'hidden': 1.0}, 'embeddings'),
        ('last_1', {'embeddings': 1.0, 'hidden': 1.0, 'projection': True}, ''),
        ('last_1', {'embeddings': 1.0, 'attention': 1.0, 'projection': True}, 'embeddings'),
        ('head', {}, ''),
        ('head', {'embeddings': 1.0, 'hidden': 1.0, 'attention': 1.0, 'cosine': 1.0}, ', '.join(HIDDEN_LOSSES)),
        ('head', {'attention': 1.0, 'intermediate': '2epochs'}, 'attention'),
    ],
)
def test_losses_without_effect_are_refused(repository: pathlib.Path, trainable: str, losses: dict, refused: str):
    config = load_recipe(f'{repository}/configs/distilbert.py:glue:rte')
    config.trainable = trainable
    config.distill.update(losses)
    settings = finetuning_settings(config)
    distill = DistillationSettings(**vars(settings.distill))
    with pytest.raises(UserError) if refused else contextlib.nullcontext() as caught:
        distill.check_task(settings)
    if refused:
        assert caught.value.found == f'{refused} with config.trainable={trainable}'
        assert ('distill.intermediate=0' in caught.value.fix) == ('intermediate' in losses)
