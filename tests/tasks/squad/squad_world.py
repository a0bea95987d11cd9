"""A tokenizer of letters and small SQuAD files, so that positions are easy to count."""

import json
import pathlib
import string

import numpy as np

from bertjax.data.features import Features
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.text.bert_settings import bert_settings
from bertjax.text.wordpiece import WordPieceTokenizer

LETTERS = string.ascii_lowercase + string.digits + string.punctuation
WORDS = ['red', 'house', 'the', 'who', 'what', 'is', 'in', 'it']


def letters_tokenizer() -> WordPieceTokenizer:
    """Returns a tokenizer with a few words and all letters: 'red fox' is red f ##o ##x."""
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS, *LETTERS, *(f'##{letter}' for letter in LETTERS)]
    return WordPieceTokenizer(bert_settings(pieces, lowercase=True))


def ask(context: str, answer: str | None = None, start: int = -1, **texts: str) -> SquadQuestion:
    """Returns a question whose answer is at `start`, or at its first occurrence; None means no answer."""
    texts = {'id': 'q', 'question': 'who is it', **texts}
    if answer is None:
        return SquadQuestion(context=context, answers=(), **texts)
    start = context.find(answer) if start < 0 else start
    return SquadQuestion(context=context, answers=(answer,), starts=(start,), **texts)


def qa(name: str = 'q', answers: tuple = (('red', 0),), **more) -> dict:
    """Returns a question of SQuAD's JSON; an answer is (text, start)."""
    answers = [{'text': text, 'answer_start': start} for text, start in answers]
    return {'id': name, 'question': 'who is it', 'answers': answers, **more}


def squad_json(*paragraphs: dict) -> dict:
    return {'version': '1.1', 'data': [{'title': 't', 'paragraphs': list(paragraphs)}]}


def write(path: pathlib.Path, content: dict) -> pathlib.Path:
    path.write_text(json.dumps(content, ensure_ascii=False), 'utf-8')
    return path


def oracle(features: Features, seed: int = 0, strength: float = 50.0) -> dict[str, list[np.ndarray]]:
    """Returns logits that are highest at the targets of `features`, with noise."""
    draw = np.random.default_rng(seed)
    outputs = {}
    for name in ('start', 'end'):
        rows = [draw.normal(size=length).astype(np.float32) for length in features.sequence_lengths]
        for row, target in zip(rows, features.row[name], strict=True):
            row[target] += strength
        outputs[f'{name}_logits'] = rows
    return outputs


GOOD = squad_json({'context': 'red house', 'qas': [qa()]})
