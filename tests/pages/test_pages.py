"""A page is one file that fetches nothing, shows text as text, and can be read anywhere: opened in a real browser."""

import json
import pathlib

import pytest
from browsing import NARROW, WIDE, Browser
from markupsafe import Markup

from bertjax.pages import charts, parts
from bertjax.pages.charts import Series, chart
from bertjax.pages.data import inline
from bertjax.pages.page import Section, page

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror="document.title=1">&amp;'


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A page with one of everything."""
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    long = 'pneumonoultramicroscopicsilicovolcanoconiosis' * 8
    steps = list(range(0, 1000, 50))
    curves = [
        Series('training', steps, [9 / (1 + s / 300) for s in steps], 'pale'),
        Series('held out <b>', steps, [9.5 / (1 + s / 320) for s in steps], 'blue', 'dots'),
        Series('a level', [0, 1000], [3, 3], 'red', 'dashes'),
    ]
    body = [
        parts.tiles({'steps': ('1,000', 'of 1,000'), HOSTILE: (HOSTILE, '')}),
        parts.columns(chart('loss', curves, x='step', y='nats'), chart('other', curves[:1], x='rate', y='', log=True)),
        parts.table(['name', 'value'], [[long, '1.0'], [HOSTILE, '2.0']], marked=[1], caption='figures'),
        parts.table([''] * 30, [[f'{i}.000' for i in range(30)]], text=()),
        parts.bars({'a': 3, 'b': 0}, {'a': '3', 'b': '0'}),
        parts.shaded(['yes', 'no'], {'yes': [3, 1], 'no': [0, 0]}, corner='is'),
        parts.legend({'masked': 'masked'}),
        parts.tokens(
            [parts.Token('[CLS]', 'special'), *(parts.Token(HOSTILE, 'masked', HOSTILE, 'was') for _ in '12')], 'row'
        ),
        parts.tokens([parts.Token(long, 'b')]),
        parts.folded(
            HOSTILE, parts.note('note'), parts.warning('warning'), parts.code('code'), parts.paragraph('text')
        ),
        inline({'text': HOSTILE}, 'given'),
    ]
    path = tmp_path_factory.mktemp('page') / 'page.html'
    text = page(f'A {HOSTILE}', HOSTILE, [Section('one', 'One', body, HOSTILE), Section('two', 'Two', [])], charts=True)
    path.write_text(text, encoding='utf-8')
    return path


@pytest.mark.parametrize(('width', 'dark'), [(NARROW, False), pytest.param(WIDE, True, marks=pytest.mark.slow)])
def test_it_can_be_read_anywhere(path: pathlib.Path, browser: Browser, width: int, dark: bool):
    def look(page):
        lightness = '() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128'
        assert page.evaluate(lightness) is not dark
        assert page.locator('.plot .main-svg').count() >= 2
        assert 'held out <b>' in page.locator('.plot .legend').first.text_content()
        stroke = page.locator('.plot .scatterlayer path.js-line').nth(1).evaluate('e => getComputedStyle(e).stroke')
        page.click('#theme')  # the other one, curves and all
        assert page.evaluate(lightness) is dark
        assert stroke != page.locator('.plot .scatterlayer path.js-line').nth(1).evaluate(
            'e => getComputedStyle(e).stroke'
        )
        assert page.title() == f'A {HOSTILE}' and page.locator('main img, main script:not([type])').count() == 0
        assert page.locator('tr.marked td').first.inner_text() == HOSTILE
        assert page.evaluate('() => JSON.parse(document.getElementById("given").textContent)') == {'text': HOSTILE}
        page.click('summary')
        _check_buttons(page.locator('.chart').first)

    browser.visit(path, look, width=width, dark=dark)


def _check_buttons(figure):
    """The buttons of a chart stand beside its title, also when they are shown; `visit` refuses any that upload."""
    figure.locator('figcaption').hover()
    figure.locator('.modebar-btn').first.click(trial=True)  # nothing lies over it
    assert figure.locator('.modebar-btn').count() == 6
    title, bar = (figure.locator(part).bounding_box() for part in ('figcaption', '.modebar'))
    assert title['y'] <= bar['y'] and bar['y'] + bar['height'] <= title['y'] + title['height']
    figure.locator('.nsewdrag').hover()
    assert 'held out <b>' in figure.locator('.hoverlayer .legend').text_content()  # the whole name


@pytest.mark.slow
def test_a_box_zooms_and_the_other_colours_keep_it(path: pathlib.Path, browser: Browser):
    def look(page):
        shown = lambda: page.evaluate('() => document.querySelector(".plot").layout.xaxis.range')  # noqa: E731
        box = page.locator('.plot .nsewdrag').first.bounding_box()
        whole = shown()
        page.mouse.move(box['x'] + box['width'] / 4, box['y'] + 20)
        page.mouse.down()
        page.mouse.move(box['x'] + box['width'] / 2, box['y'] + 120, steps=4)
        page.mouse.up()
        zoomed = shown()
        assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
        page.click('#theme')
        assert shown() == pytest.approx(zoomed)

    browser.visit(path, look)


def test_equal_content_gives_equal_bytes():
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    make = lambda: page('t', Markup('<b>x</b>'), [Section('a', 'A', [chart('c', [], x='', y='')])], charts=True)  # noqa: E731
    assert make() == make()
    assert len(make()) < 2_200_000


def test_data_is_what_it_was():
    value = {'a': [1, 2.5, None, '</script>&\u2028<!--'], 'b': 'ä'}
    text = str(inline(value))
    assert text.count('<') == 2 and json.loads(text[text.index('>') + 1 : text.rindex('<')]) == value


def test_what_draws_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    from bertjax.errors import UserError

    monkeypatch.setitem(__import__('sys').modules, 'plotly', None)
    with pytest.raises(UserError, match=r"no plotly.*pip install -e '.\[report\]'"):
        charts.check_plotly()
