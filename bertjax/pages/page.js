'use strict';
// Light or dark: as the reader's system has it, until the button says otherwise.
const root = document.documentElement, button = document.getElementById('theme');
const system = matchMedia('(prefers-color-scheme: dark)');
const kept = { get: () => { try { return localStorage.getItem('theme'); } catch { return null; } },
  set: (theme) => { try { localStorage.setItem('theme', theme); } catch { /* a page that may keep nothing */ } } };
const isDark = () => (root.dataset.theme ?? (system.matches ? 'dark' : 'light')) === 'dark';
const onTheme = [];  // what is drawn anew in the other colours

function show() {
  button.textContent = isDark() ? '☀ light' : '☾ dark';
  for (const draw of onTheme) draw();
}
if (kept.get()) root.dataset.theme = kept.get();
button.addEventListener('click', () => { root.dataset.theme = isDark() ? 'light' : 'dark'; kept.set(root.dataset.theme); show(); });
system.addEventListener('change', show);
show();

// A colour of the stylesheet as it is just now.
function color(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function draw(place) {
  const given = JSON.parse(place.dataset.given ??= place.textContent);
  const data = given.series.map(({ color: name, dash, ...trace }) => ({
    ...trace, line: { color: color(name), dash, width: 2 }, marker: { color: color(name), size: 7 },
  }));
  const ink = color('quiet'), line = color('line');
  const axis = (title) => ({ title: { text: title, standoff: 12 }, gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true });
  const ticks = given.ticks.length ? { tickvals: given.ticks, ticktext: given.ticks.map((x) => x.toPrecision(2).replace(/\.?0*(e|$)/, '$1')) } : {};
  // 0.00015 as 1.5e-4, where Plotly writes 150µ; 12,000 as 12k.
  const small = given.series.every((one) => one.y.every((y) => Math.abs(y) < 0.01));
  const legend = { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom' };
  const layout = {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 8, r: 12, t: 8, b: 8 }, xaxis: { ...axis(given.x), ...ticks, type: given.log ? 'log' : 'linear' }, yaxis: { ...axis(given.y), exponentformat: small ? 'e' : 'SI' },
    showlegend: data.length > 1, legend, hovermode: data.some((trace) => trace.text) ? 'closest' : 'x unified',
    // Names at full length: Plotly would cut them to 15 characters, in the middle of an escaped one.
    hoverlabel: { bgcolor: color('card'), bordercolor: line, font: { color: color('ink') }, namelength: -1 },
    modebar: { bgcolor: 'rgba(0,0,0,0)', color: ink, activecolor: color('blue') },
  };
  // Exactly these buttons: Plotly 7 adds "Share chart...", which uploads the data, and later versions may add more.
  const buttons = [['toImage'], ['zoom2d', 'pan2d'], ['zoomIn2d', 'zoomOut2d', 'resetScale2d']];
  const options = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  const had = place.layout && { x: place.layout.xaxis, y: place.layout.yaxis };  // what the reader has zoomed to
  if (had && !had.x.autorange) Object.assign(layout.xaxis, { range: had.x.range, autorange: false });
  if (had && !had.y.autorange) Object.assign(layout.yaxis, { range: had.y.range, autorange: false });
  if (!had) place.textContent = '';
  return Plotly.react(place, data, layout, options);
}

async function drawAll() {
  const packed = document.getElementById('plotly');
  if (packed) {
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    const script = document.createElement('script');
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
    const places = [...document.querySelectorAll('.plot')];
    await Promise.all(places.map(draw));
    onTheme.push(() => places.forEach(draw));
  }
  root.dataset.ready = 'yes';
}
drawAll();
