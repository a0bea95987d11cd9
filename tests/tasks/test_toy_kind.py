"""Tests a new kind of task, which is a folder, a registry line and a recipe."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from bertjax.commands import evaluate, finetune, predict
from bertjax.config.recipes import finetuning_config
from bertjax.convert.content import ExportContent
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.data.features import INPUTS, FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.finetune.task_data import sample_records
from bertjax.losses import Objective
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.heads import BertForTask
from bertjax.model.stacking import init_params
from bertjax.tasks.reading.texts import Line
from bertjax.tasks.registry import KINDS, options
from bertjax.tasks.task import BILSTM_UNITS, Outputs, Task, option
from bertjax.text.tokenizer import Tokenizer

# The folder of a new kind of task: its head, its loss and its class.


class BertForMarks(BertForTask):
    """Marks some of the tokens."""

    outputs: int = 1

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, dropout: Dropout | None = None
    ) -> dict[str, jax.Array]:
        """int32 [B, S] each -> `mark_logits`, float32 [B, S]."""
        hidden = self._hidden(input_ids, segment_ids, attention_mask, dropout)
        return {'mark_logits': self._project(hidden, dropout)[..., 0]}


def mark_losses(outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> dict[str, tuple]:
    losses = optax.sigmoid_binary_cross_entropy(outputs['mark_logits'], batch['token_marks'])
    return {'loss': ((losses * batch['token_weights']).sum(), batch['token_weights'].sum())}


@dataclasses.dataclass
class VowelTask(Task[str, str]):
    """Finds the vowels of a word. Letters are tokens; a prediction is the word with `-` for each consonant."""

    data: str
    seq_len: int
    suffix: str = option('.txt', affects='reading')
    vowels: str = 'aeiou'
    bilstm_units: int = option(0, BILSTM_UNITS, affects='model')

    name = 'vowels'
    score = 'accuracy'
    head = Head(BertForMarks, per_token=('mark_logits',))
    objective = Objective(INPUTS, mark_losses, lambda batch: {'loss': batch['token_weights'].sum()})

    def check_training(self, train: str) -> None:
        if train == 'last_1':
            raise UserError('config.trainable', train, 'all or head', 'choose one')

    def splits(self) -> Sequence[str]:
        return ['train', 'dev']

    def records(self, split: str) -> Sequence[str]:
        return (pathlib.Path(self.data) / f'{split}{self.suffix}').read_text().split()

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[str]:
        for _, line in lines:
            yield from line.split()

    def features(self, records: Sequence[str], tokenizer: Tokenizer, *, training: bool) -> Features:
        builder = FeatureBuilder()
        for i, (word, ids) in enumerate(zip(records, tokenizer.encode(records), strict=True)):
            marks = np.float32([0, *(letter in self.vowels for letter in word), 0])
            weights = np.float32([0, *[1] * len(word), 0])
            tokens = [tokenizer.cls_id, *ids, tokenizer.sep_id]
            builder.add_sequence(tokens, token_marks=marks, token_weights=weights)
            builder.add_row(i)
        return builder.build()

    def build_module(self, model_config: BertConfig) -> BertForTask:
        return self.head.module(model_config, bilstm_units=self.bilstm_units)

    def predictions(self, records: Sequence[str], features: Features, outputs: Outputs) -> list[str]:
        assert [len(row) for row in outputs['mark_logits']] == [
            len(word) + 2 for word in records
        ]  # There is no padding.
        chosen = [row[1:-1] > 0 for row in outputs['mark_logits']]
        pairs = zip(records, chosen, strict=True)
        return [''.join(x if mark else '-' for x, mark in zip(word, marks, strict=True)) for word, marks in pairs]

    def metrics(self, records: Sequence[str], predictions: Sequence[str]) -> dict[str, float | None]:
        true, predicted = (list(''.join(words)) for words in (map(self._answer, records), predictions))
        return {'accuracy': float(np.mean(np.array(true) == np.array(predicted)))}

    def _answer(self, word: str) -> str:
        return ''.join(letter if letter in self.vowels else '-' for letter in word)

    def collapsed(self, records: Sequence[str], predictions: Sequence[str]) -> bool:
        return not set(''.join(predictions)) - {'-'}

    def rows(self, records: Sequence[str], predictions: Sequence[str]) -> Iterator[dict[str, Any]]:
        for word, prediction in zip(records, predictions, strict=True):
            yield {'word': word, 'vowels': prediction}


# The line in the registry, the recipe and an encoder.


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, 'vowels', f'{__name__}:VowelTask')
    monkeypatch.setattr(jax, 'devices', lambda: jax.local_devices()[:1])  # Compiling for one device is faster.


@pytest.fixture
def config(tmp_path: pathlib.Path, tokenizer: Tokenizer, draw_params: Callable) -> ConfigDict:
    encoder = BertConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, width=16, num_heads=2, mlp_dim=32, max_positions=32
    )
    params = draw_params(lambda key: init_params(BertForPreTraining(encoder), key))
    export_huggingface(ExportContent(BertForPreTraining(encoder), params, tokenizer), tmp_path / 'encoder')
    draw = np.random.default_rng(0)
    for split, count in (('train', 64), ('dev', 12)):
        words = [''.join(draw.choice(list('abcdefghi'), length)) for length in draw.integers(2, 9, count)]
        (tmp_path / f'{split}.txt').write_text('\n'.join(words))
    config = finetuning_config('vowels', suffix='.txt', vowels='aeiou', bilstm_units=0)
    config.data, config.init = str(tmp_path), str(tmp_path / 'encoder')
    config.seq_len, config.max_padded_lengths = 16, 1
    config.batch_size, config.steps, config.learning_rate = 16, 60, 1e-2
    config.eval_every, config.checkpoint_every, config.export = 30, 30, False
    return config


def lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_new_kind_is_trained_evaluated_and_predicted(config: ConfigDict, tmp_path: pathlib.Path):
    workdir = tmp_path / 'run'
    finetune.run(config, str(workdir))
    results = json.loads((workdir / 'results.json').read_text())
    assert (results['task'], results['score'], results['collapsed']) == ('vowels', 'accuracy', False)
    accuracy = results['splits']['dev']['accuracy']
    assert accuracy > 0.9  # A third of the letters are vowels.
    predicted = lines(workdir / 'predictions' / 'dev.jsonl')
    assert [row['word'] for row in predicted] == (tmp_path / 'dev.txt').read_text().split()
    letters = [(x in 'aeiou', y != '-') for row in predicted for x, y in zip(row['word'], row['vowels'], strict=True)]
    assert np.mean([true == vowel for true, vowel in letters]) == accuracy
    metrics = lines(workdir / 'metrics.jsonl')
    assert metrics[-1] | {'split': 'dev', 'step': 60, 'accuracy': accuracy} == metrics[-1]
    assert json.loads((workdir / 'task.json').read_text())['task']['kind'] == 'vowels'

    (workdir / 'results.json').unlink()
    evaluate.run(config, str(workdir))
    assert json.loads((workdir / 'results.json').read_text())['splits'] == {'dev': {'accuracy': accuracy}}

    (tmp_path / 'mine.txt').write_text('abba head')
    config.input = str(tmp_path / 'mine.txt')
    predict.run(config, str(workdir))
    mine = lines(workdir / 'predictions' / 'input' / 'mine.jsonl')
    assert [row['word'] for row in mine] == ['abba', 'head'] and all(len(row['vowels']) == 4 for row in mine)
    assert not (
        workdir / 'predictions' / 'input' / 'mine.zip'
    ).exists()  # A task without a benchmark has no official files.


@pytest.mark.slow
def test_a_new_kind_is_trained_on_a_sample_of_its_records(
    config: ConfigDict, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
):
    config.max_train_records, config.max_eval_records, config.steps = 20, 5, 1
    config.export, config.export_formats = True, 'orbax'
    with mock.patch('bertjax.finetune.results.write_exports') as write_exports:
        finetune.run(config, str(tmp_path / 'run'))
    output = capsys.readouterr().out
    assert 'train: 20 of 64 records, a fixed random sample (config.max_train_records)' in output
    assert 'vowels: 20 training records in 20 rows; 5 dev' in output
    parts = {'train': '20 of 64 records', 'dev': '5 of 12 records'}
    assert json.loads((tmp_path / 'run' / 'results.json').read_text())['parts'] == parts
    assert write_exports.call_args.args[0].card['training data'] == '20 of 64 records'
    words = (tmp_path / 'dev.txt').read_text().split()
    chosen = [row['word'] for row in lines(tmp_path / 'run' / 'predictions' / 'dev.jsonl')]
    assert chosen == sample_records(words, 5) and set(chosen) < set(sample_records(words, 8)) != set(words[:8])


@pytest.mark.slow
def test_options_of_a_new_kind_change_only_as_they_declare(config: ConfigDict, tmp_path: pathlib.Path):
    assert list(options('vowels')) == ['suffix', 'vowels', 'bilstm_units']
    assert [option.change.name for option in options('vowels').values()] == ['RUN', 'TRAINING', 'STATE']
    workdir, config.steps = tmp_path / 'run', 1
    finetune.run(config, str(workdir))
    config.task.bilstm_units, config.steps = 3, 2
    with pytest.raises(UserError, match=r'config\.task\.bilstm_units: found 3, expected 0 as in the checkpoint'):
        finetune.run(config, str(workdir))
    config.task.bilstm_units, config.task.vowels = 0, 'aeiouy'
    with pytest.raises(UserError, match=r"config\.task\.vowels: found 'aeiouy', expected 'aeiou', as in"):
        evaluate.run(config, str(workdir), {'task.vowels'})
    (tmp_path / 'dev.text').write_text('abc')
    config.task.suffix = '.text'
    evaluate.run(config, str(workdir), {'task.suffix'})
    assert [row['word'] for row in lines(workdir / 'predictions' / 'other_data' / 'dev.jsonl')] == ['abc']
    (other,) = json.loads((workdir / 'results.json').read_text())['other_data']
    assert other == f'{tmp_path} task.suffix=.text'


def test_unsupported_settings_are_refused_before_training(config: ConfigDict, tmp_path: pathlib.Path):
    workdir = tmp_path / 'run'
    config.trainable = 'last_1'
    with pytest.raises(UserError, match=r'config\.trainable: found last_1, expected all or head'):
        finetune.run(config, str(workdir))
    config.trainable, config.export = 'all', True
    with pytest.raises(UserError, match=r'config\.export: .* no class for the head BertForMarks; set --config.export_'):
        finetune.run(config, str(workdir))
    assert not (workdir / 'checkpoints').exists()
