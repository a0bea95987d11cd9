"""Builds the `Distillation` of a pre-training or a fine-tuning run."""

import dataclasses
import pathlib
from typing import Any

from jax.sharding import Mesh

from bertjax.convert.load import load_pretraining_model, load_task_model, read_config, read_source
from bertjax.corpus.store import open_store
from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, distill_objective
from bertjax.distill.settings import DistillationSettings
from bertjax.distill.teacher import KEY, Teacher, check_copies, check_inputs, check_vocabulary, teacher_config_changes
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.restore import check_pairs
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TASK_FILE, TaskData, data_from_source, load_task_tokenizer, read_encoder_config
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.vocabulary import load_configured_tokenizer, vocabulary_source
from bertjax.pretrain.warm_start import embedding_rows
from bertjax.remote.paths import user_path
from bertjax.training.distillation import Distillation, DistillationStage
from bertjax.workdir.resolve_path import huggingface_directory


def student_params(settings: PretrainingSettings, student: BertConfig) -> dict[str, Any] | None:
    """Returns the initial parameters that a run copied from its teacher, or None if it copied none.

    Raises a UserError if the teacher no longer exists, or has another architecture now.
    """
    if settings.distill is None or settings.distill.student_init in ('init', 'random'):
        return None
    distill = DistillationSettings(**dataclasses.asdict(settings.distill))
    teacher = _load_teacher(settings, distill, student, None)
    check_copies(teacher.config, student)
    return teacher.as_student(distill.student_layers(teacher.config, student.num_layers), student)


def _load_teacher(
    settings: PretrainingSettings, distill: DistillationSettings, student: BertConfig, mesh: Mesh | None
) -> Teacher:
    directory = huggingface_directory(distill.teacher, f'config.{KEY}')
    changes = {'seed': settings.run_seeds.init, 'nsp': student.nsp, **teacher_config_changes(student.dtype)}
    imported = load_pretraining_model(directory, **changes)
    return Teacher(directory, BertForPreTraining(imported.config), imported, mesh)


