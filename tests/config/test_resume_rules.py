"""Tests which config keys may change when a run continues."""

import contextlib
import copy
import pathlib
import re

import pytest

import bertjax
from bertjax.checkpoint.checkpoints import SavedCheckpoint
from bertjax.checkpoint.position import Position
from bertjax.config.plain import from_plain, to_plain
from bertjax.config.recipes import finetuning_config, phase, pretraining_config
from bertjax.config.resume import check_processes, check_resume
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.training.trainer import _check_same_run


@pytest.fixture(scope='module')
def saved():
    config = to_plain(pretraining_config('tiny', phases=(phase(steps='90%', batch_size=64), phase(steps='10%'))))
    config['model']['vocab_size'] = 4096
    config['fingerprints'] = {'tokenizer': 'a' * 64, 'store': 'b' * 64 + '+' + 'c' * 64}
    return config


def changed(config, key, value):
    config = copy.deepcopy(config)
    *parents, last = key.split('.')
    node = config
    for parent in parents:
        node = node[int(parent) if parent.isdigit() else parent]
    node[last] = value
    return config


def test_an_unchanged_config_reports_nothing(saved):
    assert check_resume(saved, copy.deepcopy(saved), 'out') == []


@pytest.mark.parametrize(
    ('key', 'value', 'where', 'found'),
    [
        ('model.width', 256, 'config.model.width', '256'),
        ('model.num_layers', 12, 'config.model.num_layers', '12'),
        ('model.vocab_size', 30522, 'config.model.vocab_size', '30522'),
        ('model.scan_layers', False, 'config.model.scan_layers', 'False'),
        ('optimizer.name', 'lamb', 'config.optimizer.name', 'lamb'),
        ('pairs.mode', 'sop', 'config.pairs.mode', 'sop'),
        ('fingerprints.tokenizer', 'd' * 64, 'the tokenizer', 'dddd'),
        ('fingerprints.store', 'd' * 64, 'the store', 'dddd'),
    ],
)
def test_a_change_of_a_key_that_the_state_depends_on_is_refused(saved, key, value, where, found):
    with pytest.raises(UserError) as error:
        check_resume(saved, changed(saved, key, value), 'out/tiny')
    assert error.value.where == where
    assert error.value.found.startswith(found)
    assert 'as in the checkpoint in out/tiny' in error.value.expected
    assert error.value.found not in error.value.expected
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ('corpus', 'other', 'is_refused'),
    [
        ('old/a=0.7,b=0.3', 'new/a=7,b=3', False),
        ('a=0.7,b=0.3', 'a=0.3,b=0.7', True),
        ('a=1,b=1', 'a=auto,b=auto', True),
        ('old/a=auto,b=auto', 'new/a=auto,b=auto', False),
        ('a=1,b=1', 'a=1,b=1,c=1', True),
        ('a=1,b=1', 'a', True),
        ('a', 'new/a=1', False),
    ],
)
@pytest.mark.parametrize('finished', [False, True])
def test_a_mixture_keeps_its_parts_and_weights(saved, corpus, other, is_refused, finished):
    expected = pytest.raises(UserError, match=r'config\.corpus: found .* with --config\.init=out')
    with expected if is_refused else contextlib.nullcontext():
        check_resume(changed(saved, 'corpus', corpus), changed(saved, 'corpus', other), 'out', finished=finished)


def test_the_end_of_a_path_that_is_gone_is_no_weight(saved, tmp_path):
    (tmp_path / 'year=2023').write_text('a\n')
    (tmp_path / 'year=2024').write_text('a\n')
    old = changed(changed(saved, 'corpus', 'gone/year=2023,gone/year=2024'), 'fingerprints.store', 'a' * 16)
    new = changed(old, 'corpus', f'{tmp_path}/year=2023,{tmp_path}/year=2024')
    assert len(check_resume(old, new, 'out')) == 1


