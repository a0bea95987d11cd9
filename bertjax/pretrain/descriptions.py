"""The lines about phases, masks and pairs that a pre-training run prints at its start, with warnings."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.settings import PretrainingSettings

# Training on pairs has little effect if more than this share of the chunks has a single sentence. In Wikipedia, a tenth
# of the chunks of 128 tokens has a single sentence.
_MAX_SINGLE_SHARE = 0.5


def describe_phases(phases: Sequence[PretrainingPhase]) -> list[str]:
    """Returns a line about the steps, batches and learning rate of each phase."""
    lines = []
    for phase in phases:
        rows = f'{phase.batch_size_start} to {phase.batch_size}' if phase.batch_ramp else phase.batch_size
        lines.append(
            f'phase {phase.number}: {phase.last_step - phase.first_step:,} steps '
            f'of {rows} x {phase.seq_len}{" packed" if phase.packed else ""}, '
            f'learning rate {phase.learning_rate:g} {phase.schedule}, warm-up {phase.warmup_fraction:.1%}'
        )
    return lines


def describe_masks(
    settings: PretrainingSettings, phases: Sequence[PretrainingPhase], pieces_per_word: float
) -> list[str]:
    """Returns lines about mask rates other than config.masking.eval_rate, limits on masks, and causal examples.

    `pieces_per_word` is the mean number of pieces of a word, in the token store where this mean is largest.
    """
    lines, masking = [], settings.masking
    rates = [(phase.mask_rate, phase.final_mask_rate) for phase in phases]
    if set(itertools.chain(*rates)) != {masking.eval_rate}:
        each = ', then '.join(dict.fromkeys(' to '.join(dict.fromkeys(f'{x:.0%}' for x in pair)) for pair in rates))
        lines.append(f'masked positions: {each} in training, {masking.eval_rate:.0%} in evaluation')
    for phase in phases:
        rate, length, limit = max(phase.mask_rate, phase.final_mask_rate), phase.seq_len, phase.max_predictions
        if limit < int(rate * length):
            key = phase.keys['max_predictions']
            warning = (
                f'warning: config.{key}={limit} limits the masks of full rows to {limit / length:.0%} of '
                f'{length} positions, not {rate:.0%}: set --config.{key}={math.ceil(rate * length)}'
            )
            lines += [warning] if warning not in lines else []
    if masking.unit != 'token' and pieces_per_word > settings.max_predictions:
        lines.append(
            f'warning: words have {pieces_per_word:.0f} pieces on average, but at most {settings.max_predictions} are '
            'masked, always the first ones: set --config.masking.unit=token'
        )
    shifted = settings.model.shifted_predictions
    if masking.causal_share or shifted:
        rows = 'each token' if shifted else 'each token of a causal example'
        share = f'{masking.causal_share:.0%} of the examples are causal'
        lines.append(f'{share}; {rows} is predicted from the position before it')
    return lines


def describe_pairs(report: dict[str, Any]) -> list[str]:
    """Returns a line about the examples of each token store, and warnings. `report` is the report of the examples."""
    parts = report.get('components', [report])
    return [*map(_describe_pairs, parts), *filter(None, map(_warn_of_pairs, parts))]


def _describe_pairs(part: dict[str, Any]) -> str:
    text = f'examples ({part["mode"]}): {part["examples_per_plan"]:,.0f} per pass, {part["plans"]} distinct passes; '
    if part['is_next'] is not None:
        text += f'{part["is_next"]:.1%} IsNext; '
    if part['one_sentence'] is not None:
        text += f'{part["one_sentence"]:.1%} of the chunks have one sentence; '
    if 'examples_per_row' in part:
        text += f'{part["examples_per_row"]:.2f} per packed row, {part["rows_per_plan"]:,.0f} rows per pass; '
    text += f'{part["real_positions"]:.1%} of positions are tokens'
    if 'examples_per_row' in part:
        text += f' ({part["unpacked_real_positions"]:.1%} unpacked)'
    return text


def _warn_of_pairs(part: dict[str, Any]) -> str:
    """Returns a warning if most chunks have a single sentence and so cannot be split into A and B, else ''."""
    single = part['one_sentence']
    if single is None or single <= _MAX_SINGLE_SHARE:
        return ''
    share = 'all chunks' if single == 1 else f'{single:.1%} of the chunks'
    if part['mode'] == 'nsp':
        effect = 'their B comes from another document, so NSP learns to answer NotNext and little else'
    elif single < 1:
        effect = 'they have no B, so SOP learns only from the other chunks'
    else:
        effect = 'there is no B, so SOP learns nothing'
    return (
        f'warning: {share} have a single sentence: {effect}. Rows keep {part["kept_tokens"]:.0%} of the tokens of '
        'their sentences. Set config.pairs.mode=full_sentences to train on all tokens, without pairs. For more '
        'sentences in a chunk, write one sentence per line and set config.corpus_options.split_sentences=False, choose '
        'another splitter (config.corpus_options.sentences), use blank lines only between documents, or increase '
        'config.seq_len.'
    )
