"""The requests of run=fill, and their answers as JSON objects."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from bertjax.errors import UserError
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.input import Item, nonblank_texts
from bertjax.inference.masked_lm import next_sentence_probabilities
from bertjax.inference.runner import Runner
from bertjax.inference.score import score_texts
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row

REQUIRED_HEAD = {'pairs': 'nsp'}  # other requests need 'mlm'
# The defaults in the recipe of the options that only some requests use.
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
    """Checks that the request uses every option of DEFAULTS that config.fill changes.

    Raises:
      UserError: A changed option has no effect on the request.
    """
    ask, reads_file = options['ask'], not options['text']
    continues, samples = ask == 'continue', options['temperature'] > 0
    uses = {  # {option: (whether the request uses it, the settings that it requires)}
        'top_k': (ask == 'masks' and not options['jointly'], "ask='masks', and jointly=False"),
        'jointly': (ask == 'masks', "ask='masks'"),
        'tokens': (continues, "ask='continue'"),
        'temperature': (continues, "ask='continue'"),
        'sample': (continues and samples, "ask='continue', and a temperature above 0"),
        'seed': (continues and samples, "ask='continue', and a temperature above 0"),
        'field': (reads_file, 'the records of config.input'),
        'pair_field': (reads_file and ask == 'pairs', "ask='pairs' of the records of config.input"),
    }
    for name, default in DEFAULTS.items():
        used, settings = uses[name]
        if not used and options[name] != default:
            raise UserError(
                f'config.fill.{name}',
                found=f'{options[name]!r}, which has no effect on this request',
                expected=f'this option only with {settings}',
                fix='omit it',
            )


@dataclasses.dataclass(frozen=True)
class FillRequest:
    """A request to a masked language model about texts.

    Attributes:
      runner: The runner of the model.
      ask: 'masks', 'score', 'pairs' or 'continue'.
      max_length: The maximum length in tokens. Longer texts are truncated.
      top_k, jointly: Options of 'masks'.
      tokens, temperature, sample, seed: Options of 'continue'.
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
        """Checks that the model has the head that the request needs.

        Raises:
          UserError: The model lacks the head.
        """
        self.runner.model.require(REQUIRED_HEAD.get(self.ask, 'mlm'), f"config.fill.ask='{self.ask}'")

    def check_texts(self, items: Sequence[Item]) -> None:
        """Checks that the texts suit the request.

        Raises:
          UserError: `ask` is 'masks', but a text has no mask.
        """
        if self.ask == 'masks':
            self._masked_texts(items)

    def answers(self, items: Sequence[Item], advance: Advance | None = None) -> list[dict[str, Any]]:
        """Returns an object with the text and its answer for each non-blank item.

        `advance` is called with the number of newly finished items; None shows a progress bar.
        """
        _, texts, seconds = nonblank_texts(items)
        if not texts:
            return []
        if self.ask == 'score':
            scores = score_texts(self.runner, texts, self.max_length, advance)
            return [{'text': text, **score} for text, score in zip(texts, scores, strict=True)]
        if self.ask == 'pairs':
            follows = next_sentence_probabilities(self.runner, texts, seconds, self.max_length, advance).tolist()
            return [{'text': a, 'pair': b, 'probability': p} for a, b, p in zip(texts, seconds, follows, strict=True)]
        if self.ask == 'continue':
            options = {'tokens': self.tokens, 'temperature': self.temperature, 'top_k': self.sample, 'seed': self.seed}
            extended = extend(self.runner, texts, **options, max_length=self.max_length, advance=advance)
            return [{'text': text, 'continued': longer} for text, longer in zip(texts, extended, strict=True)]
        if self.jointly:
            results = fill_jointly(self.runner, self._masked_texts(items), advance)
            return [{'text': text, 'filled': r.pop('text'), **r} for text, r in zip(texts, results, strict=True)]
        fillings = fill_each(self.runner, self._masked_texts(items), self.top_k, advance)
        return [{'text': text, 'masks': masks} for text, masks in zip(texts, fillings, strict=True)]

    def _masked_texts(self, items: Sequence[Item]) -> list[MaskedText]:
        tokenizer, longest = self.runner.model.tokenizer, self.max_length
        return [MaskedText(item.values[0], item.where, tokenizer, longest) for item in items if isinstance(item, Row)]


def answer_table(answer: dict[str, Any]) -> Table:
    """Returns an answer as a table for the terminal."""
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
            table.add_row(name.replace('_', ' '), escape(_format(value)))
    return table


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ' '.join(map(_format, value))
    return f'{value:,.4f}' if isinstance(value, float) else str(value)
