"""Small edits of texts and JSON trees, like those of a person or a broken program."""

import random
from typing import Any

# Values that most keys and fields do not allow.
VALUES = ('', ' ', None, True, False, 0, -1, 7, 2.5, -0.0, 1e400, float('nan'), 10**30, [], {}, [[]], ['a'], {'a': 1})
VALUES += ('abc', '\0', '\x1b[31m', '\ud800', 'ä' * 300, '[MASK]', '[SEP]', '\u202e', '\n', '1', '1.0', 'nan', '-')
PIECES = ('', ' ', '\t', '\n', '\n\n', '\r\n', '"', "'", ',', ';', '|', '=', ':', '.', '-', '0', '9' * 20, 'e', '\0')
PIECES += (
    '\ufeff',
    '(',
    ')',
    '[',
    ']',
    '{',
    '}',
    'None',
    'nan',
    '\x1b[2J',
    '\u2028',
    '\xa0',
    '\u00ad',
    'ﬁ',
    '\U0001f600',
    '#',
)


def mutate(text: str, rng: random.Random, most: int = 3) -> str:
    """Returns `text` after one to `most` random edits of characters."""
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(text) + 1)
        end = at + rng.choice((0, 0, 1, 1, 2, 9))
        new = rng.choice((rng.choice(PIECES), text[at:end] * 2, text[at:end][::-1], text[at:end].swapcase()))
        text = text[:at] + new + text[end:]
    return text


def mutate_lines(lines: list[str], rng: random.Random, separator: str) -> list[str]:
    """Returns lines of fields after one random edit of lines or fields."""
    lines, at = list(lines), rng.randrange(len(lines))
    fields, column = lines[at].split(separator), rng.randrange(8)
    everywhere = rng.random() < 0.3
    match rng.choice(('drop', 'twice', 'blank', 'swap', 'cut', 'field', 'column', 'more', 'fewer', 'text')):
        case 'drop':
            del lines[at]
        case 'twice':
            lines[at:at] = lines[at : at + 1] * rng.choice((1, 1, 5))
        case 'blank':
            lines[at:at] = rng.choice(([''], [' '], ['', '', ''], [separator], ['-DOCSTART-'], ['#']))
        case 'swap':
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 'cut':
            del lines[rng.choice((0, 1, 2, at)) :]
        case 'field':
            fields[column % len(fields)] = str(rng.choice(VALUES))
            lines[at] = separator.join(fields)
        case 'column':
            value = str(rng.choice(VALUES))
            for number in range(rng.choice((0, 1)), len(lines)):
                fields = lines[number].split(separator)
                if rng.random() < (1.0 if everywhere else 0.5):
                    fields[column % len(fields)] = value
                lines[number] = separator.join(fields)
        case 'more':
            chosen = range(len(lines)) if everywhere else [at]
            for number in chosen:
                lines[number] += separator + 'more'
        case 'fewer':
            chosen = range(len(lines)) if everywhere else [at]
            for number in chosen:
                fields = lines[number].split(separator)
                del fields[column % len(fields)]
                lines[number] = separator.join(fields)
        case 'text':
            lines[at] = mutate(lines[at], rng)
    return lines


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """Returns a JSON tree after one random change: a node is edited, renamed, repeated or removed."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.1:
        return rng.choice((*VALUES, tree, [tree], {'a': tree}, str(tree), mutate(str(tree), rng)))
    if isinstance(tree, list):
        at, tree = rng.randrange(len(tree)), list(tree)
        if rng.random() < 0.1:
            tree[at:at] = rng.choice(([tree[at]], [rng.choice(VALUES)]))
        elif rng.random() < 0.1:
            del tree[at : at + rng.choice((1, 1, len(tree)))]
        else:
            tree[at] = mutate_tree(tree[at], rng)
        return tree
    key, tree = rng.choice(list(tree)), dict(tree)
    value = tree.pop(key)
    if rng.random() < 0.15:
        return tree | rng.choice(({}, {mutate(key, rng): value}, {'': value}))
    return tree | {key: mutate_tree(value, rng)}
