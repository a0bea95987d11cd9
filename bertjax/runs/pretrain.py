"""run=pretrain: text files -> vocabulary -> token store -> trained, evaluated, exported BERT."""

import pathlib
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax.config import duration, plain
from bertjax.convert.huggingface.config import check_exportable
from bertjax.convert.huggingface.load import load_huggingface
from bertjax.data.loader import Loader
from bertjax.errors import UserError
from bertjax.files import exclusive
from bertjax.losses import PRETRAINING
from bertjax.model.config import BertConfig, parameter_count, train_flops_per_sequence
from bertjax.optim.masks import describe_decay
from bertjax.optim.schedules import make_schedule
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context
from bertjax.runs import _settings as settings
from bertjax.runs._examples import examples_factory, first_shape, has_heldout
from bertjax.runs._session import train_in
from bertjax.runs._settings import PhaseSettings
from bertjax.runs._summary import finish
from bertjax.runs._text import WeightedStore, huggingface_directory, prepare_stores, prepare_tokenizer
from bertjax.runs._training import Training, build_training
from bertjax.text.tokenizer import Tokenizer
from bertjax.train.evaluate import Evaluator
from bertjax.train.loop import Phase
from bertjax.train.record import PRETRAINING as REPORTING
from bertjax.train.state import TrainState, create_state, replace_params
from bertjax.train.step import make_eval_step


def run(config: ConfigDict, workdir: str) -> None:
    """Pre-trains; the same call in the same workdir continues.

    Raises:
      UserError: see docs/pretraining.md.
      PreemptedError: SIGTERM or Ctrl-C, after saving.
      NonFiniteError: three steps in a row were not finite.
    """
    folder = pathlib.Path(workdir)
    _check_before_compute(config)
    mesh = make_mesh(config.mesh, claim_devices())
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 'trains in this workdir'):
        _pretrain(config, folder, mesh)


