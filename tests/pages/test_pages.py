"""A page is one file that fetches nothing, shows text as text, and can be read anywhere: opened in a real browser."""

import json
import pathlib

import pytest
from browsing import NARROW, WIDE, Browser

from bertjax.pages import charts
from bertjax.pages.charts import BarChart, Chart, Curve
from bertjax.pages.page import Section, Token, render_page

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror="document.title=1">&amp;'
LONG = 'pneumonoultramicroscopicsilicovolcanoconiosis' * 8


@pytest.fixture(scope='module')
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A page with the template of a report, and in it hostile and long texts at every place."""
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
        'classes': [['yes', *'12345']], 'titles': ['yes', HOSTILE], 'confusion': {'yes': [(0.5, '3'), (0, HOSTILE)]},
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
        page.click('summary')
        assert page.locator('details .note').inner_text() == HOSTILE
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
    data = {'large': [Chart('c', [Curve('one', [0], [1])])], 'teacher': [], 'small': []}
    make = lambda: render_page('report.html.j2', 't', '', [Section('curves', 'A', data)], charts=True)  # noqa: E731
    assert make() == make()
    assert len(make()) < 2_200_000


def test_data_for_a_script_is_unchanged():
    texts = [{'units': ['</script>&\u2028<!--', 'ä'], 'weights': [1, 2.5, None]}]
    data = {'layers': 1, 'heads': 2, 'texts': texts}
    text = render_page('attention.html.j2', 't', '', [Section('texts', 'Texts', data)])
    begin = text.index('id="weights">') + len('id="weights">')
    assert json.loads(text[begin : text.index('</script>', begin)]) == data


def test_what_draws_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    from bertjax.errors import UserError

    monkeypatch.setitem(__import__('sys').modules, 'plotly', None)
    with pytest.raises(UserError, match=r"no plotly.*pip install -e '.\[report\]'"):
        charts.check_plotly()