def test_the_smoothing_of_a_mixture_by_size_is_kept(saved):
    for corpus, lines in (('a=1,b=1', ['corpus_options.smoothing: 0.7 -> 0.1']), ('a=auto,b=auto', None)):
        config = changed(saved, 'corpus', corpus)
        with (
            contextlib.nullcontext() if lines else pytest.raises(UserError, match=r'config\.corpus_options\.smoothing')
        ):
            assert check_resume(config, changed(config, 'corpus_options.smoothing', 0.1), 'out') == lines


def test_changed_data_name_the_changed_options_of_the_task():
    config = to_plain(finetuning_config('embed')) | {'fingerprints': {'data': 'a' * 64}}
    other = changed(changed(config, 'fingerprints.data', 'b' * 64), 'task.query_prompt', 'query: ')
    with pytest.raises(
        UserError, match=r'the data: found bbbb.*… \(also changed: config.task.query_prompt\), expected aaaa'
    ):
        check_resume(config, other, 'out')
    longer = changed(changed(config, 'fingerprints.data', 'b' * 64), 'seq_len', 64)
    with pytest.raises(UserError, match=r'the data: found bbbb.*… \(also changed: config.seq_len\), expected aaaa'):
        check_resume(config, longer, 'out')
    config['fingerprints'] = {'data': 'a' * 64, 'batches': '8 rows of 16 pieces'}
    batches = changed(config, 'fingerprints.batches', '8 rows of 32 pieces')
    for key, value, note in (
        ('log_every', 7, '(perhaps a dev or test file has changed)'),
        ('max_eval_records', 9, '(also changed: config.max_eval_records)'),
        ('fingerprints.data', 'b' * 64, ''),
    ):
        with pytest.raises(UserError) as error:
            check_resume(config, changed(batches, key, value), 'out')
        assert error.value.where == 'the batches'
        assert error.value.found == f'8 rows of 32 pieces {note}'.strip()
    config['fingerprints'] = {'data': 'a' * 64}
    other['fingerprints'] = config['fingerprints'] | {'encoder': '2/128'}
    with pytest.raises(UserError, match='the encoder: found 2/128, expected None'):
        check_resume(config, other, 'out')
    with pytest.raises(UserError, match='trainable: found head, expected all'):
        check_resume(config, changed(other, 'trainable', 'head'), 'out')


@pytest.mark.parametrize(
    ('key', 'value', 'where'),
    [
        ('trainable', 'head', 'config.trainable'),
        ('task.kind', 'squad', 'config.task.kind'),
        ('task.layers', 'sum_all', 'config.task.layers'),
        ('task.bilstm_units', 8, 'config.task.bilstm_units'),
        ('task.frozen', True, 'config.task.frozen'),
        ('fingerprints.encoder', '2/128/2/512/512', 'the encoder'),
    ],
)
def test_a_change_of_a_key_that_a_fine_tuned_state_depends_on_is_refused(key, value, where):
    config = to_plain(finetuning_config('tagging', layers='last', bilstm_units=0, frozen=False))
    config['fingerprints'] = {'encoder': '6/384/12/1536/512'}
    with pytest.raises(UserError) as error:
        check_resume(config, changed(config, key, value), 'out/ner')
    assert error.value.where == where and error.value.found == str(value)
    for free in ('task.scheme', 'init', 'layer_decay', 'use_checkpoint'):
        assert check_resume(config, changed(config, free, 'x'), 'out/ner')[0].startswith(f'{free}: ')


@pytest.mark.parametrize('kind', ['classification', 'multi_label', 'relation'])
def test_a_change_of_the_metric_is_refused(kind):
    """config.patience and config.use_checkpoint=best compare the scores before and after the change."""
    config = to_plain(finetuning_config(kind))
    with pytest.raises(UserError, match=r'config\.task\.metric: found macro_f1, expected .* as in the checkpoint'):
        check_resume(config, changed(config, 'task.metric', 'macro_f1'), 'out')


