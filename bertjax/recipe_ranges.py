"""The range of every key of bertjax/recipe.py.

Those of config.model, corpus_options, pairs and masking, and of a task's options, stand with the fields of the classes
that they become.
"""

from typing import Any

from bertjax.corpus.sources import CorpusOptions
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.model.config import DTYPES, BertConfig
from bertjax.model.pooling import COMBINE, POOL
from bertjax.optim.optimizers import OPTIMIZERS
from bertjax.optim.schedules import SCHEDULES
from bertjax.parallel.rules import PRESETS
from bertjax.parallel.zero1 import ZERO1
from bertjax.ranges import (
    COUNT,
    MANY,
    Range,
    duration,
    each,
    either,
    flag,
    number,
    one_of,
    only,
    ranges_of,
    text,
    whole,
    word,
)
from bertjax.recipe import INHERITED, finetuning_config, model_fields
from bertjax.writers.services import SERVICES

_SEED = whole(0, 2**32 - 1)
_OWN_SEED = either(_SEED, only(-1, 'config.seed'))
_DEVICES = either(whole(1, MANY), only(-1, 'what the others leave'))
_ROWS = whole(1, MANY)
_RATE = number(0, 10, above=True)
_EPOCHS = number(0, 1e6)
_MINUTES = number(0, 1e6)
_NAME = r'[\w.-]+(/[\w.-]+)?'  # on the hub
_FORMAT = 'hf|orbax|google|stablehlo|onnx'
_TRAINED = word('all|head|last_[1-9][0-9]{0,3}', "'all', 'head', or 'last_K' with K from 1 to the model's layers")

# A key of either base config that is no field of a class.
_SHARED = {
    'run': text(empty=False),  # the verbs are known to command_line.py
    'data': text(),
    'init': text(),
    'tokenizer': text(),
    'seed': _SEED,
    'seeds.init': _OWN_SEED,
    'seeds.data': _OWN_SEED,
    'seeds.dropout': _OWN_SEED,
    'batch_size': _ROWS,
    'accumulate': _ROWS,
    'learning_rate': _RATE,
    'warmup_fraction': number(0, 1, below=True),
    'schedule.name': one_of(SCHEDULES),
    'schedule.power': number(0, 100),
    'optimizer.name': one_of(OPTIMIZERS),
    # Nearer to 1, float32 has no room for what the correction of the first steps divides by.
    'optimizer.b1': number(0, 0.999999),
    'optimizer.b2': number(0, 0.999999),
    'optimizer.eps': number(1e-30, 1),  # the moments of what has no gradient are 0
    'optimizer.weight_decay': number(0, 10),
    'optimizer.clip_norm': number(0, 1e12),
    'optimizer.momentum': number(0, 1, below=True),
    'optimizer.adam_lr_ratio': number(0, 1000, above=True),
    'log_every': whole(1, COUNT),
    'checkpoint_keep': whole(1, MANY),
    'profile': word(r'|\d{1,10}:\d{1,10}', "FIRST:END such as 100:105, the steps 100 to 104, or ''"),
    'hang_minutes': _MINUTES,
    'mesh.preset': one_of(PRESETS),
    'mesh.data': _DEVICES,
    'mesh.fsdp': _DEVICES,
    'mesh.tensor': _DEVICES,
    'zero1': one_of(ZERO1),
    'step': whole(0, COUNT),
    'export': flag(),
    'export_formats': word(
        f'({_FORMAT})(,({_FORMAT}))*', 'some of hf, orbax, google, stablehlo, onnx, with commas between'
    ),
    'push_to': word(r'|[\w.-]+/[\w.-]+', "a name on the hub, such as org/name, or ''"),
    'push_private': flag(),
    'tracker': one_of(('', *SERVICES)),
    'tracker_project': text(empty=False),
    'tracker_run': text(),
    'card.license': word('|[a-z0-9][a-z0-9.+-]*', "an identifier of the hub, such as apache-2.0, or ''"),
    'card.language': word('|[A-Za-z-]{2,}(,[A-Za-z-]{2,})*', "codes with commas between, such as en,de, or ''"),
    'card.datasets': word(f'|{_NAME}(,{_NAME})*', "names on the hub, with commas between, or ''"),
    'card.base_model': word(f'|{_NAME}', "a name on the hub, or ''"),
}

PRETRAINING = {
    **_SHARED,
    'corpus': text(),
    **{f'corpus_options.{name}': allowed for name, allowed in ranges_of(CorpusOptions).items()},
    'beam': text(),
    'vocab.family': one_of(('wordpiece', 'sentencepiece', 'bpe', 'symbols')),
    'vocab.size': whole(8, 10_000_000),
    'vocab.lowercase': flag(),
    'vocab.unused': whole(0, MANY),
    'vocab.model_type': one_of(('unigram', 'bpe')),
    'vocab.sample_sentences': whole(1, COUNT),
    'vocab.add': text(),
    'vocab.candidates': whole(0, MANY),
    'architecture': one_of(('model', 'init')),
    'heldout_texts': text(),
    'embeddings': text(),
    **{f'model.{name}': ranges_of(BertConfig)[name] for name in model_fields('base')},
    **{f'pairs.{name}': allowed for name, allowed in ranges_of(PairOptions).items() if name != 'plans'},
    'pair_plans': ranges_of(PairOptions)['plans'],
    **{f'masking.{name}': allowed for name, allowed in ranges_of(MaskOptions).items()},
    'seq_len': whole(8, MANY),
    'max_predictions': whole(1, MANY),
    'packing': flag(),
    'steps': duration('epochs'),
    'epochs': _EPOCHS,
    'phases': Range('phases as bertjax.recipe.phase makes them', lambda value: value == []),  # of any, each key
    'eval_every': duration('%'),
    'eval_examples': whole(1, COUNT),
    'checkpoint_every': duration('%'),
    'checkpoint_minutes': _MINUTES,
    'topology': text(),
    'find_batch': flag(),
}