def _pretrain(config: ConfigDict, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> None:
    tokenizer = prepare_tokenizer(config, folder, print)
    stores = prepare_stores(config, folder, tokenizer, print)
    model = settings.model_config(config, tokenizer.vocab_size)
    settings.check_mesh(model, mesh)
    training = build_training(config, model, mesh)
    examples_of = examples_factory(config, stores, tokenizer, folder)
    first = first_shape(config)
    total = settings.total_steps(config, examples_of(*first, 'train', 0).cycle_length // config.pair_plans)
    resolved = settings.phases(config, total)
    for phase in resolved:
        settings.check_rows(phase, row_shards(mesh))
    plan = _plain_config(config, total, tokenizer, stores)

    def fresh() -> TrainState:
        return _fresh_state(config, training, model)

    def stages() -> list[Phase]:
        print(_description(model, training, resolved, stores, tokenizer))
        _print_pairs(examples_of(*first, 'train', 0).report)
        return [_phase(training, phase, examples_of, stores) for phase in resolved]

    state = train_in(
        folder, config, plan, mesh, template=training.state, fresh=fresh, phases=stages, reporting=REPORTING
    )
    heldout = examples_of(*first, 'heldout', 0) if has_heldout(stores) else None
    finish(config, folder, plan, state.params, model, tokenizer, heldout)


def _check_before_compute(config: ConfigDict) -> None:
    """Everything in the config that can be wrong without a look at the text."""
    model = settings.model_config(config, max(config.vocab.size, 1))
    settings.pair_options(config)
    settings.mask_options(config)
    settings.rng_impl(config)
    if config.export:
        check_exportable(model)
    if config.epochs <= 0 and 'epoch' not in str(config.steps):
        total = settings.total_steps(config, None)
        for phase in settings.phases(config, total):
            make_schedule(phase.schedule, peak=phase.learning_rate, steps=total, warmup_fraction=phase.warmup_fraction)
        for key in ('eval_every', 'checkpoint_every'):
            duration(config[key], key, total=total)
    if config.log_every < 1:
        raise UserError('config.log_every', str(config.log_every), 'at least 1', 'for example --config.log_every=10')
    if config.init:
        huggingface_directory(config.init)


def _plain_config(config: ConfigDict, total: int, tokenizer: Tokenizer, stores: list[WeightedStore]) -> dict[str, Any]:
    """The resolved config: what config.json and every checkpoint hold."""
    resolved = plain(config)
    resolved['steps'] = total
    for key in ('eval_every', 'checkpoint_every'):
        resolved[key] = duration(config[key], key, total=total)
    resolved['model']['vocab_size'] = tokenizer.vocab_size
    resolved['fingerprints'] = {
        'tokenizer': tokenizer.fingerprint,
        'store': '+'.join(weighted.store.fingerprint for weighted in stores),
    }
    return resolved


def _fresh_state(config: ConfigDict, training: Training, model: BertConfig) -> TrainState:
    state = create_state(training.init, training.state, jax.random.key(settings.seed_of(config, 'init')))
    if not config.init:
        return state
    directory = huggingface_directory(config.init)
    imported = load_huggingface(directory, scan_layers=model.scan_layers, seed=settings.seed_of(config, 'init'))
    for name in ('vocab_size', 'num_layers', 'width', 'num_heads', 'mlp_dim', 'max_positions', 'num_segments'):
        theirs, ours = getattr(imported.config, name), getattr(model, name)
        if theirs != ours:
            mend = f'set --config.model.{name}={theirs}' if name != 'vocab_size' else 'leave config.tokenizer empty'
            raise UserError(f'config.model.{name}', str(ours), f'{theirs}, as in {directory}', mend)
    print(
        f'starting from {directory}' + (f'; freshly drawn: {", ".join(imported.missing)}' if imported.missing else '')
    )
    return replace_params(state, imported.params, training.state)


def _phase(training: Training, phase: PhaseSettings, examples_of, stores: list[WeightedStore]) -> Phase:
    shape = (phase.seq_len, phase.max_predictions)
    sharding = batch_sharding(training.mesh)

    def compile_step():
        compiled = training.lower(phase).compile()
        return lambda state, arrays: compiled(state, arrays)

    def load(first: int) -> Loader:
        examples = examples_of(*shape, 'train', phase.number)
        return Loader(examples, first=first, batch_size=phase.batch_size, sharding=sharding)

    evaluator = None
    if has_heldout(stores):
        heldout = examples_of(*shape, 'heldout', phase.number)
        evaluator = Evaluator(
            _jitted_eval(training),
            heldout,
            count=min(training.config.eval_examples, heldout.cycle_length),
            batch_size=phase.batch_size // phase.accumulate,
            sharding=sharding,
        )
    return Phase(
        number=phase.number,
        first_step=phase.first_step,
        last_step=phase.last_step,
        begin=training.reset_optimizer if phase.reset_optimizer else lambda state: state,
        compile=compile_step,
        load=load,
        evaluator=evaluator,
        flops_per_sequence=train_flops_per_sequence(training.model.config, *shape),
    )


def _jitted_eval(training: Training):
    step = jax.jit(make_eval_step(training.model, PRETRAINING))

    def evaluate(params, batch):
        with mesh_context(training.mesh):
            return step(params, batch)

    return evaluate


def _description(
    model: BertConfig,
    training: Training,
    phases: list[PhaseSettings],
    stores: list[WeightedStore],
    tokenizer: Tokenizer,
) -> str:
    devices = jax.devices()
    tokens = sum(weighted.store.split('train').num_tokens for weighted in stores)
    heldout = sum(weighted.store.split('heldout').num_documents for weighted in stores)
    lines = [
        f'{model.num_layers} layers, width {model.width}, {model.num_heads} heads: '
        f'{parameter_count(model):,} parameters',
        f'{tokenizer.family} vocabulary of {tokenizer.vocab_size:,}; {tokens:,} training tokens; '
        + (f'{heldout:,} documents held out' if heldout else 'NO document held out: nothing will be evaluated'),
        f'{len(devices)} x {devices[0].device_kind}, mesh '
        + ' x '.join(f'{name}={size}' for name, size in training.mesh.shape.items()),
    ]
    for phase in phases:
        lines.append(
            f'phase {phase.number}: {phase.last_step - phase.first_step:,} steps '
            f'of {phase.batch_size} x {phase.seq_len}, '
            f'learning rate {phase.learning_rate:g} {phase.schedule}, warm-up {phase.warmup_fraction:.1%}'
        )
    return '\n'.join([*lines, describe_decay(training.state.params)])


def _print_pairs(report: dict[str, Any]) -> None:
    for part in report.get('components', [report]):
        text = f'examples ({part["mode"]}): {part["examples_per_plan"]:,.0f} a pass, '
        text += f'{part["plans"]} passes that differ; '
        if part['is_next'] is not None:
            text += f'{part["is_next"]:.1%} IsNext, '
            text += f'{part["is_next_of_two"]:.1%} where a chunk has two sentences or more '
            text += f'({part["one_sentence"]:.1%} have one); '
        text += f'{part["real_positions"]:.1%} of positions real, {part["mean_a"]:.1f} tokens of A'
        print(text + (f' and {part["mean_b"]:.1f} of B' if part['mean_b'] is not None else ''))