def test_a_finished_run_refuses_a_change_of_its_task_options():
    """A run that continues only reports the change. The records of a finished run would be wrong."""
    config = finetuning_config('glue', task='rte', long='truncate', stride=0)
    config.steps, config.data = 10, 'a'
    before, now = (changed(to_plain(config), 'task.long', long) for long in ('truncate', 'head_tail'))
    assert _refused(before, now, step=5) is None
    assert _refused(before, now, step=10).startswith('config.task.long: found head_tail')


def _refused(before, now, step):
    try:
        settings = finetuning_settings(from_plain(now))
        _check_same_run(SavedCheckpoint(Position(step), before), settings, now, pathlib.Path('out'))
    except UserError as error:
        return str(error)
    return None


def test_long_values_are_shown_where_they_differ(saved):
    """The first 65 characters of the two fingerprints are equal, because only the second store changed."""
    other = 'b' * 64 + '+' + 'd' * 64
    with pytest.raises(UserError) as error:
        check_resume(saved, changed(saved, 'fingerprints.store', other), 'out')
    assert error.value.found == '…' + 'd' * 16 + '…'
    assert error.value.expected.startswith('…' + 'c' * 16 + '…')
    parts = 'texts/german.txt=1,texts/english.txt=1'
    with pytest.raises(UserError, match=r'found …,texts/russian\..*…, expected …ts/english.txt=1 as in'):
        check_resume(changed(saved, 'corpus', parts), changed(saved, 'corpus', f'{parts},texts/russian.txt=1'), 'out')


@pytest.mark.parametrize(
    ('key', 'value', 'line'),
    [
        ('batch_size', 512, 'batch_size: 256 -> 512'),
        ('learning_rate', 5e-5, 'learning_rate: 0.0001 -> 5e-05'),
        ('phases.0.batch_size', 32, 'phases[0].batch_size: 64 -> 32'),
        ('steps', 5000, 'steps: 1000000 -> 5000'),
        ('model.dropout', 0.0, 'model.dropout: 0.1 -> 0.0'),
        ('model.dtype', 'bfloat16', 'model.dtype: float32 -> bfloat16'),
        ('model.remat', 'full', 'model.remat: auto -> full'),
        ('model.attention', 'dot_product', 'model.attention: auto -> dot_product'),
        ('mesh.fsdp', 8, 'mesh.fsdp: 1 -> 8'),
        ('optimizer.clip_norm', 0.0, 'optimizer.clip_norm: 1.0 -> 0.0'),
        ('seed', 7, 'seed: 0 -> 7'),
    ],
)
def test_an_allowed_change_is_reported(saved, key, value, line):
    assert check_resume(saved, changed(saved, key, value), 'out') == [line]


def test_only_the_keys_that_an_added_or_removed_phase_sets_are_reported(saved):
    single = changed(saved, 'phases', [])
    assert check_resume(single, saved, 'out') == [
        'phases[0].batch_size: None -> 64', 'phases[0].steps: None -> 90%', 'phases[1].steps: None -> 10%'
    ]  # fmt: skip
    assert check_resume(saved, changed(saved, 'phases', saved['phases'][:1]), 'out') == ['phases[1].steps: 10% -> None']


@pytest.mark.parametrize(('key', 'value'), [('run', 'export'), ('export', False), ('corpus_options.workers', 4)])
def test_a_change_that_does_not_affect_training_is_not_reported(saved, key, value):
    assert check_resume(saved, changed(saved, key, value), 'out') == []


