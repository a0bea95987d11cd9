"""The requests of run=fill, and their answers as JSON objects."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from bertjax.config.inference import FillKeys, name_keys
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.input import Item, nonblank_texts
from bertjax.inference.runner import Runner
from bertjax.inference.score import next_sentence_probabilities, score_texts
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row
from bertjax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class FillRequest:
    """A request of run=fill. Raises a UserError if the model lacks the head that the request needs."""

    runner: Runner
    options: FillKeys

    def __post_init__(self):
        head = 'nsp' if self.options.ask == 'pairs' else 'mlm'
        self.runner.model.require(head, f"config.fill.ask='{self.options.ask}'")

    def check_texts(self, items: Sequence[Item]) -> None:
        """Raises a UserError if the request fills masks, but a text has no mask or would lose one by truncation."""
        if self.options.ask == 'masks':
            self._masked_texts(items)

    def answers(self, items: Sequence[Item], advance: Advance | None = None) -> list[dict[str, Any]]:
        """Returns a dict with the text and its answer for each item that is not blank."""
        _, texts, seconds = nonblank_texts(items)
        if not texts:
            return []
        options = self.options
        if options.ask == 'score':
            scores = score_texts(self.runner, texts, advance)
            return [{'text': text, **score} for text, score in zip(texts, scores, strict=True)]
        if options.ask == 'pairs':
            follows = next_sentence_probabilities(self.runner, texts, seconds, advance).tolist()
            return [{'text': a, 'pair': b, 'probability': p} for a, b, p in zip(texts, seconds, follows, strict=True)]
        if options.ask == 'continue':
            sampling = {'temperature': options.temperature, 'top_k': options.sample, 'seed': options.seed}
            with name_keys('fill'):
                extended = extend(self.runner, texts, tokens=options.tokens, **sampling, advance=advance)
            return [{'text': text, 'continued': longer} for text, longer in zip(texts, extended, strict=True)]
        if options.jointly:
            results = fill_jointly(self.runner, self._masked_texts(items), advance)
            return [{'text': text, 'filled': r.pop('text'), **r} for text, r in zip(texts, results, strict=True)]
        fillings = fill_each(self.runner, self._masked_texts(items), options.top_k, advance)
        return [{'text': text, 'masks': masks} for text, masks in zip(texts, fillings, strict=True)]

    def _masked_texts(self, items: Sequence[Item]) -> list[MaskedText]:
        tokenizer, longest = self.runner.model.tokenizer, self.runner.max_length
        return [MaskedText(item.values[0], item.where, tokenizer, longest) for item in items if isinstance(item, Row)]


def answer_table(answer: dict[str, Any], tokenizer: Tokenizer) -> Table:
    """Returns an answer as a table for the terminal, with pieces as readable text."""
    table = Table(title=escape(answer['text']), title_justify='left', box=None, pad_edge=False)
    if 'masks' in answer:
        several = len(answer['masks']) > 1
        for name in (*(('mask',) if several else ()), 'probability', 'token', 'text'):
            table.add_column(name, justify='right' if name in ('mask', 'probability') else 'left')
        for number, mask in enumerate(answer['masks'], 1):
            for filling in mask:
                piece = tokenizer.piece_text(filling['token'])
                cells = (f'{filling["probability"]:.4f}', escape(piece), escape(filling['text']))
                table.add_row(*((str(number),) if several else ()), *cells)
        return table
    table.show_header = False
    if 'filled' in answer:
        answer = {**answer, 'tokens': [*map(tokenizer.piece_text, answer['tokens'])]}
    for name, value in answer.items():
        if name != 'text':
            table.add_row(name.replace('_', ' '), escape(_format(value)))
    return table


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ' '.join(map(_format, value))
    return f'{value:,.4f}' if isinstance(value, float) else str(value)
