"""The base configs of pre-training, of fine-tuning and of using a model: each key, its default, and what it means."""

from typing import Any

from ml_collections import ConfigDict, config_dict

from bertjax.model.config import SIZES, FieldKind, fields_of


def steps(value: int | str) -> config_dict.FieldReference:
    """A config field that takes a duration: a number of steps, '10%' of the run, or '2epochs'."""
    return config_dict.FieldReference(value, field_type=object)


def model_fields(size: str, **changes: Any) -> ConfigDict:
    """config.model: the fields of BertConfig but the vocabulary's size, which is the tokenizer's, and the pair head,
    which follows from config.pairs.mode."""
    fields = {name: value for name, value in fields_of(*FieldKind).items() if name not in ('vocab_size', 'nsp')}
    return ConfigDict({**fields, **SIZES[size], **changes})


# Keys of a phase, and the value with which each stands for the run's own.
INHERITED = {
    'seq_len': 0,
    'max_predictions': 0,
    'batch_size': 0,
    'accumulate': 0,
    'learning_rate': 0.0,
    'warmup_fraction': -1.0,
    'schedule': '',
}


# config.optimizer, but for its name.
OPTIMIZER = {
    'b1': 0.9,
    'b2': 0.999,
    'eps': 1e-6,
    'weight_decay': 0.01,
    'clip_norm': 1.0,
    'momentum': 0.95,  # of Muon, which trains the matrices of the blocks
    # With Muon, AdamW trains all other parameters, at this multiple of config.learning_rate.
    'adam_lr_ratio': 0.3,
}


# What the model card of an export says and only its maker can know; '' is left out.
CARD = {
    'license': '',  # as the hub writes it, such as apache-2.0
    'language': '',  # such as en, or en,de
    'datasets': '',  # names on the hub, with commas between
    'base_model': '',  # name on the hub of what config.init is
}


# Where rows go besides the workdir.
TRACKING = {
    'tracker': '',  # or wandb, mlflow, trackio, which are extras
    'tracker_project': 'bertjax',  # of a W&B or Trackio project, of an MLflow experiment
    'tracker_run': '',  # what the run is called there; '': as the workdir
}


def phase(**values: Any) -> ConfigDict:
    """One entry of config.phases.

    Keys: `steps` (a duration; percentages are of config.steps), `reset_optimizer`, and those of INHERITED, which are
    the run's own where they are not given; `schedule` is the name alone.
    """
    values['steps'] = steps(values['steps'])
    return ConfigDict({'reset_optimizer': False, **INHERITED, **values})


