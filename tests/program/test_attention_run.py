"""run=attention and bert.attention agree with a simple computation; its page is tested in a browser."""

import json
import math
import pathlib
import sys
from unittest import mock

import numpy as np
import pytest
from browsing import NARROW, WIDE, Browser
from running import Program
from safetensors import safe_open

import bertjax
from bertjax.commands import attention as verb
from bertjax.inference import attention as of_heads

RUN = {'recipe': 'configs/attention.py', 'small': False}
SENTENCES = [
    ('the old bird sings', (3, 3, 4, 0), ('det', 'amod', 'nsubj', 'root')),
    ('river runs near the house', (2, 0, 5, 5, 2), ('nsubj', 'root', 'case', 'det', 'obl')),
    ('wind falls', (2, 0), ('nsubj', 'root')),
    ('windowsill', (0,), ('root',)),
    ('stone falls under the light', (2, 0, 5, 5, 2), ('nsubj', 'root', 'case', 'det', 'obl')),
]


@pytest.fixture(scope='module')
def treebank(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    lines = []
    for text, heads, relations in SENTENCES:
        words = enumerate(zip(text.split(), heads, relations, strict=True), 1)
        lines += [f'# text = {text}', *(f'{i}\t{w}\t_\t_\t_\t_\t{h}\t{r}\t_\t_' for i, (w, h, r) in words), '']
    path = tmp_path_factory.mktemp('treebank') / 'a.conllu'
    path.write_text('\n'.join(lines), encoding='utf-8')
    return path


@pytest.fixture(scope='module')
def measured(program: Program, trained: pathlib.Path, treebank: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """WORKDIR/attention of a run on the treebank with chunks of two sentences and batches of two rows."""
    workdir = tmp_path_factory.mktemp('attention')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, '_CHUNK', 2)
        options = (f'--workdir={workdir}', f'--config.init={trained}', f'--config.input={treebank}')
        out = program.run(*options, '--config.batch_size=2', **RUN).stdout
    assert 'measured on 5 texts' in out and 'most pronounced heads' in out and 'nsubj' in out
    assert f'{workdir / "attention" / "attention.html"}\n' in out
    return workdir / 'attention'


def read_json(folder: pathlib.Path, name: str) -> dict:
    return json.loads((folder / f'{name}.json').read_text(encoding='utf-8'))


def words_of(pieces: list[str]) -> list[list[int]]:
    """Returns the positions of the pieces of each word; each special token is a word."""
    groups: list[list[int]] = []
    for i, piece in enumerate(pieces):
        groups[-1].append(i) if piece.startswith('##') else groups.append([i])
    return groups


def test_weights_of_a_text_do_not_depend_on_other_texts(bert):
    texts = [text for text, _, _ in SENTENCES]
    config = bert.config
    for text, (pieces, weights) in zip(texts, bert.attention(texts), strict=True):
        assert pieces == bert.pieces(text) and pieces[0] == '[CLS]' and pieces[-1] == '[SEP]'
        assert weights.shape == (config.num_layers, config.num_heads, len(pieces), len(pieces))
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(bert.attention(text).weights, weights, atol=1e-5)
    pair = bert.attention('the bird', 'a house')
    assert pair.pieces == bert.pieces('the bird', 'a house') and pair.weights.shape[-1] == len(pair.pieces)
    assert bert.attention([]) == []


def test_texts_of_one_padded_length_have_one_batch_shape(trained, monkeypatch):
    """The number of rows depends on the padded length, not on the real lengths, and is a power of two."""
    bert = bertjax.load(trained)
    monkeypatch.setattr(of_heads, '_MAX_BYTES', 24 * 4 * bert.config.num_layers * bert.config.num_heads * 16**2)
    for words in range(8, 13):
        bert.attention([' '.join(['the'] * words)] * 64)
    assert [size for name, size, _ in bert._runner._predictors if name == 'attention'] == [16]


def test_metrics_of_heads_agree_with_a_simple_computation(bert, measured):
    heads = read_json(measured, 'heads')
    found = [bert.attention(text) for text, _, _ in SENTENCES]
    lengths = [len(one.pieces) for one in found]
    assert (heads['texts'], heads['positions'], heads['left_out']) == (5, sum(lengths), 0)
    for row in heads['heads']:
        values_of = {name: [] for name in row if name not in ('layer', 'head')}
        for _, weights in found:
            for i, shares in enumerate(weights[row['layer'] - 1, row['head'] - 1].tolist()):
                entropy = -sum(x * math.log(x) for x in shares)
                values_of['entropy'].append(entropy)
                values_of['distance'].append(sum(x * abs(i - j) for j, x in enumerate(shares)))
                values_of['cls'].append(shares[0])
                values_of['sep'].append(shares[-1])
                values_of['same'].append(shares[i])
                values_of['previous'] += shares[i - 1 : i] if i else []
                values_of['next'] += shares[i + 1 : i + 2]
                values_of['cls_entropy'] += [entropy] if i == 0 else []
        for name, values in values_of.items():
            assert row[name] == pytest.approx(sum(values) / len(values), abs=2e-5), name


def test_accuracies_of_relations_agree_with_a_simple_computation(bert, measured):
    found = read_json(measured, 'relations')
    right: dict[tuple, int] = {}
    total: dict[str, int] = {}
    for text, heads, relations in SENTENCES:
        pieces, weights = bert.attention(text)
        words = words_of(pieces)[1:-1]
        assert len(words) == len(heads)
        for word, (head, relation) in enumerate(zip(heads, relations, strict=True)):
            if not head:
                continue
            total[relation] = total.get(relation, 0) + 1
            for layer in range(weights.shape[0]):
                for number in range(weights.shape[1]):
                    matrix = weights[layer, number].astype(np.float64)
                    between = [[matrix[np.ix_(a, b)].sum() / len(a) for b in words] for a in words]
                    for direction in ('dependent to head', 'head to dependent'):
                        score = lambda o: between[word][o] if direction[0] == 'd' else between[o][word]  # noqa: B023, E731
                        best = max((o for o in range(len(words)) if o != word), key=score)
                        key = (relation, layer + 1, number + 1, direction)
                        right[key] = right.get(key, 0) + (best == head - 1)
    rows = {row['relation']: row for row in found['relations']}
    assert set(rows) == {*total, 'all', 'all but punct'} and rows['all']['words'] == sum(total.values())
    for relation, count in total.items():
        row = rows[relation]
        hits_of_relation = {key: hits for key, hits in right.items() if key[0] == relation}
        assert row['words'] == count and row['accuracy'] == pytest.approx(
            max(hits_of_relation.values()) / count, abs=1e-6
        )
        assert right[relation, row['layer'], row['head'], row['direction']] == max(hits_of_relation.values())


def test_the_weights_file_has_all_weights_of_a_chunk(bert, measured):
    with safe_open(measured / 'weights.safetensors', 'np') as file:
        units = json.loads(file.metadata()['units'])
        assert len(units) == 2  # the sentences of the first chunk
        for i, (text, _, _) in enumerate(SENTENCES[:2]):
            assert units[i] == bert.pieces(text)
            np.testing.assert_allclose(file.get_tensor(str(i)), bert.attention(text).weights, atol=1e-5)


@pytest.mark.parametrize(('width', 'dark'), [(NARROW, True), pytest.param(WIDE, False, marks=pytest.mark.slow)])
def test_the_page_shows_the_computed_weights(bert, measured, browser: Browser, width, dark):
    number = 1  # the text that the test selects
    weights = bert.attention(SENTENCES[number][0]).weights
    pieces = bert.pieces(SENTENCES[number][0])
    layers, heads, count = weights.shape[:3]

    def look(page):
        page.wait_for_selector('#attention[data-ready]')
        assert page.locator('.thumbs canvas').count() == layers * heads
        best = read_json(measured, 'relations')['relations'][0]
        assert page.locator('#head-name').inner_text() == f'head {best["layer"]}-{best["head"]}'
        page.select_option('#text', str(number))
        page.wait_for_selector(f'#attention[data-text="{number}"]')
        page.locator('.thumbs button').nth(heads + 1).click()  # layer 2, head 2
        assert page.locator('#head-name').inner_text() == 'head 2-2'
        assert page.locator('.from .word').all_inner_texts() == pieces

        def shown_weights(side):
            page.wait_for_selector(f'.{side} .word[data-weight]')
            words = page.locator(f'.{side} .word').all()
            return [float(word.get_attribute('data-weight')) for word in words]

        page.locator('.from .word').nth(3).hover()
        np.testing.assert_allclose(shown_weights('to'), weights[1, 1, 3], atol=0.0045)
        assert page.locator('.words line').count() == count
        most = int(weights[1, 1, 3].argmax())
        assert f'{100 * weights[1, 1, 3, most]:.0f}' in page.locator('.to small').nth(most).inner_text()
        assert pieces[3] in page.locator('.sentence').inner_text()
        page.locator('.to li').nth(1).hover()  # shows the attention to this word
        np.testing.assert_allclose(shown_weights('from'), weights[1, 1, :, 1], atol=0.0045)

        page.mouse.move(0, 0)  # a change of the layout would select a word under the mouse
        page.locator('.thumbs button[aria-checked=true]').focus()  # the same with the keyboard
        page.keyboard.press('ArrowLeft')
        page.keyboard.press('ArrowUp')
        assert page.locator('#head-name').inner_text() == 'head 1-1'
        page.keyboard.press('Tab')
        page.keyboard.press('ArrowDown')
        page.keyboard.press('Enter')  # pins the second word
        np.testing.assert_allclose(shown_weights('to'), weights[0, 0, 1], atol=0.0045)
        page.click('#theme')
        assert page.locator('.word.held').inner_text() == pieces[1]
        page.keyboard.press('Escape')

        page.click('summary >> nth=0')
        page.locator('.sortable th button', has_text='entropy').first.click()
        figures = [float(x) for x in page.locator('.tall td:nth-child(2)').all_inner_texts()]
        assert figures == sorted(figures, reverse=True) and len(figures) == layers * heads
        page.locator('.tall td button').first.click()
        assert page.locator('.map td.chosen').count() == 8
        chosen = page.locator('#head-name').inner_text().removeprefix('head ')
        assert page.locator('.tall td button').first.inner_text() == chosen

    browser.visit(measured / 'attention.html', look, width=width, dark=dark)


@pytest.mark.slow  # tests/attention_analysis/test_changes.py checks the numbers
def test_changes_by_fine_tuning_are_measured_and_shown(program: Program, trained, tuned, tmp_path, browser: Browser):
    """Compares the tuned model with the model before, by word and on given texts."""
    texts = '--config.attention.texts=("windowsill river\\tthe light", "the old bird sings\\tthe light")'
    options = (texts, '--config.attention.unit=word', f'--config.attention.compare={trained}')
    program.run(f'--workdir={tmp_path}', f'--config.init={tuned}', *options, **RUN)
    layers = read_json(tmp_path / 'attention', 'changes')['layers']
    assert [row['layer'] for row in layers] == [0, 1, 2]
    for row in layers:
        assert row['parameters']['whole'] > 1e-3 and row['hidden'] > 1e-4
    assert all(0 < row['attention'] < 1 for row in layers[1:])
    assert set(layers[1]['parameters']) == {'whole', 'norms', 'mlp/up', 'mlp/down', *(
        f'attention/{name}' for name in ('query', 'key', 'value', 'output')
    )}  # fmt: skip

    def look(page):
        page.wait_for_selector('#attention[data-ready]')
        assert page.locator('.plot .main-svg').count() >= 3
        words = ['[CLS]', 'windowsill', 'river', '[SEP]', 'the', 'light', '[SEP]']
        assert page.locator('.from .word').all_inner_texts() == words

    browser.visit(tmp_path / 'attention' / 'attention.html', look)


def test_mistakes_are_reported_before_anything_is_written(program: Program, trained, treebank, tmp_path):
    def error(*changes: str) -> str:
        line = program.error(f'--workdir={tmp_path / "work"}', f'--config.init={trained}', *changes, **RUN)
        assert not (tmp_path / 'work').exists()
        return line

    assert 'config.input' in error()
    for name in ('field', 'pair_field'):
        texts = ('--config.attention.texts=("a text",)', f'--config.attention.{name}=body')
        assert 'config.attention.texts has no fields' in error(*texts)
    assert 'config.attention.show' in error('--config.attention.show=-1')
    assert 'config.max_length' in error(f'--config.input={treebank}', '--config.max_length=9999')
    long = _file(tmp_path, 'long.conllu', treebank.read_text().partition('\n\n')[0])
    line = error(f'--config.input={long}', '--config.max_length=4')
    assert 'sentences of more than 4 tokens, expected shorter sentences; raise config.max_length, or give' in line
    row = '{}\tbird\t_\t_\t_\t_\t{}\tdep\t_\t_\n'
    longest = _file(tmp_path, 'longest.conllu', ''.join(row.format(i + 1, i) for i in range(600)))
    assert error(f'--config.input={longest}').endswith('expected shorter sentences; give other sentences')
    bad = _file(tmp_path, 'bad.conllu', treebank.read_text().replace('\t3\t', '\t33\t', 1))
    assert f'{bad}:2: ' in error(f'--config.input={bad}')
    mixed = _file(tmp_path, 'mixed.txt', 'a text\na pair\tof two\n')
    assert f'{mixed}:2: found 1 tab,' in error(f'--config.input={mixed}')
    assert 'no text' in error('--config.input=' + str(_file(tmp_path, 'empty.txt', '\n\n')))
    assert 'no text' in error('--config.input=' + str(_file(tmp_path, 'empty.conllu', '# nothing\n')))


@pytest.mark.parametrize('suffix', ['jsonl', '-'])
def test_files_and_standard_input_are_read(program: Program, trained, bert, tmp_path, suffix):
    """The program prints the format, as run=extract and run=fill do, and skips blank texts."""
    (tmp_path / 'attention' / '.ipynb_checkpoints').mkdir(parents=True)  # made by Jupyter, replaced with the folder
    texts, path = ['the old bird', 'a river, runs'], tmp_path / f'in.{suffix}'
    arguments = (f'--workdir={tmp_path}', f'--config.init={trained}')
    if suffix == '-':
        path.write_text('\n\n'.join(texts))
        with path.open() as source, mock.patch.object(sys, 'stdin', source):
            out = program.run(*arguments, '--config.input=-', **RUN).stdout
        assert 'standard input: read as one text per line\n' in out
    else:
        path.write_text(''.join(json.dumps({'n': 1, 'body': text}) + '\n' for text in [*texts, ' ']))
        arguments += ('--config.attention.field=body', f'--config.input={path}')
        out = program.run(*arguments, **RUN).stdout
        assert f'{path}: read as JSON lines\n' in out and '1 of 3 texts are blank and were skipped' in out
    assert 'measured on 2 texts' in out and f'using {trained}; ' in out
    assert out.count('newly initialized: nothing') == 1
    with safe_open(tmp_path / 'attention' / 'weights.safetensors', 'np') as file:
        assert json.loads(file.metadata()['units']) == bert.pieces(texts)
    (tmp_path / 'attention' / '.env').touch()
    error = program.error(*arguments, f'--config.input={trained / "config.json"}', **RUN)
    assert 'found .env, which would be lost' in error


@pytest.mark.slow
def test_pairs_are_two_fields_or_two_texts_with_a_tab(program: Program, trained, bert, tmp_path):
    first, second = ['the old bird', 'stone'], ['a river', 'the wind']
    lines = _file(tmp_path, 'lines.tsv', ''.join(map('{}\t{}\n'.format, first, second)))
    named = _file(tmp_path, 'named.tsv', 'text\tnext\n' + lines.read_text())
    fields = [f'--config.input={named}', '--config.attention.pair_field=next']
    shown = '--config.attention.texts=("the old bird\\ta river", "stone\\tthe wind")'
    for more in ([f'--config.input={lines}'], fields, [*fields, shown]):
        program.run(f'--workdir={tmp_path}', f'--config.init={trained}', *more, **RUN)
        with safe_open(tmp_path / 'attention' / 'weights.safetensors', 'np') as file:
            assert json.loads(file.metadata()['units']) == bert.pieces(first, second)


@pytest.mark.parametrize('name', ['mine.txt', 'heads.json'])
def test_unknown_files_in_the_folder_are_not_replaced(program: Program, trained, tmp_path, name):
    (tmp_path / 'attention').mkdir()
    mine = _file(tmp_path / 'attention', name, 'the old bird\n')
    line = program.error(f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={mine}', **RUN)
    assert name in line and mine.read_text() == 'the old bird\n'
    if name == 'mine.txt':
        other = ('--config.attention.texts=("the old bird",)',)
        assert name in program.error(f'--workdir={tmp_path}', f'--config.init={trained}', *other, **RUN)


def _file(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    path = folder / name
    path.write_text(text, encoding='utf-8')
    return path
