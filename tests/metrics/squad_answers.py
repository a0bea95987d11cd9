"""Makes correct, nearly correct, wrong and empty answers to the questions of a SQuAD file."""

import json
import pathlib


def gold_and_answers(path: pathlib.Path) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
    """Returns {id: gold answers}, {id: answer} and {id: null odds}; some odds are equal."""
    gold, answers, odds = {}, {}, {}
    for article in json.loads(path.read_text('utf-8'))['data']:
        for paragraph in article['paragraphs']:
            words = paragraph['context'].split()
            for question in paragraph['qas']:
                n, texts = len(gold), [answer['text'] for answer in question['answers']]
                right = texts[n % len(texts)] if texts else ' '.join(words[n % 5 : n % 5 + 3])
                rules = [
                    right,
                    f'The {right.upper()}!',
                    f'{right} {words[n % len(words)]}',
                    ' '.join(words[n % 9 : n % 9 + 4]),
                    '',
                    right.split()[0],
                    'a',
                    right,
                ]
                gold[question['id']] = texts
                answers[question['id']] = rules[n % len(rules)]
                # Most questions without answer have higher odds.
                odds[question['id']] = (n * 7919 % 400) / 50 - 5 + 2 * (not texts)
    return gold, answers, odds