def pretraining_config(size: str = 'base', **changes: Any) -> ConfigDict:
    """BERT's own recipe (arXiv 1810.04805, google-research/bert), in one phase; `changes` replace top-level keys."""
    config = ConfigDict()
    config.run = 'pretrain'  # the verb: a file of bertjax/commands/

    # Where text comes from: a path, glob, directory, comma-separated list, 'A=0.7,B=0.3' by weight, gs://…,
    # tfds:NAME, or pydoc:, the documents that every Python carries; 'A=auto,B=auto' by size, smoothed.
    config.corpus = 'pydoc:'
    config.corpus_options = ConfigDict(
        {
            'format': 'auto',  # or text, files, jsonl, wikiextractor; ids, symbols: sequences that are no text
            'text_key': 'text',  # field of JSON lines, feature of a tfds dataset
            'segments': 0,  # of ids and symbols: segment types that the data gives each sentence; 0: A and B
            'strict': False,  # stop at the first broken document instead of dropping and counting it
            'split_sentences': True,  # False: each line is a sentence already
            'sentences': 'rules',  # what splits; or pysbd (slower), pysbd:de and other languages
            'heldout': 0.02,  # share of documents held out for evaluation
            'drop_duplicates': False,  # keep only the first of equal training documents
            'smoothing': 0.7,  # of a mixture 'A=auto,B=auto': shares in proportion to tokens^smoothing
            'workers': 0,  # processes that build the store; 0: one a core
        }
    )
    config.beam = ''  # flags of Apache Beam, such as --runner=DirectRunner, which then reads the text; '': here
    config.data = ''  # a token store that is built already; '': WORKDIR/store, from `corpus`
    config.tokenizer = ''  # vocab.txt, tokenizer.json, *.model or a directory; '': train one into WORKDIR/tokenizer
    config.vocab = ConfigDict(
        {
            'family': 'wordpiece',  # or sentencepiece, or bpe (byte-level, as RoBERTa); symbols: each of them one piece
            'size': 30522,
            'lowercase': True,
            'unused': 0,  # [unusedN] slots kept for words of your own
            'model_type': 'unigram',  # sentencepiece: unigram or bpe
            'sample_sentences': 1_000_000,  # sentencepiece: trained on at most so many, drawn with config.seed
            'add': '',  # a file of words, a line each, that become pieces of the given vocabulary
            'candidates': 0,  # run=vocab: list so many words of the corpus for `add`, in place of a training
        }
    )
    config.init = ''  # a workdir, a model's directory or org/name on the hub, whose weights initialise the run
    config.architecture = 'model'  # what decides it: config.model, or 'init', the checkpoint of config.init
    config.embeddings = ''  # a matrix, .npy or .safetensors, that the token embedding begins as
    config.heldout_texts = ''  # further texts to evaluate on, NAME=PATH,NAME=PATH; 'each': every corpus of a mixture

    config.seed = 0
    config.seeds = ConfigDict({'init': -1, 'data': -1, 'dropout': -1})  # -1: config.seed

    config.model = model_fields(size)
    config.pairs = ConfigDict({'mode': 'nsp', 'short_probability': 0.1, 'balanced': False})
    config.pair_plans = 10  # passes over the text that differ in their pairs, before they repeat in another order
    config.masking = ConfigDict(
        {'rate': 0.15, 'mask': 0.8, 'random': 0.1, 'unit': 'token', 'max_span': 3, 'static': False, 'eval_rate': 0.15}
    )

    config.seq_len = 128
    config.max_predictions = 20
    config.packing = False  # several examples in a row, where they fit: less padding, and other batches
    config.batch_size = 256  # sequences an update, over all devices; rows, with `packing`
    config.accumulate = 1  # parts that a batch is processed in
    config.steps = steps(1_000_000)
    config.epochs = 0.0  # above 0: passes over the corpus, instead of `steps`
    config.learning_rate = 1e-4
    config.warmup_fraction = 0.01
    config.schedule = ConfigDict({'name': 'linear', 'power': 1.0})
    config.optimizer = ConfigDict({'name': 'bert_adam', **OPTIMIZER})
    config.phases = ()  # stretches with their own shapes and rates, see `phase`

    config.log_every = 100
    config.eval_every = steps('1%')
    config.eval_examples = 4096
    config.checkpoint_every = steps('1%')
    config.checkpoint_minutes = 0.0  # above 0: also when so long ago the last one was
    config.checkpoint_keep = 3
    config.profile = ''  # 'FIRST:END': trace these steps, without END, into WORKDIR/profile
    config.hang_minutes = 30.0  # a run in which nothing moves for so long ends with status 4; 0: never
    config.step = 0  # run=export: which checkpoint; 0: the newest

    # A preset has sizes for the axes that are left as they are here; -1: the devices that the others leave.
    config.mesh = ConfigDict({'preset': 'data', 'data': -1, 'fsdp': 1, 'tensor': 1})
    config.zero1 = 'auto'  # on, off: parameters and optimiser split over data; auto: where nothing else splits them
    config.topology = ''  # run=compile: the machine to compile for, such as v5e:4x4 or 2*v5e:16x16
    config.find_batch = False  # run=compile: look for the largest batch that fits
    config.export = True  # write the model to WORKDIR/export at the end
    config.export_formats = 'hf,orbax'  # folders there, with commas between: hf, orbax, google, stablehlo, onnx
    config.push_to = ''  # org/name on the Hugging Face hub, to which export/hf is pushed
    config.push_private = False  # whether a repository that is made there is private
    config.card = ConfigDict(CARD)
    config.update(TRACKING)
    for key, value in changes.items():
        config[key] = value
    return config


