"""Damaged data files of tasks."""

import gzip
import json
import pathlib
import random
import shutil

from golden_runs import FIRST, SHORT, _keys

from breaking.mutations import mutate, mutate_lines, mutate_tree
from breaking.world import Outcome, World, check_trained

# {layout: (recipe, folder in `data`, keys of the recipe)}. If the folder is '', `_made` makes the files.
LAYOUTS = {
    'rte': ('glue.py:rte', 'RTE', {}),
    'stsb': ('glue.py:stsb', 'STS-B', {}),
    'classes': ('classify.py', 'classes', {'task__text_a': 'body', 'task__label': 'kind'}),
    'columns': ('ner.py', 'columns', {}),
    'squad': ('squad.py:v2', 'squad', {'task__max_query': 12}),
    'squad1': ('squad.py', '', {'task__max_query': 12}),
    'choice': ('swag.py:jsonl', 'choice', {}),
    'swag': ('swag.py', '', {}),
    'sick_e': ('sick.py:e', '', {}),
    'sick_r': ('sick.py:r', '', {}),
    'relation': ('relation.py', '', {}),
    'marked': ('relation.py:starts', '', {}),
    'multi_label': ('multi_label.py', '', {}),
    'lists': ('multi_label.py', '', {}),
}
# {trained model: (recipe that uses it, its input file, keys of the recipe)}.
INFERENCE = {
    'rte': ('glue.py:rte', 'pairs.txt', {'run': 'predict'}),
    'classification': ('classify.py', 'texts.txt', {'run': 'predict'}),
    'tagging': ('ner.py', 'words.txt', {'run': 'predict'}),
    'squad': ('squad.py:v2', 'squad/dev-v2.0.json', {'run': 'predict'}),
    'choice': ('swag.py:jsonl', 'choice/dev.jsonl', {'run': 'predict'}),
    'extract': ('extract.py', 'texts.txt', {'extract__pool': 'none'}),
    'fill': ('fill.py', 'texts.txt', {'fill__ask': 'score'}),
    'attention': ('attention.py', 'texts.txt', {}),
}
FULL = 12  # every 12th attempt trains, evaluates and exports


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Fine-tunes on damaged files. The run must refuse in one line, or be able to train. Some attempts train."""
    rng = random.Random(f'{seed} tasks {number}')
    world.trained('rte')  # also makes the encoder
    if rng.random() < 0.2:
        return _infer(world, rng, number)
    root = world.make_folder(f'task-{number}')
    kind = rng.choice(list(LAYOUTS))
    recipe, source, keys = LAYOUTS[kind]
    data = root / 'data'
    if source:
        shutil.copytree(world.folder / 'data' / source, data)
    else:
        data.mkdir()
        for name, text in _made(kind).items():
            (data / name).write_text(text, encoding='utf-8')
    files = sorted(data.iterdir())
    changed = [_damage_file(rng.choice(files), rng) for _ in range(rng.choice((1, 1, 2)))]
    full = number % FULL == 0
    verb = rng.choice((*['finetune'] * 5, 'baseline', 'doctor')) if not full else 'finetune'
    settings = SHORT | {'data': data, 'run': verb, 'steps': 2, 'eval_every': 0, 'checkpoint_every': 0} | keys
    words = (f'--config={world.repository}/configs/{recipe}', f'--workdir={root / "run"}', *_keys(**settings))
    ended = world.call(*words, training=full)
    what = f'{kind} {verb}: {", ".join(changed)}'
    wrong = ended.wrong
    if not wrong and full and ended.status == 0:
        wrong = check_trained(root / 'run')
    if not wrong and ended.status and ((root / 'run' / 'export').exists() or (root / 'run' / 'checkpoints').exists()):
        wrong = f'refused after computing: {ended.err.strip()[-200:]}'
    if wrong:
        return Outcome(False, f'{what}: {wrong}')
    shutil.rmtree(root)
    return Outcome(True, f'{what}: {ended.err.strip().splitlines()[-1] if ended.status else "ready"}')


def _infer(world: World, rng: random.Random, number: int) -> Outcome:
    """Uses a trained model on a damaged input file. The run must refuse in one line, or finish."""
    root = world.make_folder(f'task-{number}')
    kind = rng.choice(list(INFERENCE))
    recipe, source, keys = INFERENCE[kind]
    input_file = root / pathlib.Path(source).name
    shutil.copy(world.folder / 'data' / source, input_file)
    changed = _damage_file(input_file, rng)
    workdir = world.trained(kind) if 'run' in keys else root / 'run'
    settings = {'input': input_file} | ({} if 'run' in keys else {'init': world.trained(FIRST)}) | keys
    words = (f'--config={world.repository}/configs/{recipe}', f'--workdir={workdir}', *_keys(**settings))
    ended = world.call(*words)
    what = f'inference {kind}: {changed}'
    if ended.wrong:
        return Outcome(False, f'{what}: {ended.wrong}')
    shutil.rmtree(root)
    return Outcome(True, f'{what}: {ended.err.strip().splitlines()[-1] if ended.status else "ready"}')


def _damage_file(path: pathlib.Path, rng: random.Random) -> str:
    """Damages a file; returns a description of the damage."""
    if not path.is_file():
        return f'{path.name} again'
    kind = rng.choice(('lines', 'lines', 'lines', 'letters', 'tree', 'tree', 'tree', 'bytes', 'whole'))
    content, suffix, tree = path.read_bytes(), path.suffix, None
    try:
        text = content.decode()
        lines = text.split('\n')
        if suffix in ('.json', '.jsonl'):
            tree = json.loads(text) if suffix == '.json' else [json.loads(line) for line in lines if line]
    except ValueError:
        kind = 'bytes'
    if kind in ('tree', 'letters') and not text:
        kind = 'whole'
    if kind == 'tree' and tree is None:
        kind = 'lines'
    if kind == 'lines':
        separator = '\t' if '\t' in text else ',' if suffix == '.csv' else ' '
        text = '\n'.join(mutate_lines(lines, rng, separator))
    elif kind == 'letters':
        text = mutate(text, rng, 8)
    elif kind == 'tree':
        tree = mutate_tree(tree, rng)
        text = json.dumps(tree) if suffix == '.json' or not isinstance(tree, list) else '\n'.join(map(json.dumps, tree))
    if kind in ('lines', 'letters', 'tree'):
        path.write_bytes(text.encode('utf-8', 'surrogatepass'))
        return f'{path.name} {kind}'
    if kind == 'bytes':
        damaged, at = bytearray(content), rng.randrange(len(content) + 1)
        damaged[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(1, 4))
        path.write_bytes(bytes(damaged))
        return f'{path.name} {kind}'
    return f'{path.name} {rng.choice(_WHOLE)(path, content)}'


def _gone(path: pathlib.Path, content: bytes) -> str:
    path.unlink()
    return 'gone'


def _folder(path: pathlib.Path, content: bytes) -> str:
    path.unlink()
    path.mkdir()
    return 'a folder'


def _rewritten(name: str, change):
    def damage(path: pathlib.Path, content: bytes) -> str:
        path.write_bytes(change(content))
        return name

    return damage


_WHOLE = (
    _gone,
    _folder,
    _rewritten('empty', lambda content: b''),
    _rewritten('its first line', lambda content: content.split(b'\n')[0]),
    _rewritten('with a byte order mark', lambda content: b'\xef\xbb\xbf' + content),
    _rewritten('with CRLF', lambda content: content.replace(b'\n', b'\r\n')),
    _rewritten('with CR', lambda content: content.replace(b'\n', b'\r')),
    _rewritten('in UTF-16', lambda content: content.decode('utf-8', 'replace').encode('utf-16')),
    _rewritten('compressed', gzip.compress),
    _rewritten('without line ends', lambda content: content.replace(b'\n', b' ')),
    _rewritten('in capitals', bytes.upper),
    _rewritten('twice', lambda content: content * 2),
    _rewritten('quoted', lambda content: content.replace(b'\t', b'"\t"').replace(b'\n', b'"\n"')),
    _rewritten('without tabs', lambda content: content.replace(b'\t', b' ')),
    _rewritten('cut', lambda content: content[: len(content) // 2]),
    _rewritten('an endless line', lambda content: content + b'x ' * 200_000),
)


def _made(kind: str) -> dict[str, str]:
    """Returns {file name: content} for a layout that golden_runs lacks."""
    counts = {'train': 24, 'dev': 8, 'test': 5}
    if kind == 'squad1':
        answer = {'text': 'house', 'answer_start': 33}
        questions = [{'id': str(i), 'question': 'where', 'answers': [answer] * (1 + i % 2)} for i in range(24)]
        context = 'the red bird sings near the old  house.'
        data = {'data': [{'title': 'birds', 'paragraphs': [{'context': context, 'qas': questions}]}], 'version': '1.1'}
        return {f'{name}-v1.1.json': json.dumps(data) for name in ('train', 'dev')}
    if kind.startswith('sick'):
        judged = ('ENTAILMENT', 'NEUTRAL', 'CONTRADICTION')
        head = 'pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment'
        rows = [f'{i}\tthe bird {i} sings\tthe old house\t{1 + i % 9 / 2}\t{judged[i % 3]}' for i in range(24)]
        names = {'train': 'SICK_train.txt', 'dev': 'SICK_trial.txt', 'test': 'SICK_test_annotated.txt'}
        return {name: '\n'.join([head, *rows[: counts[split]]]) + '\n' for split, name in names.items()}
    if kind == 'swag':
        head = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label'
        row = '{0},v,{0},the bird sings. the wind,the bird sings.,the wind,gold,falls,runs,is red,sings,{1}'
        rows = [row.format(i, i % 4) for i in range(24)]
        return {f'{name}.csv': '\n'.join([head, *rows[:count]]) + '\n' for name, count in counts.items()}
    if kind == 'multi_label':
        labels = ('color|bird', 'bird', '', 'age|color')
        rows = [f'the {("red", "old")[i % 2]} bird {i}\t{labels[i % 4]}' for i in range(24)]
        return {f'{name}.tsv': '\n'.join(['text\tlabel', *rows[:count]]) + '\n' for name, count in counts.items()}
    rows = []
    for i in range(24):
        if kind == 'relation':
            spans = {'subj_start': 1, 'subj_end': 2, 'obj_start': 4, 'obj_end': 4}
            types = {'subj_type': 'BIRD', 'obj_type': 'PLACE', 'relation': ('no_relation', 'near')[i % 2]}
            rows.append({'id': str(i), 'token': ['the', 'red', 'bird', 'near', 'house', str(i)]} | spans | types)
        elif kind == 'marked':
            rows.append({'text': f'the << red bird >> near [[ house ]] {i}', 'label': ('near', 'far')[i % 2]})
        else:
            rows.append({'text': f'the old bird {i}', 'label': (['color', 'bird'], ['bird'], [], ['age'])[i % 4]})
    if kind == 'relation':
        return {f'{name}.json': json.dumps(rows[:count]) for name, count in counts.items()}
    return {f'{name}.jsonl': '\n'.join(map(json.dumps, rows[:count])) + '\n' for name, count in counts.items()}
