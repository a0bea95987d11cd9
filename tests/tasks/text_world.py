"""Mails labeled as ham or spam, and helpers for the tests of tasks on texts."""

import numpy as np

from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.text.tokenizer import Tokenizer

LETTERS = 'abcdefghijklmnopqrstuvwxyz'
HAM = ['meet at noon', 'call me', 'the report is here', 'lunch', 'see you soon', 'ok']
SPAM = ['win cash now', 'free prize', 'cheap pills']
MAILS = [(mail, 'ham') for mail in HAM] + [(mail, 'spam') for mail in SPAM]


def learned(data, **options) -> ClassificationTask:
    task = ClassificationTask(str(data), options.pop('seq_len', 32), **options)
    task.learn(task.records('train'))
    return task


def sequences(features, tokenizer: Tokenizer) -> list[str]:
    """Returns the tokens of each row as a string, with ( for [CLS] and | for [SEP]."""
    rows = np.split(features.tokens, features.offsets[1:-1])
    marks = {'[CLS]': '(', '[SEP]': '|'}
    return [''.join(marks.get(tokenizer.pieces[i], tokenizer.pieces[i]) for i in row) for row in rows]