def two_phases(**second: Any) -> tuple[ConfigDict, ConfigDict]:
    """BERT's: 90 % of the steps at 128 positions, then 512 for the position embeddings (paper, appendix A.2)."""
    return (
        phase(steps='90%', seq_len=128, max_predictions=20),
        phase(steps='10%', seq_len=512, max_predictions=80, **second),
    )


def finetuning_config(kind: str, **task: Any) -> ConfigDict:
    """The base of every recipe for a task; `task` are the options of its kind (bertjax/tasks/), config.task.

    The defaults are those of the paper's GLUE runs (arXiv 1810.04805, appendix A.3): batch 32, 3 epochs, a learning
    rate of 2e-5 to 5e-5, warm-up over 10 % of the steps; AdamW as in transformers.
    """
    config = ConfigDict()
    config.run = 'finetune'  # the verb: finetune, benchmark, evaluate, predict, baseline, plot
    config.task = ConfigDict({'kind': kind, **task})
    config.data = ''  # folder of the task's files in their official layout; '': prepared by tensorflow-datasets
    config.init = ''  # a workdir, a model's directory or org/name on the hub, whose encoder the run starts from
    config.tokenizer = ''  # vocab.txt, tokenizer.json, *.model or a directory; '': that of config.init
    config.max_train_records = 0  # above 0: train on at most so many, a fixed random sample
    config.max_eval_records = 0  # above 0: the same for each split that is evaluated

    config.seed = 0
    config.seeds = ConfigDict({'init': -1, 'data': -1, 'dropout': -1})  # -1: config.seed

    # Sizes are those of config.init; this is what a run may choose.
    chosen = fields_of(FieldKind.LAYOUT, FieldKind.TRAINING, FieldKind.EXECUTION)
    config.model = ConfigDict({**chosen, 'scan_layers': False})
    config.train = 'all'  # 'head': the encoder stays as it is; 'last_K': the head and the last K blocks
    config.layer_decay = 1.0  # learning rate of a block as a share of that of the block above it

    config.seq_len = 128
    config.shapes = 0  # at most so many padded lengths, each compiled; 0: what costs least in all, at most 8
    config.packing = 'auto'  # on, off: several rows of a batch computed as one, in one shape; auto: where it pays
    config.batch_size = 32  # rows an update, over all devices
    config.eval_batch_size = 64
    config.accumulate = 1  # parts that a batch is processed in
    config.epochs = 3.0
    config.steps = steps(0)  # above 0: instead of `epochs`
    config.learning_rate = 2e-5
    config.warmup_fraction = 0.1
    config.schedule = ConfigDict({'name': 'linear', 'power': 1.0})
    config.optimizer = ConfigDict({'name': 'adamw', **OPTIMIZER})

    config.log_every = 20
    config.eval_every = steps('1epochs')  # 0: only at the end
    config.checkpoint_every = steps('1epochs')
    config.checkpoint_minutes = 0.0  # above 0: also when so long ago the last one was
    config.checkpoint_keep = 1
    config.profile = ''  # 'FIRST:END': trace these steps, without END, into WORKDIR/profile
    config.hang_minutes = 30.0  # a run in which nothing moves for so long ends with status 4; 0: never
    config.select = 'last'  # what is evaluated and exported: the last step, or the 'best' on dev that was saved

    config.patience = 0  # above 0: the run ends when so many evaluations in a row were no better on dev
    config.step = 0  # run=evaluate, predict, export: which checkpoint; 0: the newest, or the best with select='best'

    config.split = 'dev'  # run=evaluate, run=predict: which records
    config.input = ''  # run=predict: a file of your own, or '-' for standard input, instead of a split
    config.sweep = sweep()
    config.benchmark = (
        ''  # run=benchmark: what single tasks have of their own, 'rte:epochs=10,learning_rate=3e-5;cola:…'
    )
    config.ensemble = (
        ''  # run=evaluate, run=predict: workdirs whose models answer together, with commas between, or globs
    )

    # A preset has sizes for the axes that are left as they are here; -1: the devices that the others leave.
    config.mesh = ConfigDict({'preset': 'data', 'data': -1, 'fsdp': 1, 'tensor': 1})
    config.zero1 = 'auto'  # on, off: parameters and optimiser split over data; auto: where nothing else splits them
    config.export = True  # write the model to WORKDIR/export at the end
    config.export_formats = 'hf,orbax'  # folders there, with commas between: hf, orbax, google, stablehlo, onnx
    config.push_to = ''  # org/name on the Hugging Face hub, to which export/hf is pushed
    config.push_private = False  # whether a repository that is made there is private
    config.card = ConfigDict(CARD)
    config.update(TRACKING)
    return config


