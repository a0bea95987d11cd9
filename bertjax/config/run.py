"""The config keys that pre-training and fine-tuning share."""

import dataclasses
from typing import Any

from bertjax.config.ranges import COUNT, MANY, duration, either, integer, number, one_of, special, text, word
from bertjax.config.schema import COMMAND_LINE, MACHINE, OUTPUT, RECIPE, SAME, STATE, TRAINING, VERB, group, key
from bertjax.optim.optimizers import OPTIMIZERS
from bertjax.optim.schedules import DECAYS, SCHEDULES
from bertjax.parallel.rules import PRESETS, mesh_axes
from bertjax.parallel.zero1 import ZERO1
from bertjax.writers.tracker import SERVICES

SEED = integer(0, 2**32 - 1)
ROWS = integer(1, MANY)
RATE = number(0, 10, above=True)
EPOCHS = number(0, 1e6)
_SEED_OR_DEFAULT = either(SEED, special(-1, 'config.seed'))
_DEVICES = either(integer(1, MANY), special(-1, 'the remaining devices'))
_RATIO = number(0, 1000, above=True)
_BETA = number(0, 0.999999)  # with a larger beta, the divisor of the bias correction may round to 0 in float32
TEXT = text()
BELOW_ONE = number(0, 1, below=True)
FRACTION = number(0, 1)
MINUTES = number(0, 1e6)
ANY_RECIPE = ('doctor', 'show')  # the verbs that also describe keys of other verbs
_NAME = r'[\w.-]+(/[\w.-]+)?'  # a name on the hub
_LICENSE = word('|[a-z0-9][a-z0-9.+-]*', "an identifier of the hub, such as apache-2.0, or ''")
_LANGUAGES = word('|[A-Za-z-]{2,}(,[A-Za-z-]{2,})*', "codes separated by commas, such as en,de, or ''")
_DATASETS = word(f'|{_NAME}(,{_NAME})*', "names on the hub, separated by commas, or ''")
_BASE = word(f'|{_NAME}', "a name on the hub, or ''")
_REPOSITORY = word(r'|[\w.-]+/[\w.-]+', "a name on the hub, such as org/name, or ''")
_PROFILE = word(r'|\d{1,10}:\d{1,10}', "FIRST:END such as 100:105, the steps 100 to 104, or ''")
_STEP = 'the step of the checkpoint for `evaluate`, `predict` and `export`; 0: the newest or best'
_FORMAT = 'hf|orbax|google|stablehlo|onnx'
_MUON, _WSD = ('name', 'muon'), ('name', 'wsd')  # see `used_with` in schema.Key
_COMMAND = {'change': VERB, 'trained': RECIPE}  # for keys of a single command; no training depends on them
_TRACKER = {'change': VERB, 'used_with': ('tracker',)}
FORMATS = word(f'({_FORMAT})(,({_FORMAT}))*', 'some of hf, orbax, google, stablehlo, onnx, separated by commas')


def verb_options(*verbs: str) -> dict[str, Any]:
    """Returns the arguments of `schema.key` for a key that only these verbs use."""
    return {**_COMMAND, 'used_with': ('run', *verbs, *ANY_RECIPE)}


@dataclasses.dataclass(frozen=True)
class Seeds:
    """The group config.seeds."""

    init: int = key(-1, _SEED_OR_DEFAULT, 'the seed of the initial weights')
    data: int = key(-1, _SEED_OR_DEFAULT, 'the seed of the pairs, the masks and the order of examples')
    dropout: int = key(-1, _SEED_OR_DEFAULT, 'the seed of dropout')


