"""transformers' Trainer for a recipe of bertjax: the models, collators and loop of transformers on bertjax's rows.

Both frameworks train on the rows of bertjax. Tests check that transformers' tokenizer gives the same ids. The tasks of
bertjax compute the metrics of both. Everything else is as in examples/pytorch of transformers.
"""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from ml_collections import ConfigDict

from bertjax.data.features import Features
from bertjax.finetune.task_data import TaskData, TaskSplit
from peers.tagger import FrozenTagger

Row = dict[str, Any]

# {transformers' class: (its collator of ragged rows, the names of its outputs in bertjax)}.
_PARTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    'BertForSequenceClassification': (transformers.DataCollatorWithPadding, ('logits',)),
    'BertForQuestionAnswering': (transformers.DataCollatorWithPadding, ('start_logits', 'end_logits')),
    'BertForTokenClassification': (transformers.DataCollatorForTokenClassification, ('token_logits',)),
    'BertForMultipleChoice': (transformers.DataCollatorForMultipleChoice, ('logits',)),
}


class Peer:
    """A Trainer with the model, data and settings of a recipe.

    Args:
      config: The config of a task.
      data: The data of the recipe, whose task has learned its labels.
      train: The training split.
      padding: 'max_length' pads to config.seq_len, the default of the examples; 'longest' pads to the longest row of
        the batch; 'group_by_length' does the same, and groups rows of similar length.
      callbacks: The callbacks of the Trainer.

    Raises:
      NotImplementedError: The config has a value that Trainer does not support.
    """

    def __init__(
        self,
        config: ConfigDict,
        data: TaskData,
        train: TaskSplit,
        *,
        padding: str = 'group_by_length',
        callbacks: Sequence[transformers.TrainerCallback] = (),
    ):
        self._check(config)
        transformers.set_seed(config.seed)
        self._data, self._config, self._padding = data, config, padding
        # The name of the class. A frozen tagger, which transformers lacks, counts as a token classifier.
        self._kind = 'BertForTokenClassification' if _is_frozen(config) else data.task.head.architecture
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.tokenizer or data.source)
        collate = transformers.default_data_collator
        if padding != 'max_length':
            collate = _PARTS[self._kind][0](tokenizer)
        self.trainer = transformers.Trainer(
            model=self._model(),
            args=self._arguments(),
            train_dataset=self.rows(train.features),
            data_collator=collate,
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )
        self.trainer.remove_callback(transformers.PrinterCallback)

    @staticmethod
    def _check(config: ConfigDict) -> None:
        supported = {
            'schedule.name': config.schedule.name == 'linear',
            'optimizer.name': config.optimizer.name == 'adamw',
            'layer_decay': config.layer_decay == 1,
            'trainable': config.trainable in ('all', 'head'),
            'use_checkpoint': config.use_checkpoint == 'last',
            'task.layers': not config.task.get('layers', '').startswith('sum_'),
            'task.bilstm_units': _is_frozen(config) or not config.task.get('bilstm_units'),
        }
        unsupported = [name for name, value in supported.items() if not value]
        if unsupported:
            raise NotImplementedError(
                f'Trainer is not set up for these values of config.{", config.".join(unsupported)}'
            )

    def _model(self) -> torch.nn.Module:
        config, task = self._config, self._data.task
        if _is_frozen(config):
            options = config.task
            return FrozenTagger(
                self._data.source, len(task.labels), options.layers, options.bilstm_units, config.model.dropout
            )
        facts = dict(task.huggingface())
        if 'id2label' in facts:
            facts['id2label'] = {int(number): name for number, name in facts['id2label'].items()}
        model = getattr(transformers, self._kind).from_pretrained(
            self._data.source,
            hidden_dropout_prob=config.model.dropout,
            attention_probs_dropout_prob=config.model.attention_dropout,
            **facts,
        )
        if config.trainable == 'head':
            for name, parameter in model.base_model.named_parameters():
                parameter.requires_grad = name.startswith('pooler')
        return model

    def _arguments(self) -> transformers.TrainingArguments:
        config, optimizer = self._config, self._config.optimizer
        return transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=config.batch_size // config.grad_accum_steps,
            gradient_accumulation_steps=config.grad_accum_steps,
            per_device_eval_batch_size=config.eval_batch_size,
            num_train_epochs=config.epochs,
            max_steps=int(config.steps) or -1,
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_fraction,  # below 1: a fraction of all steps
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.b1,
            adam_beta2=optimizer.b2,
            adam_epsilon=optimizer.eps,
            max_grad_norm=optimizer.clip_norm,
            train_sampling_strategy='group_by_length' if self._padding == 'group_by_length' else 'random',
            seed=config.seed,
            dataloader_pin_memory=torch.cuda.is_available(),
            save_strategy='no',
            report_to='none',
            disable_tqdm=True,
        )

    def rows(self, features: Features) -> list[Row]:
        """Returns the rows as a dataset for Trainer."""
        rows = [self._row(features, i) for i in range(len(features))]
        if self._padding == 'max_length':
            rows = [{name: self._padded(name, value) for name, value in row.items()} for row in rows]
        return rows

    def _row(self, features: Features, i: int) -> Row:
        sequences = range(i * features.choices, (i + 1) * features.choices)
        parts = [slice(features.offsets[k], features.offsets[k + 1]) for k in sequences]
        row: Row = {
            'input_ids': [features.tokens[part].tolist() for part in parts],
            'token_type_ids': [
                (np.arange(part.stop - part.start) >= features.second[k]).astype(int).tolist()
                for k, part in zip(sequences, parts, strict=True)
            ],
            'attention_mask': [[1] * int(part.stop - part.start) for part in parts],
        }
        if features.choices == 1:
            row = {name: value[0] for name, value in row.items()}
        if self._kind == 'BertForTokenClassification':
            labels, weights = (features.token[name][parts[0]] for name in ('token_labels', 'token_weights'))
            return {**row, 'labels': np.where(weights > 0, labels, -100).tolist()}
        if self._kind == 'BertForQuestionAnswering':
            return {
                **row,
                'start_positions': int(features.row['start'][i]),
                'end_positions': int(features.row['end'][i]),
            }
        return {**row, 'labels': features.row['labels'][i].item()}

    def _padded(self, name: str, value: Any) -> Any:
        """Pads a field of a single sequence, as the tokenizer does with padding='max_length'."""
        if not isinstance(value, list):
            return value
        filling = {'input_ids': self._data.tokenizer.pad_id, 'labels': -100}.get(name, 0)
        return value + [filling] * (self._config.seq_len - len(value))

    def results(self) -> dict[str, Any]:
        """Returns `splits`, the metrics of every labeled split, and `collapsed`, as in results.json."""
        task, results = self._data.task, {'collapsed': None, 'splits': {}}
        for name in self._data.eval_splits:
            split = self._data.split(name)
            predictions = task.predictions(split.records, split.features, self._outputs(split.features))
            if name == 'dev':
                task.tune(split.records, predictions)
                results['collapsed'] = task.collapsed(split.records, predictions)
            results['splits'][name] = task.metrics(split.records, predictions)
        return results

    def _outputs(self, features: Features) -> dict[str, Sequence[np.ndarray]]:
        rows, names = self.rows(features), _PARTS[self._kind][1]
        # group_by_length would also reorder the predictions.
        self.trainer.args.train_sampling_strategy = 'random'
        order = np.argsort(features.lengths)
        predictions = self.trainer.predict([rows[i] for i in order]).predictions
        inverse = np.argsort(order)
        outputs = {
            name: values[inverse]
            for name, values in zip(names, predictions if len(names) > 1 else (predictions,), strict=True)
        }
        if names == ('logits',):
            return outputs
        # Remove the padding of token outputs.
        return {
            name: [row[:length] for row, length in zip(values, features.lengths, strict=True)]
            for name, values in outputs.items()
        }


def _is_frozen(config: ConfigDict) -> bool:
    return bool(config.task.get('frozen')) and bool(config.task.get('bilstm_units'))
