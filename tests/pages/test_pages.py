"""Tests in a real browser that a page is a single file, fetches nothing, escapes text, and fits narrow screens."""

import json
import pathlib

import pytest
from browsing import NARROW, WIDE, Browser

from bertjax.pages import charts
from bertjax.pages.charts import BarChart, Chart, Curve
from bertjax.pages.page import Section, Token, render_page

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror="document.title=1">&amp;'
WORDS = 'a long label of several words that could fill a whole line of the page'
LONG = 'pneumonoultramicroscopicsilicovolcanoconiosis' * 8


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the path of a report page with hostile and long texts in every place."""
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    steps = list(range(0, 1000, 50))
    curves = [
        Curve('training', steps, [9 / (1 + s / 300) for s in steps], 'pale'),
        Curve('held out <b>', steps, [9.5 / (1 + s / 320) for s in steps], 'blue', 'dots'),
        Curve('a level', [0, 1000], [3, 3], 'red', 'level'),
    ]
    charts = [Chart('loss', curves, 'nats'), Chart('other', curves[:1], x='rate', ticks=[50, 500])]
    tokens = [Token('[CLS]', 'special'), *(Token(HOSTILE, 'masked', HOSTILE, 'was') for _ in '12'), Token(LONG, 'b')]
    wide = {'heads': [''] * 30, 'rows': [[f'{i}.000' for i in range(30)]], 'marked': []}
    corpus = {
        'title': HOSTILE,
        'counts': [[HOSTILE, '1', HOSTILE]],
        'lengths': BarChart('lengths', {'a <b>': (3, '3'), 'b': (0, '0')}),
        'problems': [HOSTILE],
        'warnings': [HOSTILE],
    }
    errors = {
        'classes': [['yes', *'12345']], 'titles': ['yes', HOSTILE], 'confusion': {WORDS: [(0.5, '3'), (0, HOSTILE)]},
        'records': 9, 'wrong': 1, 'worst': [(tokens, {'first': LONG, 'second': HOSTILE})],
    }  # fmt: skip
    sections = [
        Section(
            'overview', 'Overview', {'tiles': {HOSTILE: (HOSTILE, '')}, 'skipped': 3, 'has_no_rows': True}, HOSTILE
        ),
        Section('curves', 'Curves', {'large': charts, 'teacher': charts[:1], 'small': []}),
        Section('figures', 'Figures', {'heads': ['', 'dev'], 'rows': [[LONG, '1'], [HOSTILE, '2']], 'marked': [1]}),
        Section('members', 'Members', wide),
        Section('examples', 'Examples', {'legend': {'masked': HOSTILE}, 'rows': [(HOSTILE, tokens)]}),
        Section('corpus', 'Corpus', [corpus]),
        Section('errors', 'Errors', errors),
        Section('speed', 'Speed', note=HOSTILE),
    ]
    path = tmp_path_factory.mktemp('page') / 'page.html'
    path.write_text(render_page('report.html.j2', f'A {HOSTILE}', HOSTILE, sections, charts=True), encoding='utf-8')
    return path


@pytest.mark.parametrize(('width', 'dark'), [(NARROW, False), pytest.param(WIDE, True, marks=pytest.mark.slow)])
def test_a_page_fits_any_width_and_both_themes(path: pathlib.Path, browser: Browser, width: int, dark: bool):
    def inspect(page):
        lightness = '() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128'
        assert page.evaluate(lightness) is not dark
        assert page.locator('.plot .main-svg').count() >= 2
        assert 'held out <b>' in page.locator('.plot .legend').first.text_content()
        stroke = page.locator('.plot .scatterlayer path.js-line').nth(1).evaluate('e => getComputedStyle(e).stroke')
        page.click('#theme')  # The other theme also changes the curves.
        assert page.evaluate(lightness) is dark
        assert stroke != page.locator('.plot .scatterlayer path.js-line').nth(1).evaluate(
            'e => getComputedStyle(e).stroke'
        )
        assert page.title() == f'A {HOSTILE}' and page.locator('main img, main script:not([type])').count() == 0
        assert page.locator('tr.marked td').first.inner_text() == HOSTILE
        parts = ('.scroll:has(.shaded)', '.shaded td')
        frame, cell = (page.locator(f'#errors {part}').first.bounding_box() for part in parts)
        assert cell['x'] + cell['width'] <= frame['x'] + frame['width']  # Long labels do not hide the numbers.
        page.click('summary')
        assert page.locator('details .note').inner_text() == HOSTILE
        _check_buttons(page.locator('.chart').first)

    browser.visit(path, inspect, width=width, dark=dark)


def _check_buttons(figure):
    """Checks that the buttons of a chart are beside its title and not covered; `visit` refuses buttons that upload."""
    figure.locator('figcaption').hover()
    figure.locator('.modebar-btn').first.click(trial=True)  # Fails if something covers the button.
    assert figure.locator('.modebar-btn').count() == 6
    title, bar = (figure.locator(part).bounding_box() for part in ('figcaption', '.modebar'))
    assert title['y'] <= bar['y'] and bar['y'] + bar['height'] <= title['y'] + title['height']
    figure.locator('.nsewdrag').hover()
    assert 'held out <b>' in figure.locator('.hoverlayer .legend').text_content()  # The full name.


@pytest.mark.slow
def test_dragging_a_box_zooms_and_a_change_of_theme_keeps_the_zoom(path: pathlib.Path, browser: Browser):
    def inspect(page):
        x_range = lambda: page.evaluate('() => document.querySelector(".plot").layout.xaxis.range')  # noqa: E731
        box = page.locator('.plot .nsewdrag').first.bounding_box()
        whole = x_range()
        page.mouse.move(box['x'] + box['width'] / 4, box['y'] + 20)
        page.mouse.down()
        page.mouse.move(box['x'] + box['width'] / 2, box['y'] + 120, steps=4)
        page.mouse.up()
        zoomed = x_range()
        assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
        page.click('#theme')
        assert x_range() == pytest.approx(zoomed)

    browser.visit(path, inspect)


def test_equal_content_gives_equal_bytes():
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    data = {'large': [Chart('c', [Curve('one', [0], [1])])], 'teacher': [], 'small': []}
    make = lambda: render_page('report.html.j2', 't', '', [Section('curves', 'A', data)], charts=True)  # noqa: E731
    assert make() == make()
    assert len(make()) < 2_200_000


def test_data_for_a_script_is_unchanged():
    texts = [{'units': ['</script>&\u2028<!--', 'ä'], 'weights': [1, 2.5, None]}]
    data = {'layers': 1, 'heads': 2, 'texts': texts}
    text = render_page('attention.html.j2', 't', '', [Section('texts', 'Texts', data)])
    start = text.index('id="weights">') + len('id="weights">')
    assert json.loads(text[start : text.index('</script>', start)]) == data


def test_a_missing_plotly_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch):
    from bertjax.errors import UserError

    monkeypatch.setitem(__import__('sys').modules, 'plotly', None)
    with pytest.raises(UserError, match=r"no plotly.*pip install 'bertjax\[report\]'"):
        charts.check_plotly()
