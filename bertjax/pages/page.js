'use strict';
// The page follows the light or dark mode of the reader's system until the reader clicks the button.
const root = document.documentElement, button = document.getElementById('theme');
const system = matchMedia('(prefers-color-scheme: dark)');
// A browser may deny local storage to a page that is opened from a file.
const stored = { get: () => { try { return localStorage.getItem('theme'); } catch { return null; } },
  set: (theme) => { try { localStorage.setItem('theme', theme); } catch { /* nothing is stored */ } } };
const isDark = () => (root.dataset.theme ?? (system.matches ? 'dark' : 'light')) === 'dark';
const onTheme = [];  // functions that redraw a part of the page in the colors of the new mode

function applyTheme() {
  button.textContent = isDark() ? '☀ light' : '☾ dark';
  for (const draw of onTheme) draw();
}
if (stored.get()) root.dataset.theme = stored.get();
button.addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  stored.set(root.dataset.theme);
  applyTheme();
});
system.addEventListener('change', applyTheme);
applyTheme();

// Returns the current value of a color of the stylesheet.
function color(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// Decompresses gzip data in base64.
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip')));
}

// Returns Plotly's template, which has the colors and the font of the page.
function template() {
  const clear = 'rgba(0,0,0,0)', quiet = color('quiet'), line = color('line');
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return { layout: {
    paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis,
    font: { color: quiet, size: 13, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: color('card'), bordercolor: line, font: { color: color('ink') } },
    modebar: { bgcolor: clear, color: quiet, activecolor: color('blue') },
  } };
}

// The buttons are listed, because Plotly 7 adds "Share chart...", which uploads the data, and later versions may add more.
const modeBarButtons = [['toImage'], ['zoom2d', 'pan2d'], ['zoomIn2d', 'zoomOut2d', 'resetScale2d']];

function draw(plot) {
  const { data, layout } = JSON.parse(plot.dataset.figure ??= plot.textContent);
  for (const trace of data) {
    trace.line = { ...trace.line, color: color(trace.meta) };
    trace.marker = { ...trace.marker, color: color(trace.meta) };
    if (trace.type === 'bar') delete trace.line;
  }
  if (!plot.layout) plot.textContent = '';
  const options = { responsive: true, displaylogo: false, modeBarButtons };
  return Plotly.react(plot, data, { ...layout, template: template() }, options);
}

async function drawAll() {
  const packed = document.getElementById('plotly');
  if (packed) {
    const script = document.createElement('script');
    script.textContent = await unpack(packed.textContent).text();
    document.head.append(script);
    packed.remove();
    const plots = [...document.querySelectorAll('.plot')];
    await Promise.all(plots.map(draw));
    onTheme.push(() => plots.forEach(draw));
  }
  root.dataset.ready = 'yes';
}
drawAll();
