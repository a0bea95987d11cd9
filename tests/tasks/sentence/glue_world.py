"""Writes small GLUE files, with quotation marks that a CSV reader would join."""

import pathlib

from bertjax.tasks.sentence.glue_table import TASKS

ROWS = 6
_PARSES = ['prompt', 'pair', 'genre', '(', '(', 'n/a', '(ROOT)']
_STSB = ['genre', 'filename', 'year', 'old_index', 'source1', 'source2']
_MNLI = ['promptID', 'pairID', 'genre', 'sentence1_binary_parse', 'sentence2_binary_parse', 'sentence1_parse']
_MNLI += ['sentence2_parse', 'sentence1', 'sentence2']


def text(split: str, i: int, side: int = 1) -> str:
    """Returns a unique text: with an open quotation mark, with one in the middle, or without any."""
    return (f'"{split} {i}', f'it \'s {split}" {i}', f'{split} is {i}\u0085x')[i % 3] + ('' if side == 1 else ' too')


def label(task: str, i: int) -> str:
    """Returns the label of row i as it is in the files."""
    names = TASKS['mnli' if task == 'ax' else task].file_labels
    return names[i % len(names)] if names else f'{i * 0.8:.3f}'


def write_glue(root: pathlib.Path) -> pathlib.Path:
    for task in (*TASKS, 'ax'):
        for split in ('train', 'dev', 'test'):
            _write(root, task, split)
    return root


def _write(root: pathlib.Path, task: str, split: str) -> None:
    labeled = split != 'test'
    rows = [(text(split, i), text(split, i, 2), label(task, i)) for i in range(ROWS)]
    folder, names = 'diagnostic' if task == 'ax' else TASKS[task].title, [f'{split}.tsv']
    if task == 'cola':
        header = None if labeled else ['index', 'sentence']
        rows = [['gj04', y, '*' * i, a] if labeled else [i, a] for i, (a, _, y) in enumerate(rows)]
    elif task == 'sst2':
        header = ['sentence', 'label'] if labeled else ['index', 'sentence']
        rows = [[a, y] if labeled else [i, a] for i, (a, _, y) in enumerate(rows)]
    elif task == 'mrpc':
        header = ['\ufeffQuality' if labeled else 'index', '#1 ID', '#2 ID', '#1 String', '#2 String']
        rows = [[y if labeled else i, 100 + i, 200 + i, *pair] for i, (*pair, y) in enumerate(rows)]
    elif task == 'stsb':
        header = ['index', *_STSB, 'sentence1', 'sentence2', *['score'] * labeled]
        rows = [[i, *'abcdef', *pair, *[y] * labeled] for i, (*pair, y) in enumerate(rows)]
    elif task == 'qqp':
        header = ['id', *['qid1', 'qid2'] * labeled, 'question1', 'question2', *['is_duplicate'] * labeled]
        rows = [[i, *[7, 8] * labeled, *pair, *[y] * labeled] for i, (*pair, y) in enumerate(rows)]
    elif task == 'mnli':
        names = ['train.tsv'] if split == 'train' else [f'{split}_matched.tsv', f'{split}_mismatched.tsv']
        extra = {'train': ['label1'], 'dev': ['label1', 'label2', 'label3', 'label4', 'label5'], 'test': []}[split]
        header = ['index', *_MNLI, *extra, *['gold_label'] * labeled]
        rows = [[i, *_PARSES, *pair, *['n/a'] * len(extra), *[y] * labeled] for i, (*pair, y) in enumerate(rows)]
    elif task == 'ax':
        if labeled:
            return
        names, header = ['diagnostic.tsv'], ['index', 'sentence1', 'sentence2']
        rows = [[i, *pair] for i, (*pair, _) in enumerate(rows)]
    else:
        first = ['question', 'sentence'] if task == 'qnli' else ['sentence1', 'sentence2']
        header = ['index', *first, *['label'] * labeled]
        rows = [[i, *pair, *[y] * labeled] for i, (*pair, y) in enumerate(rows)]
    lines = ['\t'.join(map(str, row)) + '\n' for row in ([header] if header else []) + rows]
    for name in names:
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(''.join(lines).encode())