def sweep(**values: tuple) -> ConfigDict:
    """config.sweep: every combination is a run; an empty list stands for the config's own value.

    Keys: `train`, `batch_size`, `epochs`, `learning_rate`, `seeds`; and `together`, the most runs of one shape that are
    trained at once (0: as many as fit into the device's memory; on a CPU one).
    """
    lists = dict.fromkeys(('train', 'batch_size', 'epochs', 'learning_rate', 'seeds'), ())
    return ConfigDict({**lists, 'together': 0, **values})


def distillation(config: ConfigDict, **values: Any) -> ConfigDict:
    """A recipe of a pre-training or of a task in which a student learns from a teacher: `config` with config.distill,
    of which `values` replace some keys.

    The defaults are those of DistilBERT (arXiv 1910.01108; huggingface/transformers, research_projects/distillation).
    """
    config.run = 'distill'
    config.distill = ConfigDict(
        {
            'teacher': '',  # a workdir, a model's directory or org/name on the hub, as config.init
            # The student's first weights: blocks of the teacher, 'alternate' or by number as in 0,2,4; 'init', those of
            # config.init; 'random'.
            'student_init': 'alternate',
            'layers': 'uniform',  # of each block of the student, the one of the teacher that it follows; or as above
            'temperature': 2.0,  # of the soft targets
            # How much each part counts: the teacher's outputs, the labels or masked pieces, and of what is computed on
            # the way the direction of the last hidden states, hidden states, attention scores, embeddings.
            'soft': 5.0,
            'hard': 2.0,
            'cosine': 1.0,
            'hidden': 0.0,
            'attention': 0.0,
            'embeddings': 0.0,
            'projection': False,  # compare hidden states through a learned map: where the widths differ
        }
    )
    if 'task' in config:
        config.distill.update(
            {
                'num_layers': 0,  # of a student made of the teacher; 0: half of its blocks
                'intermediate': steps(0),  # how long what is computed on the way comes first, alone; '50%', '20epochs'
                'intermediate_learning_rate': 0.0,  # of that stretch; 0: config.learning_rate
                'augment': 0,  # rows made of each training row by other words in some places
                'augment_probability': 0.4,  # of each word to be another one
                'augment_candidates': 15,  # the likeliest words that it may become
                'augment_model': '',  # the masked language model that says so, as config.init
            }
        )
    config.distill.update(values)
    return config


def using_config(verb: str, **options: Any) -> ConfigDict:
    """The base of every recipe that asks something of a finished model; `options` are those of its verb, config.VERB.

    Their ranges are in recipe_ranges.py:OF_VERB.
    """
    config = ConfigDict()
    config.run = verb
    config.init = ''  # the model: whatever bertjax.load takes; '': that of --workdir
    config.step = 0  # of a workdir: which checkpoint; 0: what was exported, else the newest
    if verb != 'convert':  # which reads no texts
        config.input = ''  # a file, or '-' for standard input
        config.dtype = 'float32'  # of computation; bfloat16 is several times faster on TPUs and GPUs
        config.batch_size = 64  # texts at a time
        config.max_length = 0  # longer texts are cut to so many tokens; 0: as many as the model has positions
    config[verb] = ConfigDict(options)
    return config