def distillation_data(settings: FinetuningSettings, distill: DistillationSettings, folder: pathlib.Path) -> TaskData:
    """Returns the data of the task, with the encoder config of the student.

    Without config.init, the student has the config of the teacher with another number of blocks. Raises a UserError if
    config.init or the teacher does not exist, if the teacher has too few blocks, or if records are malformed.
    """
    if distill.student_init == 'init':
        return data_from_source(settings, folder)
    directory = huggingface_directory(distill.teacher, f'config.{KEY}')
    teacher = read_encoder_config(settings, directory)
    tokenizer = load_task_tokenizer(settings, directory, teacher)
    copied = distill.student_layers(teacher)
    count = len(copied) if copied is not None else distill.num_layers or -(-teacher.num_layers // 2)
    encoder = dataclasses.replace(teacher, num_layers=count)
    data = TaskData(settings, folder, tokenizer, encoder, directory)
    data.learn()
    return data


def task_teacher(data: TaskData, distill: DistillationSettings, mesh: Mesh) -> Teacher:
    """Loads and checks the teacher for a task, before any record is tokenized.

    `data` must have the encoder config of the student, and `data.task` must know the labels. Raises a UserError if the
    teacher has another vocabulary, too few positions or, with the soft loss, no head for the task, if only one of the
    teacher and the task is for pairs, if the teacher was trained with other options of the inputs or the head, or if
    the teacher cannot be compared with the student.
    """
    task, directory = data.task, huggingface_directory(distill.teacher, f'config.{KEY}')
    check_vocabulary(directory, data.tokenizer)
    path, seq_len = pathlib.Path(directory) / TASK_FILE, data.settings.seq_len
    options, trained_len = read_json_or_none(path, lambda facts: ({**facts['task']}, int(facts['seq_len']))) or ({}, 0)
    check_pairs(data.settings.task, options, path)
    # The module of the teacher has the options of this run. The soft loss uses its head, and the student may copy it.
    uses_head = distill.soft or distill.student_init not in ('init', 'random')
    same_kind = options.get('kind') == data.settings.task['kind']  # other kinds have other options of these names
    for name in ('markers', 'layers', 'pool') if uses_head and same_kind else ('markers',):
        value, expected = (values.get(name) for values in (data.settings.task, options))
        if None not in (value, expected) and value != expected:
            fix = 'set it to this value, or name another teacher'
            raise UserError(f'config.task.{name}', repr(value), f'{expected!r}, as in {path}', fix)
    if trained_len > seq_len:
        print(f'the teacher {directory} was trained at seq_len={trained_len}, but gets config.seq_len={seq_len} here')
    theirs, ours = (values.get('problem_type') for values in (read_source(directory).values, task.huggingface()))
    if distill.soft and None not in (theirs, ours) and theirs != ours:
        found, fix = f'{directory}, a model for {theirs}', 'name a model that is tuned to the same kind of task'
        raise UserError(f'config.{KEY}', found, ours, fix)
    module = task.build_module(read_config(directory, **teacher_config_changes(data.encoder.dtype)))
    labels = task.huggingface().get('id2label')
    imported = load_task_model(directory, module, task.head, id2label=labels, seed=data.settings.run_seeds.init)
    has_head = not any(name.startswith('head/') for name in imported.missing)
    others = [*imported.unused, *(imported.missing if has_head else ())]
    if uses_head and any(name.startswith('bilstm') for name in others):  # the head may fit without it
        found, expected = f'{directory}, whose BiLSTM differs', f'bilstm_units={module.bilstm_units}, as in this run'
        fix = "set config.task.bilstm_units to the teacher's value, if the task has it, or name another teacher"
        raise UserError(f'config.{KEY}', found, expected, fix)
    teacher = Teacher(directory, module, imported, mesh)
    check_inputs(directory, module.config, seq_len)
    if distill.soft:
        parts = ('pooler', 'head', 'mix', 'bilstm')
        teacher.check_head(parts, f'a model tuned to {task.name}, with the same labels')
    if imported.head_note:
        print(f'the teacher {directory}: {imported.head_note}')
    distill.make_spec(module.config, data.encoder)  # raises if the two cannot be compared
    return teacher


def distill_pretraining(
    settings: PretrainingSettings, distill: DistillationSettings, folder: pathlib.Path, mesh: Mesh
) -> tuple[PretrainingSettings, Distillation]:
    """Loads and checks the teacher of a pre-training run, before any text is read.

    Returns the settings with the student's tokenizer, and the distillation for `Pretraining`. Raises a UserError as
    `resolve_student` does, or if the teacher has no MLM head for the soft loss.
    """
    settings, student = resolve_student(settings, distill, folder)
    teacher = _load_teacher(settings, distill, student, mesh)
    if distill.soft:
        teacher.check_head(('mlm',), 'a masked language model')
    return settings, _distillation(teacher, distill, student)


def resolve_student(
    settings: PretrainingSettings, distill: DistillationSettings, folder: pathlib.Path
) -> tuple[PretrainingSettings, BertConfig]:
    """Returns the settings with the student's tokenizer, and the config of the student. Reads no weights.

    If config.tokenizer and config.init are empty, the student uses the tokenizer of the teacher. Raises a UserError if
    the teacher has another vocabulary, another number of token embeddings, or too few positions or segment types, or if
    it cannot be compared with the student or copied to it.
    """
    directory = huggingface_directory(distill.teacher, f'config.{KEY}')
    if not settings.tokenizer and not settings.init:
        settings = dataclasses.replace(settings, tokenizer=directory)
    tokenizer = load_configured_tokenizer(settings, vocabulary_source(settings))
    check_vocabulary(directory, tokenizer)
    teacher, student = read_config(directory), settings.model_config(embedding_rows(settings, folder, tokenizer))
    # A teacher with a padded embedding table has more outputs than pieces. Its probabilities include pieces that do not
    # exist, so the student must have as many outputs. This holds for a student that copies the table.
    if teacher.vocab_size != student.vocab_size:
        found = f'a model with {teacher.vocab_size:,} token embeddings in {directory}'
        expected = f'{student.vocab_size:,}, the number of pieces of its tokenizer'
        fix = f'resize it with resize_token_embeddings({student.vocab_size}) of transformers, or name another model'
        raise UserError(f'config.{KEY}', found, expected, fix)
    longest = max(phase.seq_len for phase in settings.unresolved_phases)
    segments = settings.corpus_options.segments
    if settings.data:
        segments = open_store(user_path(settings.data, 'config.data'), verify=False).segments
    check_inputs(directory, teacher, longest, segments)
    if distill.student_layers(teacher, student.num_layers) is not None:
        check_copies(teacher, student)
    distill.make_spec(teacher, student)  # raises if the two cannot be compared
    return settings, student


def distill_task(data: TaskData, distill: DistillationSettings, teacher: Teacher) -> Distillation:
    """Returns the distillation for `Finetuning`. `data` has the encoder config of the student.

    Raises a UserError if config.packing is 'on'.
    """
    if data.settings.packing == 'on':
        raise UserError('config.packing', "'on' in a distillation", "'auto' or 'off'", 'leave it out')
    uses_temperature = data.task.objective.distill_loss.uses_temperature
    return _distillation(teacher, distill, data.encoder, uses_temperature=uses_temperature)


def _distillation(
    teacher: Teacher, distill: DistillationSettings, student: BertConfig, *, uses_temperature: bool = True
) -> Distillation:
    """Builds the distillation. If config.distill.intermediate is above 0, there are two stages, as in TinyBERT.

    The first stage has the HIDDEN_LOSSES, and the second stage has the OUTPUT_LOSSES.
    """
    spec = distill.make_spec(teacher.config, student)

    def stage(losses: tuple[str, ...], rate: float | None = None) -> DistillationStage:
        part = dataclasses.replace(spec, factors={loss: spec.factors[loss] for loss in losses})
        return DistillationStage(lambda base: distill_objective(base, part, teacher.module, student), rate)

    stages = [stage((*HIDDEN_LOSSES, *OUTPUT_LOSSES))]
    if distill.has_two_stages:
        stages = [stage(HIDDEN_LOSSES, distill.intermediate_learning_rate or None), stage(OUTPUT_LOSSES)]
    copied = distill.student_layers(teacher.config, student.num_layers)
    initial_weights = '' if distill.student_init == 'init' else 'starting from random weights'
    has_head = False
    if copied is not None:
        missing = {name.partition('/')[0] for name in teacher.imported.missing}
        has_head = 'head' in teacher.imported.params.keys() - missing
        head = ' and the head' if has_head else ''
        initial_weights = f'starting from blocks {", ".join(map(str, copied))}{head} of {teacher.directory}'
    return Distillation(
        stages,
        (teacher.abstract,),
        lambda: (teacher.params,),
        # A forward pass has a third of the FLOPs of a training step.
        lambda seq_len, predictions: train_flops_per_sequence(teacher.config, seq_len, predictions) / 3,
        {'teacher': teacher.fingerprint},
        [teacher.describe(), distill.describe(spec, uses_temperature=uses_temperature)],
        first_stage_steps=distill.intermediate_steps,
        initial_params=None if copied is None else lambda: teacher.as_student(copied, student),
        has_head=has_head,
        initial_weights=initial_weights,
        random=distill.student_init == 'random',
    )