_OF_RUN = {**PRETRAINING, 'schedule': PRETRAINING['schedule.name']}
PHASE = {
    'steps': duration('%'),
    'reset_optimizer': flag(),
    **{key: either(_OF_RUN[key], only(unset, "the run's own")) for key, unset in INHERITED.items()},
}

FINETUNING = {
    **_SHARED,
    **{f'model.{name}': PRETRAINING[f'model.{name}'] for name in finetuning_config('').model},
    'train': _TRAINED,
    'layer_decay': number(0, 1, above=True),
    'seq_len': whole(4, MANY),
    'shapes': whole(0, 1000),
    'packing': one_of(('auto', 'on', 'off')),
    'patience': whole(0, COUNT),
    'max_train_records': whole(0, COUNT),
    'max_eval_records': whole(0, COUNT),
    'eval_batch_size': _ROWS,
    'epochs': _EPOCHS,
    'steps': duration('epochs'),
    'eval_every': duration('%', 'epochs'),
    'checkpoint_every': duration('%', 'epochs'),
    'checkpoint_minutes': _MINUTES,
    'select': one_of(('last', 'best')),
    'split': text(empty=False),
    'input': text(),
    'benchmark': text(),
    'ensemble': text(),
    'sweep.train': each(_TRAINED),
    'sweep.batch_size': each(_ROWS),
    'sweep.epochs': each(_EPOCHS),
    'sweep.learning_rate': each(_RATE),
    'sweep.seeds': each(_SEED),
    'sweep.together': whole(0, 1000),
}

_FACTOR = number(0, 1e6)
_BLOCKS = r'\d{1,4}(,\d{1,4})*'
_LISTED = 'numbers of blocks of the teacher as in 0,2,4'

# config.distill, which only recipes of a distillation have; `recipe.distillation` has what they mean.
DISTILLATION = {
    'distill.teacher': text(),
    'distill.student_init': word(f'alternate|init|random|{_BLOCKS}', f"'alternate', 'init', 'random', or {_LISTED}"),
    'distill.layers': word(f'uniform|alternate|{_BLOCKS}', f"'uniform', 'alternate', or {_LISTED}"),
    'distill.temperature': number(0.01, 1000),
    **{f'distill.{part}': _FACTOR for part in ('soft', 'hard', 'cosine', 'hidden', 'attention', 'embeddings')},
    'distill.projection': flag(),
}
TASK_DISTILLATION = {
    **DISTILLATION,
    'distill.num_layers': whole(0, 10_000),
    'distill.intermediate': duration('%', 'epochs'),
    'distill.intermediate_learning_rate': either(_RATE, only(0.0, "the run's own")),
    'distill.augment': whole(0, 1000),
    'distill.augment_probability': number(0, 1, above=True),
    'distill.augment_candidates': whole(1, 1000),
    'distill.augment_model': text(),
}

# Of every verb that uses a finished model; run=convert has the first three.
USING = {
    'run': _SHARED['run'],
    'init': text(),
    'step': _SHARED['step'],
    'input': text(),
    'dtype': one_of(DTYPES),
    'batch_size': _ROWS,
    'max_length': either(whole(4, MANY), only(0, 'the positions of the model')),
}
FORMATS = ('npy', 'safetensors', 'parquet', 'jsonl')  # of features
ASKED = ('masks', 'score', 'pairs', 'continue')  # of a masked language model
# Of each such verb: the keys of config.VERB, each with an example for messages.
OF_VERB: dict[str, dict[str, tuple[Range, Any]]] = {
    'extract': {
        'field': (text(empty=False), 'text'),
        'pair_field': (text(), ''),
        'id': (text(), ''),
        'layers': (each(whole(-MANY, MANY)), (-1,)),
        'combine': (one_of(COMBINE), 'mean'),
        'weights': (each(number(-1e6, 1e6)), ()),
        'pool': (one_of(('auto', *POOL)), 'auto'),
        'normalize': (either(flag(), only(None, "the model's own")), False),
        'format': (one_of(('', *FORMATS)), 'npy'),
        'part': (whole(0, MANY), 0),
    },
    'fill': {
        'ask': (one_of(ASKED), 'masks'),
        'text': (text(), ''),
        'second': (text(), ''),
        'field': (text(empty=False), 'text'),
        'pair_field': (text(empty=False), 'pair'),
        'top_k': (whole(1, 1000), 5),
        'jointly': (flag(), False),
        'tokens': (whole(1, MANY), 20),
        'temperature': (number(0, 100), 1.0),
        'sample': (whole(1, 1000), 50),
        'seed': (_SEED, 0),
    },
    'convert': {'formats': (_SHARED['export_formats'], 'hf')},
    'attention': {
        'field': (text(empty=False), 'text'),
        'pair_field': (text(), ''),
        'texts': (each(text(empty=False)), ()),
        'show': (whole(0, 1000), 12),
        'unit': (one_of(('piece', 'word')), 'piece'),
        'compare': (text(), 'out/before'),
    },
}
