"""What run=fill is asked of each text, and its answer as an object of JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from bertjax.errors import UserError
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.input import Item, texts_of
from bertjax.inference.masked import follow_probabilities
from bertjax.inference.runner import Runner
from bertjax.inference.score import score_texts
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row

REQUIRED_HEAD = {'pairs': 'nsp'}  # else 'mlm'
# The options that not every question takes, as they stand in the recipe.
DEFAULTS = {
    'top_k': 5,
    'jointly': False,
    'tokens': 20,
    'temperature': 1.0,
    'sample': 50,
    'seed': 0,
    'field': 'text',
    'pair_field': 'pair',
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options of config.fill that would change nothing.

    Raises:
      UserError: one of USUAL is another than usual, where what is asked does not take it.
    """
    ask, of_file = options['ask'], not options['text']
    continued, drawn = ask == 'continue', options['temperature'] > 0
    takes = {
        'top_k': (ask == 'masks' and not options['jointly'], "ask='masks', and jointly=False"),
        'jointly': (ask == 'masks', "ask='masks'"),
        'tokens': (continued, "ask='continue'"),
        'temperature': (continued, "ask='continue'"),
        'sample': (continued and drawn, "ask='continue', and a temperature above 0"),
        'seed': (continued and drawn, "ask='continue', and a temperature above 0"),
        'field': (of_file, 'the records of config.input'),
        'pair_field': (of_file and ask == 'pairs', "ask='pairs' of the records of config.input"),
    }
    for name, usual in DEFAULTS.items():
        taken, by = takes[name]
        if not taken and options[name] != usual:
            found = f'{options[name]!r}, which changes nothing here'
            raise UserError(f'config.fill.{name}', found, f'it only with {by}', 'leave it out')


@dataclasses.dataclass(frozen=True)
class FillRequest:
    """What is asked of texts.

    Attributes:
      runner: of the model.
      ask: 'masks', 'score', 'pairs' or 'continue'.
      max_length: longer texts are cut to so many tokens.
      top_k, jointly: of 'masks'.
      tokens, temperature, sample, seed: of 'continue'.
    """

    runner: Runner
    ask: str
    max_length: int
    top_k: int
    jointly: bool
    tokens: int
    temperature: float
    sample: int
    seed: int

    def check(self) -> None:
        """Refuses a model without the head that answers.

        Raises:
          UserError: it has none.
        """
        self.runner.model.require(REQUIRED_HEAD.get(self.ask, 'mlm'), f"config.fill.ask='{self.ask}'")

    def check_texts(self, items: Sequence[Item]) -> None:
        """Refuses texts that there is no answer to.

        Raises:
          UserError: one without mask, where masks are asked for.
        """
        if self.ask == 'masks':
            self._masked(items)

    def answers(self, items: Sequence[Item], advance: Advance | None = None) -> list[dict[str, Any]]:
        """An object for each item that is not blank: its text or texts, and the answer.

        Args:
          items: rows, and blank ones among them.
          advance: is told how many more are done; None for a progress bar.
        """
        _, texts, seconds = texts_of(items)
        if not texts:
            return []
        if self.ask == 'score':
            found = score_texts(self.runner, texts, self.max_length, advance)
            return [{'text': text, **score} for text, score in zip(texts, found, strict=True)]
        if self.ask == 'pairs':
            found = follow_probabilities(self.runner, texts, seconds, self.max_length, advance).tolist()
            return [{'text': a, 'pair': b, 'probability': p} for a, b, p in zip(texts, seconds, found, strict=True)]
        if self.ask == 'continue':
            chosen = {'tokens': self.tokens, 'temperature': self.temperature, 'top_k': self.sample, 'seed': self.seed}
            found = extend(self.runner, texts, **chosen, max_length=self.max_length, advance=advance)
            return [{'text': text, 'continued': longer} for text, longer in zip(texts, found, strict=True)]
        if self.jointly:
            found = fill_jointly(self.runner, self._masked(items), advance)
            return [{'text': text, 'filled': own.pop('text'), **own} for text, own in zip(texts, found, strict=True)]
        found = fill_each(self.runner, self._masked(items), self.top_k, advance)
        return [{'text': text, 'masks': masks} for text, masks in zip(texts, found, strict=True)]

    def _masked(self, items: Sequence[Item]) -> list[MaskedText]:
        tokenizer, longest = self.runner.model.tokenizer, self.max_length
        return [MaskedText(item.values[0], item.where, tokenizer, longest) for item in items if isinstance(item, Row)]


def table(answer: dict[str, Any]) -> Table:
    """An answer as a person reads it."""
    table = Table(title=escape(answer['text']), title_justify='left', box=None, pad_edge=False)
    if 'masks' in answer:
        several = len(answer['masks']) > 1
        for name in (*(('mask',) if several else ()), 'probability', 'token', 'text'):
            table.add_column(name, justify='right' if name in ('mask', 'probability') else 'left')
        for number, mask in enumerate(answer['masks'], 1):
            for filling in mask:
                cells = (f'{filling["probability"]:.4f}', escape(filling['token']), escape(filling['text']))
                table.add_row(*((str(number),) if several else ()), *cells)
        return table
    table.show_header = False
    for name, value in answer.items():
        if name != 'text':
            table.add_row(name.replace('_', ' '), escape(_shown(value)))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ' '.join(map(_shown, value))
    return f'{value:,.4f}' if isinstance(value, float) else str(value)