@dataclasses.dataclass(frozen=True)
class ScheduleKeys:
    """The group config.schedule."""

    name: str = key('linear', one_of(SCHEDULES), 'how the learning rate falls after the warm-up')
    power: float = key(1.0, number(0, 100), '`polynomial`: the exponent', used_with=('name', 'polynomial'))
    decay: str = key('sqrt', one_of(DECAYS), '`wsd`: the decay, such as `sqrt`, 1 - √x for x in [0, 1]', used_with=_WSD)
    decay_fraction: float = key(0.1, FRACTION, '`wsd`: the fraction of a phase in which it decays', used_with=_WSD)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The group config.optimizer: the keyword arguments of `optim.optimizers.make_optimizer`."""

    name: str = key('adamw', one_of(OPTIMIZERS), 'the optimizer; `bert_adam` lacks bias correction, as in BERT', STATE)
    b1: float = key(0.9, _BETA, 'the decay of the first moment')
    b2: float = key(0.999, _BETA, 'the decay of the second moment')
    # `eps` must not be 0, because the update of a parameter without a gradient would be 0 / 0.
    eps: float = key(1e-6, number(1e-30, 1), 'the number that is added to the root of the second moment')
    weight_decay: float = key(0.01, number(0, 10), 'the decoupled weight decay; biases and LayerNorm do not decay')
    clip_norm: float = key(1.0, number(0, 1e12), 'the largest global norm of the gradient; 0: no clipping')
    momentum: float = key(0.95, BELOW_ONE, '`muon`: the momentum for the matrices of the blocks', used_with=_MUON)
    adam_lr_ratio: float = key(0.3, _RATIO, '`muon`: the factor of the rate of other parameters', used_with=_MUON)


@dataclasses.dataclass(frozen=True)
class MeshKeys:
    """The group config.mesh. The preset sets the sizes of the axes that keep their defaults."""

    preset: str = key('data', one_of(PRESETS), 'the preset of the axis sizes; `data`, `fsdp` and `tensor` override it')
    data: int = key(-1, _DEVICES, 'the number of copies of the model')
    fsdp: int = key(1, _DEVICES, 'the number of devices that split each weight by width')
    tensor: int = key(1, _DEVICES, 'the number of devices that split the heads, the MLP and the vocabulary')


@dataclasses.dataclass(frozen=True)
class Card:
    """The group config.card: entries of the model card that only the author knows. Empty entries are left out."""

    license: str = key('', _LICENSE, 'the license in the model card')
    language: str = key('', _LANGUAGES, 'the languages in the model card')
    datasets: str = key('', _DATASETS, 'the data sets in the model card')
    base_model: str = key('', _BASE, 'the base model in the model card, for example the name of `init` on the hub')


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunKeys:
    """The keys that all training runs have. An instance has the settings of one run."""

    run: str = key('', text(empty=False), 'the verb, see --help', **_COMMAND)
    data: str = key('')
    init: str = key('', TEXT, "a workdir, a model's directory or `org/name` on the hub to start from", trained=SAME)
    tokenizer: str = key('', TEXT, 'a vocabulary file or a directory; empty: the vocabulary of `init`', trained=SAME)
    seed: int = key(0, SEED, 'the seed for each -1 in `seeds`, and for SentencePiece training', TRAINING)
    seeds: Seeds = group(Seeds(), change=TRAINING)

    grad_accum_steps: int = key(1, ROWS, 'the number of micro-batches per update, a divisor of `batch_size`', TRAINING)
    learning_rate: float = key(1e-4, RATE, 'the peak learning rate', TRAINING)
    warmup_fraction: float = key(0.1, BELOW_ONE, 'the fraction of a phase in which the rate rises', TRAINING)
    schedule: ScheduleKeys = group(ScheduleKeys(), change=TRAINING)
    optimizer: Optimizer = group(Optimizer(), change=TRAINING)

    ema_decay: float = key(
        0.0, BELOW_ONE, 'the decay of a moving average of weights to evaluate and export; 0: none', STATE
    )

    log_every: int = key(100, integer(1, COUNT), 'the number of steps between logged rows of training', MACHINE)
    eval_every: int | str = key('1%', duration('%'), 'the interval between evaluations; 0: only at the start and end')
    checkpoint_every: int | str = key('1%', duration('%'), 'the interval between checkpoints; 0: only at the end')
    checkpoint_minutes: float = key(0.0, MINUTES, 'the maximal minutes between checkpoints; 0: no limit', MACHINE)
    checkpoint_keep: int = key(3, integer(1, MANY), 'keep this many newest checkpoints, besides the best', MACHINE)
    step: int = key(0, integer(0, COUNT), _STEP, **verb_options('evaluate', 'predict', 'export'))
    profile: str = key('', _PROFILE, 'trace the steps FIRST to END - 1 into `WORKDIR/profile`', VERB)
    hang_minutes: float = key(30.0, MINUTES, 'stop the run after this many minutes without progress; 0: never', VERB)

    mesh: MeshKeys = group(MeshKeys(), change=MACHINE, trained=RECIPE)
    zero1: str = key(
        'auto', one_of(ZERO1), 'whether `mesh.data` splits moments (and parameters, if it is the only axis)', MACHINE
    )

    export: bool = key(True, about='export the model to `WORKDIR/export` at the end', change=OUTPUT, trained=RECIPE)
    export_formats: str = key('hf,orbax', FORMATS, 'the formats of the export', OUTPUT, RECIPE)
    push_to: str = key('', _REPOSITORY, 'the repository to which `export/hf` is pushed', **_COMMAND)
    push_private: bool = key(False, about='whether a new `push_to` is private', **_COMMAND, used_with=('push_to',))
    card: Card = group(Card(), change=VERB, trained=COMMAND_LINE)
    tracker: str = key('', one_of(('', *SERVICES)), 'an experiment tracker that also receives the metrics', VERB)
    tracker_project: str = key('bertjax', text(empty=False), 'the project of the run in the tracker', **_TRACKER)
    tracker_run: str = key('', TEXT, 'the name of the run in the tracker; empty: the name of the workdir', **_TRACKER)

    @property
    def run_seeds(self) -> Seeds:
        """The seeds of config.seeds, with -1 replaced by config.seed."""
        return Seeds(**{name: self.seed if seed < 0 else seed for name, seed in vars(self.seeds).items()})

    @property
    def mesh_axes(self) -> dict[str, int]:
        """The size of each mesh axis, {axis: size}; see `parallel.mesh.make_mesh`."""
        return mesh_axes(vars(self.mesh))

    @property
    def moments(self) -> int:
        """The minimal number of additional arrays per parameter: the optimizer's moments and the weight average."""
        return (1 if self.optimizer.name == 'muon' else 2) + (self.ema_decay > 0)

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of config.export_formats without repetitions; () if config.export is False."""
        return tuple(dict.fromkeys(self.export_formats.split(','))) if self.export else ()
