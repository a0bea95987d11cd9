"""Suggest a known name for an unknown name: the most similar one, or the equivalent of another program's option."""

import difflib
from collections.abc import Iterable, Mapping

# {argument of another program: the keys of bertjax for it}. The arguments come from transformers (TrainingArguments,
# configs and example scripts), google-research/bert and others. The first key that the recipe has is suggested.
KEYS: Mapping[str, tuple[str, ...]] = {
    'adam_beta1': ('optimizer.b1',),
    'adam_beta2': ('optimizer.b2',),
    'adam_epsilon': ('optimizer.eps',),
    'attention_probs_dropout_prob': ('model.attention_dropout',),
    'attn_implementation': ('model.attention',),
    'bf16': ('model.dtype', 'dtype'),
    'block_size': ('seq_len', 'max_length'),
    'data_dir': ('data', 'corpus'),
    'dataset_name': ('data', 'corpus'),
    'do_lower_case': ('vocab.lowercase',),
    'doc_stride': ('task.stride',),
    'early_stopping_patience': ('patience',),
    'eval_batch_size': ('batch_size',),
    'eval_steps': ('eval_every',),
    'eval_strategy': ('eval_every',),
    'evaluation_strategy': ('eval_every',),
    'fp16': ('model.dtype', 'dtype'),
    'gradient_accumulation_steps': ('grad_accum_steps',),
    'gradient_checkpointing': ('model.remat',),
    'hidden_act': ('model.mlp',),
    'hidden_dropout_prob': ('model.dropout',),
    'hidden_size': ('model.width',),
    'hub_model_id': ('push_to',),
    'init_checkpoint': ('init',),
    'input_file': ('corpus', 'input'),
    'intermediate_size': ('model.mlp_dim',),
    'label_column_name': ('task.label',),
    'logging_steps': ('log_every',),
    'lr': ('learning_rate',),
    'lr_scheduler_type': ('schedule.name',),
    'masked_lm_prob': ('masking.rate',),
    'max_answer_length': ('task.max_answer',),
    'max_eval_samples': ('max_eval_records',),
    'max_grad_norm': ('optimizer.clip_norm',),
    'max_len': ('seq_len', 'max_length'),
    'max_length': ('seq_len',),
    'max_position_embeddings': ('model.max_positions',),
    'max_predictions_per_seq': ('max_predictions',),
    'max_query_length': ('task.max_query',),
    'max_seq_len': ('seq_len', 'max_length'),
    'max_seq_length': ('seq_len', 'max_length'),
    'max_steps': ('steps',),
    'max_train_samples': ('max_train_records',),
    'mixed_precision': ('model.dtype', 'dtype'),
    'mlm_probability': ('masking.rate',),
    'model_name': ('init',),
    'model_name_or_path': ('init',),
    'model_path': ('init',),
    'n_best_size': ('task.n_best',),
    'num_attention_heads': ('model.num_heads',),
    'num_epochs': ('epochs',),
    'num_hidden_layers': ('model.num_layers',),
    'num_steps': ('steps',),
    'num_train_epochs': ('epochs',),
    'num_train_steps': ('steps',),
    'optim': ('optimizer.name',),
    'per_device_eval_batch_size': ('eval_batch_size', 'batch_size'),
    'per_device_train_batch_size': ('batch_size',),
    'preprocessing_num_workers': ('corpus_options.workers',),
    'pretrained_model_name_or_path': ('init',),
    'report_to': ('tracker',),
    'run_name': ('tracker_run',),
    'save_steps': ('checkpoint_every',),
    'save_strategy': ('checkpoint_every',),
    'save_total_limit': ('checkpoint_keep',),
    'task_name': ('task.task',),
    'text_column': ('task.text_a', 'corpus_options.text_key'),
    'tokenizer_name': ('tokenizer',),
    'torch_dtype': ('model.dtype', 'dtype'),
    'train_batch_size': ('batch_size',),
    'train_file': ('data', 'corpus'),
    'type_vocab_size': ('model.num_segments',),
    'vocab_file': ('tokenizer',),
    'vocab_size': ('vocab.size',),
    'warmup_proportion': ('warmup_fraction',),
    'warmup_ratio': ('warmup_fraction',),
    'warmup_steps': ('warmup_fraction',),
    'weight_decay': ('optimizer.weight_decay',),
}
# The names of other programs that the short form of the command line accepts. The others may mean something else there.
ALIASES = (
    *('lr', 'max_seq_length', 'max_steps', 'mlm_probability', 'model_name_or_path', 'num_epochs', 'num_train_epochs'),
    *('output_dir', 'warmup_ratio', 'weight_decay'),
)
VERBS: Mapping[str, tuple[str, ...]] = {
    'embed': ('extract',),
    'encode': ('extract',),
    'eval': ('evaluate',),
    'fit': ('pretrain', 'finetune'),
    'infer': ('predict',),
    'inference': ('predict',),
    'mine': ('mine_negatives',),
    'mine_hard_negatives': ('mine_negatives',),
    'test': ('evaluate',),
    'train': ('pretrain', 'finetune'),
    'training': ('pretrain', 'finetune'),
    'validate': ('evaluate',),
}
FLAGS: Mapping[str, tuple[str, ...]] = {
    'output': ('workdir',),
    'output_dir': ('workdir',),
    'logging_dir': ('workdir',),
    'recipe': ('config',),
    **KEYS,
}


def nearest_name(
    name: str, known: Iterable[str], others: Mapping[str, tuple[str, ...]] = KEYS, *, similarity: float = 0.5
) -> str:
    """Returns the known name that the user probably meant; '' if no known name is similar.

    Args:
      name: The unknown name.
      known: The known names.
      others: {name in another program: names in bertjax}; the first known name is returned.
      similarity: The minimal similarity, from 0 to 1 (see difflib).
    """
    known = list(known)
    tail = name.rpartition('.')[2]
    near = [ours for ours in others.get(tail.lower().replace('-', '_'), ()) if ours in known]
    if not near:
        near = difflib.get_close_matches(name, known, n=1, cutoff=similarity)
    if not near:  # compare only the last parts of the names, for `--config.widht`
        tails = {key.rpartition('.')[2]: key for key in known}
        near = [tails[match] for match in difflib.get_close_matches(tail, tails, n=1, cutoff=similarity)]
    return near[0] if near else ''


def suggestion(name: str, known: Iterable[str], others: Mapping[str, tuple[str, ...]] = KEYS) -> str:
    """Returns 'did you mean X?' with X from `nearest_name`; '' if no known name is similar."""
    near = nearest_name(name, known, others)
    return f'did you mean {near}?' if near else ''
