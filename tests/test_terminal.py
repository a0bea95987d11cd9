"""Control characters are escaped; streams may be closed, lose their reader, or have a small encoding."""

import io
import logging
import os
import pty
import subprocess
import sys

import pytest
from rich.table import Table

from bertjax.errors import UserError, printable
from bertjax.terminal import Console, filter_log, invocation, is_shown, make_table
from bertjax.usage import recipe_help

# A small program that prints lines with print and with rich, and writes data.
PROGRAM = """
import sys
from bertjax.terminal import Console, data_output, guard_streams
guard_streams()
console = Console(soft_wrap=True, highlight=False, force_terminal='--colors' in sys.argv)
print('first \\u2026 \\u2500\\u2500')
console.print('second \\x1b[2J', style='bold')
print('third \\x1b[31m\\x07 \\u202e caf\\xe9 \\udce9')
with data_output() as data:
    data.write('{"a": "\\u2026 \\U0001f600 \\x7f"}\\n')
for number in range(3000):
    print('line', number, file=sys.stderr if number % 2 else sys.stdout)
sys.stdin.read()
sys.exit(7)
"""


def run(repository, redirected: str = '', *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs PROGRAM in a shell that redirects its streams as `redirected` says."""
    command = f'"$0" -c "$1" {" ".join(arguments)} {redirected}'
    environment = {**os.environ, 'PYTHONPATH': str(repository), **variables}
    words = ['bash', '-o', 'pipefail', '-c', command, sys.executable, PROGRAM]
    return subprocess.run(words, capture_output=True, env=environment, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize(
    ('text', 'escaped'),
    [
        ('déjà vu 你好', 'déjà vu 你好'),
        ('a\nb\r\tc', r'a\nb\r\tc'),
        ('\x1b[31mred\x9b0m', r'\x1b[31mred\x9b0m'),
        ('caf\udce9.txt', r'caf\xe9.txt'),
        ('\ud83d', r'\ud83d'),
        ('\u202e\u2028\u200f\u2066\u061c', r'\u202e\u2028\u200f\u2066\u061c'),
    ],
)
def test_quoted_text_becomes_one_printable_line(text, escaped):
    assert printable(text) == escaped
    error = str(UserError(f'{text}:1', repr(text), text, 'fix it'))
    assert error.startswith(f'{escaped}:1: found ') and error.endswith(f'expected {escaped}; fix it')
    assert error.isprintable() and error.encode('utf-8')


def test_a_table_is_not_cut_in_a_pipe_or_a_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('COLUMNS', raising=False)
    names = [f'column {number}' for number in range(20)]
    Console(file=(file := io.StringIO())).print(make_table('reviews [de]', *names))
    assert all(name in file.getvalue() for name in ('reviews [de]', *names))


def test_a_message_does_not_dump_a_file():
    assert len(str(UserError('a file', 'x' * 100_000, 'less', 'cut it'))) < 2000


def test_rich_escapes_control_characters():
    file = io.StringIO()
    console = Console(file=file, highlight=False, force_terminal=True, color_system='standard')
    console.print('\x1b[2J\x07', style='bold', markup=False)
    assert file.getvalue() == '\x1b[1m\\x1b[2J\\x07\x1b[0m\n'


def test_rich_escapes_characters_that_reorder_text():
    file, reorder = io.StringIO(), '\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069'
    table = Table('heading \u202e', title='title \u2067')
    table.add_row('cell \u200f')
    console = Console(file=file, highlight=False, soft_wrap=True)
    console.print(f'{reorder} \u200d', markup=False)
    console.print(table)
    assert file.getvalue().startswith(reorder.encode('unicode_escape').decode() + ' \u200d\n')
    assert not set(file.getvalue()) & set(reorder)


def test_output_to_utf8_streams(repository):
    result = run(repository)
    assert result.returncode == 7
    lines = result.stdout.decode('utf-8').splitlines()
    assert lines[:3] == ['first … ──', r'second \x1b[2J', r'third \x1b[31m\x07 \u202e café \udce9']
    assert lines[3:5] == ['{"a": "… 😀 \x7f"}', 'line 0']
    assert len(lines) == 1504 and len(result.stderr.splitlines()) == 1500


def test_output_to_ascii_streams(repository):
    result = run(repository, LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    assert result.returncode == 7 and result.stderr.splitlines() == [b'line %d' % i for i in range(1, 3000, 2)]
    lines = result.stdout.splitlines()
    assert lines[0] == rb'first \u2026 \u2500\u2500' and lines[3].decode('utf-8') == '{"a": "… 😀 \x7f"}'


def test_rich_keeps_its_colors(repository):
    assert b'\x1b[1msecond \\x1b[2J' in run(repository, '', '--colors').stdout


def test_output_is_escaped_beside_a_progress_bar(repository):
    """While a bar is active, rich replaces standard output."""
    program = """
from rich.progress import Progress
from bertjax.terminal import Console, data_output, guard_streams
guard_streams()
with Progress(console=Console(), auto_refresh=False) as progress:
    progress.add_task('bar', total=1)
    print('a line \\x1b[2J')
    progress.refresh()
with data_output() as data:
    data.write('{"file": "\\u202e"}\\n')
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, 'PYTHONPATH': str(repository), 'TERM': 'xterm'}
    done = subprocess.run([sys.executable, '-c', program], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    output = os.read(ours, 100_000)
    os.close(ours)
    assert done.returncode == 0 and b'a line' in output and b'\x1b[2J' not in output
    assert b'bar \x1b[' in output and b'\\x1b[' not in output
    assert rb'{"file": "\u202e"}' in output  # Data output is escaped on a terminal.


@pytest.mark.parametrize('redirected', ['>&-', '2>&-', '<&-', '>&- 2>&- <&-', '| head -1', '2>&1 | head -1'])
def test_a_closed_stream_or_a_lost_reader_is_no_error(repository, redirected):
    """Only the stream's output is lost: there is no message, and the exit status is the usual one."""
    result = run(repository, redirected)
    assert result.returncode == 7, result.stderr
    assert b'rror' not in result.stdout + result.stderr
    if 'head' in redirected:
        assert result.stdout.decode('utf-8') in ('first … ──\n', 'line 1\n')


def test_a_full_disk_for_standard_output_is_one_error(repository):
    """The error is raised once, with the path; Python's exit does not write again, which would give status 120."""
    result = run(repository, '> /dev/full')
    assert result.returncode == 1 and result.stderr.count(b'Traceback') == 1
    assert b"No space left on device: '/dev/full'" in result.stderr and b'Exception ignored' not in result.stderr


def test_an_opened_file_does_not_become_standard_output(repository, tmp_path):
    """A file that is opened after the streams were closed does not get the number of a stream."""
    program = f"""
from bertjax.terminal import guard_streams
guard_streams()
with open({str(tmp_path / 'data')!r}, 'w') as file:
    import os
    os.write(1, b'noise'); print('noise', flush=True)
    file.write('data')
"""
    command = '"$0" -c "$1" >&- 2>&- <&-'
    subprocess.run(['bash', '-c', command, sys.executable, program], env={**os.environ, 'PYTHONPATH': str(repository)})
    assert (tmp_path / 'data').read_text() == 'data'


@pytest.mark.parametrize(
    ('program', 'called'),
    [
        ('/checkout/bertjax/main.py', '/my/python3 -m bertjax.main'),
        ('/checkout/bertjax/__main__.py', '/my/python3 -m bertjax'),
        ('/no where/no bertjax', "'/no where/no bertjax'"),
        ('/usr/bin/sh', 'sh'),  # A command that the shell finds by its name.
        ('-c', '/my/python3 -m bertjax.main'),
        ('', '/my/python3 -m bertjax.main'),  # The interactive interpreter, which calls bertjax.train.
    ],
)
def test_the_invocation_repeats_the_command(monkeypatch, program, called):
    monkeypatch.setattr(sys, 'argv', [program, '--help'])
    monkeypatch.setattr(sys, 'orig_argv', ['/my/python3', '-m', 'anything', '--help'])
    assert invocation() == called


@pytest.mark.parametrize(('name', 'value'), [('JPY_PARENT_PID', '1'), ('TERM', 'dumb')])
def test_a_notebook_and_a_dumb_terminal_get_no_moving_progress_bars(monkeypatch, name: str, value: str):
    """`!bertjax …` in a notebook looks like a terminal, but the cell prints cursor movements as text."""
    monkeypatch.delenv('JPY_PARENT_PID', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    assert Console(force_terminal=True).is_terminal
    monkeypatch.setenv(name, value)
    assert not Console(force_terminal=True).is_terminal


def test_the_help_of_a_recipe_is_wrapped_in_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'stdout', terminal := io.StringIO())
    one_line_each = recipe_help('pretrain_tiny').partition('Keys of')[2]
    monkeypatch.setattr(terminal, 'isatty', lambda: True)
    monkeypatch.setenv('COLUMNS', '110')
    text = recipe_help('pretrain_tiny').partition('Keys of')[2]
    assert max(map(len, text.splitlines())) <= 110 < max(map(len, one_line_each.splitlines()))
    assert text.split() == one_line_each.split()


def test_a_lost_reader_is_known(repository):
    """A command that answers line by line ends when nobody reads its answers."""
    program = """
import sys
from bertjax.terminal import data_output, guard_streams, has_reader
guard_streams()
with data_output() as out:
    for number in range(10**6):
        out.write(f'{number}\\n')
        out.flush()
        if not has_reader(out):
            sys.exit(number < 10**5 and 5)
"""
    command = '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}'
    arguments = ['bash', '-c', command, sys.executable, program]
    done = subprocess.run(arguments, env={**os.environ, 'PYTHONPATH': str(repository)}, capture_output=True)
    assert done.returncode == 5 and done.stdout == b'0\n', done.stderr


def test_an_inner_filter_of_the_log_keeps_the_outer_one():
    with filter_log():
        with filter_log():
            pass
        assert is_shown in logging.getLogger('absl').filters
    assert is_shown not in logging.getLogger('absl').filters
