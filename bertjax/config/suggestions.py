"""Suggests a known name for an unknown name: the equivalent of another program's option, or the most similar name."""

import difflib
from collections.abc import Iterable, Mapping

# {names in bertjax: names in other programs}. Other programs include transformers (TrainingArguments, configs, example
# scripts) and google-research/bert. The suggestion is the first name in bertjax that the recipe has.
_KEYS = {
    'batch_size': 'eval_batch_size per_device_train_batch_size train_batch_size',
    'checkpoint_every': 'save_checkpoints_steps save_steps save_strategy',
    'checkpoint_keep': 'save_total_limit',
    'corpus data': 'data_dir dataset_name',
    'corpus task.train_file data': 'train_file',
    'corpus input': 'input_file',
    'corpus_options.workers': 'preprocessing_num_workers',
    'epochs': 'num_epochs num_train_epochs',
    'eval_batch_size batch_size': 'per_device_eval_batch_size',
    'eval_every': 'eval_steps eval_strategy evaluation_strategy',
    'grad_accum_steps': 'gradient_accumulation_steps',
    'init': 'bert_config_file init_checkpoint model_name model_name_or_path model_path pretrained_model_name_or_path',
    'learning_rate': 'lr',
    'log_every': 'logging_steps',
    'masking.rate': 'masked_lm_prob mlm_probability',
    'masking.unit': 'do_whole_word_mask',
    'max_eval_records': 'max_eval_samples',
    'max_predictions': 'max_predictions_per_seq',
    'max_train_records': 'max_train_samples',
    'model.attention': 'attn_implementation',
    'model.attention_dropout': 'attention_probs_dropout_prob',
    'model.dropout': 'hidden_dropout_prob',
    'model.dtype dtype': 'bf16 fp16 mixed_precision torch_dtype',
    'model.max_positions': 'max_position_embeddings',
    'model.mlp': 'hidden_act',
    'model.mlp_dim': 'intermediate_size',
    'model.num_heads': 'num_attention_heads',
    'model.num_layers': 'num_hidden_layers',
    'model.num_segments': 'type_vocab_size',
    'model.remat': 'gradient_checkpointing',
    'model.width': 'hidden_size',
    'optimizer.b1': 'adam_beta1',
    'optimizer.b2': 'adam_beta2',
    'optimizer.clip_norm': 'max_grad_norm',
    'optimizer.eps': 'adam_epsilon',
    'optimizer.name': 'optim',
    'optimizer.weight_decay': 'weight_decay',
    'pair_plans': 'dupe_factor',
    'pairs.mode': 'line_by_line',
    'patience': 'early_stopping_patience',
    'push_to': 'hub_model_id',
    'run': 'do_eval do_predict do_train',
    'schedule.name': 'lr_scheduler_type',
    'seq_len': 'max_length',
    'seq_len max_length': 'block_size max_len max_seq_len max_seq_length',
    'steps': 'max_steps num_steps num_train_steps',
    'task.dev task.dev_file heldout_texts data': 'validation_file',
    'task.label task.tags': 'label_column_name',
    'task.labels': 'num_labels',
    'task.max_answer': 'max_answer_length',
    'task.max_query': 'max_query_length',
    'task.metric': 'metric_for_best_model',
    'task.n_best': 'n_best_size',
    'task.stride': 'doc_stride',
    'task.task': 'task_name',
    'task.test task.test_file heldout_texts data': 'test_file',
    'task.text_a task.words corpus_options.text_key': 'text_column text_column_name',
    'tokenizer': 'tokenizer_name vocab_file',
    'tracker': 'report_to',
    'tracker_run': 'run_name',
    'use_checkpoint': 'load_best_model_at_end',
    'vocab.lowercase tokenizer': 'do_lower_case',
    'vocab.size': 'vocab_size',
    'warmup_fraction': 'warmup_proportion warmup_ratio warmup_steps',
}
_VERBS = {
    'evaluate': 'eval test validate',
    'extract': 'embed encode',
    'mine_negatives': 'mine mine_hard_negatives',
    'predict': 'infer inference',
    'pretrain finetune': 'fit train training',
}
_FLAGS = {'config': 'recipe', 'workdir': 'logging_dir output output_dir'}
# Options of other programs that the short form of the command line accepts. Their values mean the same in bertjax.
ALIASES = (
    *('lr', 'max_seq_length', 'max_steps', 'mlm_probability', 'model_name_or_path', 'num_epochs', 'num_train_epochs'),
    *('output_dir', 'warmup_ratio', 'weight_decay'),
)


def _names_of_others(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns {name in another program: names in bertjax}."""
    return {theirs: tuple(ours.split()) for ours, others in table.items() for theirs in others.split()}


KEYS, VERBS = _names_of_others(_KEYS), _names_of_others(_VERBS)
FLAGS = _names_of_others(_FLAGS) | KEYS


def nearest_name(
    name: str, known: Iterable[str], others: Mapping[str, tuple[str, ...]] = KEYS, *, similarity: float = 0.5
) -> str:
    """Returns the known name that the user probably meant; '' if no known name is similar.

    Args:
      others: {name in another program: names in bertjax, the preferred name first}.
      similarity: The minimal similarity, from 0 to 1 (see difflib).
    """
    known = list(known)
    tail = name.rpartition('.')[2]
    equivalents = others.get(tail.lower().replace('-', '_'))
    if equivalents:  # if the recipe has none of them, a similar name would mean something else
        return next((ours for ours in equivalents if ours in known), '')
    near = difflib.get_close_matches(name, known, n=1, cutoff=similarity)
    if not near:  # compare only the last parts of the names, for `--config.widht`
        tails = {key.rpartition('.')[2]: key for key in known}
        near = [tails[match] for match in difflib.get_close_matches(tail, tails, n=1, cutoff=similarity)]
    return near[0] if near else ''


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns 'did you mean X?' with X from `nearest_name`; '' if no known name is similar."""
    near = nearest_name(name, known)
    return f'did you mean {near}?' if near else ''
