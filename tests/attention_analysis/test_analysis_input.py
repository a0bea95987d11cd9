"""Tests the strict reading of dependency trees from CoNLL-U."""

import os
import pathlib
import threading

import pytest

from bertjax.attention_analysis.analysis_input import Tree, inspect_input, read_trees
from bertjax.errors import UserError
from bertjax.inference.input import InputSource
from bertjax.tasks.reading.texts import number_lines, read_lines


def line(identifier: object, form: str, head: object = '_', relation: str = '_') -> str:
    return f'{identifier}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\tSpaceAfter=No'


GOOD = '\n'.join(
    [
        '# newdoc',
        '# text = Don’t go',
        line('1-2', 'Don’t'),
        line(1, 'Do', 3, 'aux'),
        line(2, 'n’t', 3, 'advmod'),
        line(3, 'go', 0, 'root'),
        line('3.1', 'you'),
        '',
        '',
        '# sent_id = 2',
        line('0.1', 'it'),
        line(1, '# yes', 0, 'root'),
    ]
)


def parsed(text: str) -> list[Tree]:
    return list(read_trees(number_lines(text), 'a.conllu'))


@pytest.mark.parametrize('end', ['', '\n', '\n\n'])
def test_words_heads_and_relations_are_parsed(end):
    """Comments, multiword tokens and empty nodes are skipped. The last blank line may be missing."""
    first, second = parsed(GOOD + end)
    assert first == Tree('a.conllu:4', ('Do', 'n’t', 'go'), (3, 3, 0), ('aux', 'advmod', 'root'))
    assert second == Tree('a.conllu:12', ('# yes',), (0,), ('root',))
    assert parsed('') == parsed('# nothing\n\n') == []


@pytest.mark.parametrize(
    ('rows', 'where', 'says'),
    [
        ([line(1, 'a', 0, 'root').replace('\t', ' ')], 1, '10 column(s) separated by spaces'),
        ([line(1, 'a', 0, 'root') + '\t_'], 1, '11 column'),
        ([line(2, 'a', 0, 'root')], 1, 'word 1, the next'),
        ([line(1, 'a', 0, 'root'), line(1, 'b', 1, 'x')], 2, 'word 2, the next'),
        ([line('01', 'a', 0, 'root')], 1, "'01'"),
        ([line(1, 'a', 2, 'x')], 1, "head '2'"),
        ([line(1, 'a', 1, 'x')], 1, "head '1'"),
        ([line(1, 'a', '_', 'x')], 1, "head '_'"),
        ([line(1, 'a', -1, 'x')], 1, "head '-1'"),
        ([line(1, 'a', 0, '_')], 1, 'no relation'),
        ([line(1, '', 0, 'root')], 1, 'empty form'),
        ([line(1, 'a', 0, 'root'), line(2, 'b', 1, 'x') + '\t_'], 2, 'expected 10, as in line 2'),
        ([line(1, 'a', 0, 'root'), '# late'], 2, 'a comment must precede the first word'),
    ],
)
def test_a_malformed_line_is_reported_with_its_number(rows, where, says):
    with pytest.raises(UserError) as error:
        parsed('# text\n' + '\n'.join(rows) + '\n')
    assert error.value.where == f'a.conllu:{where + 1}' and says in str(error.value)


def test_a_treebank_from_a_pipe_is_refused(tmp_path: pathlib.Path):
    path = tmp_path / 'a.conllu'
    os.mkfifo(path)
    threading.Thread(target=path.write_text, args=(GOOD,), daemon=True).start()
    with pytest.raises(UserError, match=r'a\.conllu, a pipe, expected a file that can be read more than once'):
        inspect_input(InputSource(str(path), ()))


def test_a_real_treebank_is_parsed(shared: pathlib.Path):
    path = shared / 'treebank' / 'en_ewt-ud-dev.conllu.gz'
    trees = list(read_trees(read_lines(path), str(path)))
    assert len(trees) == 2001 and sum(len(tree.words) for tree in trees) == 25147
    assert all(tree.heads.count(0) == 1 for tree in trees)