def test_a_finished_run_refuses_changes_of_training_keys(saved):
    for key, value in (
        ('seed', 7),
        ('learning_rate', 1.0),
        ('optimizer.b1', 0.5),
        ('model.dropout', 0.3),
        ('seq_len', 64),
        ('max_predictions', 9),
        ('pairs.balanced', True),
        ('pair_plans', 3),
    ):
        with pytest.raises(UserError, match=f'config.{key}: found {value}, expected .* as in the checkpoint in out'):
            check_resume(saved, changed(saved, key, value), 'out', finished=True)
    for free in ('log_every', 'model.dtype', 'model.remat', 'model.attention'):
        assert check_resume(saved, changed(saved, free, 'x'), 'out', finished=True)[0].endswith(' -> x')
    assert check_resume(saved, changed(saved, 'log_every', 7), 'out', finished=True) == ['log_every: 100 -> 7']


def test_weights_for_the_start_have_no_effect_on_a_resumed_run(saved):
    (line,) = check_resume(saved, changed(saved, 'embeddings', 'x.npy'), 'out')
    assert line == 'embeddings:  -> x.npy (no effect: the weights are those of the checkpoint)'


def test_several_changes_are_all_reported_and_a_refusal_wins(saved):
    now = changed(changed(saved, 'batch_size', 512), 'learning_rate', 5e-5)
    assert len(check_resume(saved, now, 'out')) == 2
    with pytest.raises(UserError, match=r'config\.model\.width'):
        check_resume(saved, changed(now, 'model.width', 64), 'out')


@pytest.mark.parametrize(
    ('key', 'value', 'words'),
    [
        ('optimizer.weight_decay', 0.1, 'config.optimizer.weight_decay: found 0.1 in process 2, expected 0.01 as in'),
        ('model.dtype', 'bfloat16', 'config.model.dtype: found bfloat16 in process 2'),
        ('phases', [], 'config.phases: found [] in process 2, expected None as in process 0; start all'),
        ('fingerprints.tokenizer', 'd' * 64, f'the tokenizer: found {"d" * 16}… in process 2'),
        *((key, 'other/path', None) for key in ('init', 'corpus', 'heldout_texts')),
        ('tracker_run', 'other/path', None),
        ('init', '', "config.init: found '' in process 2, expected a/path as in process 0"),
        *((key, value, f'config.{key}: found {value} in') for key, value in (('mesh.fsdp', 2), ('push_to', 'a/b'))),
        ('corpus_options.workers', 7, None),
    ],
)
def test_processes_with_different_configs_are_refused(saved, key, value, words):
    saved = saved | dict.fromkeys(('init', 'corpus', 'heldout_texts'), 'a/path')
    configs = [saved, copy.deepcopy(saved), changed(saved, key, value)]
    with pytest.raises(UserError, match=re.escape(words)) if words else contextlib.nullcontext():
        check_processes(configs)


def test_the_teacher_of_each_process_may_have_another_path():
    config = to_plain(bertjax.recipe('distilbert:glue:rte').config)
    config['distill']['teacher'] = 'a/path'
    check_processes([config, changed(config, 'distill.teacher', 'other/path')])
    with pytest.raises(UserError, match=r'config\.distill\.temperature: found 7'):
        check_processes([config, changed(config, 'distill.temperature', 7)])


def test_a_finished_student_may_have_a_moved_teacher():
    config = to_plain(bertjax.recipe('distilbert:glue:rte').config) | {'fingerprints': {'teacher': 'a' * 64}}
    for name in ('teacher', 'augment_model'):
        moved = changed(config, f'distill.{name}', 'new/path')
        assert check_resume(config, moved, 'out', finished=True) == [f'distill.{name}:  -> new/path']
        with pytest.raises(UserError, match=r'the teacher: found b+…, expected a+… as in the checkpoint'):
            check_resume(config, changed(moved, 'fingerprints.teacher', 'b' * 64), 'out')


def test_a_key_that_the_checkpoint_lacks_counts_as_changed(saved):
    older = copy.deepcopy(saved)
    del older['log_every']
    assert check_resume(older, saved, 'out') == ['log_every: None -> 100']
    del older['model']['pre_norm']
    with pytest.raises(UserError, match=r'config\.model\.pre_norm'):
        check_resume(older, saved, 'out')
