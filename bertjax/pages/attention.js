
// The view of heads and words. The weights of a text are bytes [L, H, U, U]: 255 times the square root of each weight.
const view = document.getElementById('attention');
const made = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const percent = (w) => w < 0.005 ? '' : `${(100 * w).toFixed(w < 0.0995 ? 1 : 0)} %`;

async function showAttention() {
  const { layers, heads, first, texts } = JSON.parse(document.getElementById('weights').textContent);
  const state = { text: 0, layer: first[0] - 1, head: first[1] - 1, at: 0, held: null, bytes: null };
  const units = () => texts[state.text].units, count = () => units().length;
  const weight = (i, j) => (state.bytes[((state.layer * heads + state.head) * count() + i) * count() + j] / 255) ** 2;

  const [choice, thumbs, name, sentence, words, from, lines, to] = ['#text', '.thumbs', '#head-name', '.sentence',
    '.words', '.from', 'svg', '.to'].map((selector) => view.querySelector(selector));
  const buttons = [...thumbs.querySelectorAll('button')];

  // Pointing at a word on the left shows what it attends to. Pointing at a word on the right shows what attends to it.
  const row = (i) => ((i + 0.5) / count()).toFixed(4);
  const line = (i, j, w) => `<line x1="0" y1="${row(i)}" x2="1" y2="${row(j)}" stroke-opacity="${w.toFixed(3)}" stroke-width="${(1 + 4 * w).toFixed(2)}"/>`;
  const drawLines = (triples) => { lines.innerHTML = triples.map((triple) => line(...triple)).join(''); };
  function mark(list, weights, on) {
    [...list.children].forEach((item, k) => {
      const word = item.querySelector('.word'), w = weights ? weights[k] : 0;
      word.style.setProperty('--share', w.toFixed(4));
      if (weights) word.dataset.weight = w.toFixed(4); else delete word.dataset.weight;
      word.classList.toggle('on', k === on);
      word.classList.toggle('held', list === from && k === state.held);
      item.querySelector('small').textContent = weights ? percent(w) : '';
    });
  }
  function describe([before, word, after], weights) {
    const best = weights.map((w, k) => [w, k]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([w]) => w >= 0.005);
    sentence.replaceChildren(before, made('strong', {}, word), after,
      best.map(([w, k]) => `${units()[k]} ${percent(w)}`).join(', '));
  }
  function point(i, incoming = false) {
    const n = count(), all = [...Array(n).keys()];
    lines.classList.toggle('incoming', incoming);
    if (i === null) {
      mark(from, null); mark(to, null);
      sentence.textContent = 'Point at a word on the left to see where it looks, or at a word on the right to see what looks at it.';
      drawLines(all.flatMap((a) => all.map((b) => [a, b, weight(a, b)])).filter(([, , w]) => w >= 0.02));
    } else if (incoming) {
      const weights = all.map((a) => weight(a, i));
      mark(from, weights); mark(to, null, i);
      describe(['What looks at ', units()[i], ': '], weights);
      drawLines(all.map((a) => [a, i, weights[a]]));
    } else {
      const weights = all.map((b) => weight(i, b));
      mark(from, null, i); mark(to, weights);
      describe(['Where ', units()[i], ' looks: '], weights);
      drawLines(all.map((b) => [i, b, weights[b]]));
    }
  }
  const rest = () => point(state.held);

  function write() {
    const item = (text, tag, attributes) => made('li', {}, made(tag, { class: 'word', title: text, ...attributes }, text), made('small'));
    from.replaceChildren(...units().map((text, i) => item(text, 'button', { type: 'button', tabindex: i ? -1 : 0 })));
    to.replaceChildren(...units().map((text) => item(text, 'span')));
    lines.style.height = `calc(${count()} * var(--row))`;
    [...from.children].forEach((one, i) => {
      const word = one.querySelector('.word');
      one.addEventListener('mouseenter', () => point(i));
      word.addEventListener('focus', () => { state.at = i; point(i); });
      word.addEventListener('click', () => { state.held = state.held === i ? null : i; point(i); });
      word.addEventListener('blur', rest);
    });
    [...to.children].forEach((one, j) => one.addEventListener('mouseenter', () => point(j, true)));
  }
  words.addEventListener('mouseleave', rest);
  from.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -count(), End: count() }[event.key];
    if (event.key === 'Escape') { state.held = null; rest(); }
    if (step === undefined) return;
    event.preventDefault();
    const old = from.children[state.at].querySelector('.word');
    state.at = Math.min(Math.max(state.at + step, 0), count() - 1);
    old.tabIndex = -1;
    const word = from.children[state.at].querySelector('.word');
    word.tabIndex = 0;
    word.focus();
  });

  // Heads.
  function paint() {
    const [r, g, b] = color('blue').match(/[\d.]+/g).map(Number), n = count();
    buttons.forEach((button, number) => {
      const canvas = button.firstChild, image = new ImageData(n, n);
      canvas.width = canvas.height = n;
      for (let k = 0; k < n * n; k++) image.data.set([r, g, b, state.bytes[number * n * n + k]], 4 * k);
      canvas.getContext('2d').putImageData(image, 0, 0);
    });
  }
  function choose(layer, head, focus = false) {
    [state.layer, state.head] = [layer, head];
    buttons.forEach((button, number) => {
      const chosen = number === layer * heads + head;
      button.setAttribute('aria-checked', chosen);
      button.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) button.focus();
    });
    name.textContent = `head ${layer + 1}-${head + 1}`;
    for (const other of document.querySelectorAll('[data-head]')) other.classList.toggle('chosen', other.dataset.head === `${layer + 1}-${head + 1}`);
    rest();
  }
  buttons.forEach((button, number) => button.addEventListener('click', () => choose(Math.floor(number / heads), number % heads)));
  thumbs.addEventListener('keydown', (event) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((state.layer + step[0] + layers) % layers, (state.head + step[1] + heads) % heads, true);
  });
  document.addEventListener('click', (event) => {
    const target = event.target.closest('[data-head]');
    if (!target) return;
    const [layer, head] = target.dataset.head.split('-').map((x) => x - 1);
    choose(layer, head);
    view.scrollIntoView({ block: 'nearest' });
  });

  async function read(text) {
    const bytes = new Uint8Array(await unpack(texts[text].weights).arrayBuffer());
    Object.assign(state, { bytes, text, at: 0, held: null });
    write();
    paint();
    choose(state.layer, state.head);
    view.dataset.text = text;
  }
  choice.addEventListener('change', () => read(Number(choice.value)));
  await read(0);
  onTheme.push(paint);
  view.dataset.ready = 'yes';
}
if (view) showAttention();

// A click on a column title sorts the table: numbers by their value, the largest first; names alphabetically.
for (const table of document.querySelectorAll('.sortable table')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (cell) => { const x = parseFloat(cell.textContent.replace(/,/g, '')); return Number.isNaN(x) ? cell.textContent : x; };
  heads.forEach((head, column) => {
    const button = made('button', { type: 'button' }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const text = head.classList.contains('text'), down = head.getAttribute('aria-sort') ? head.getAttribute('aria-sort') === 'ascending' : !text;
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const order = (a, b) => { const [x, y] = [a, b].map((row) => value(row.cells[column])); return typeof x === 'string' ? x.localeCompare(y) : x - y; };
      const rows = [...body.rows].filter((row) => !row.classList.contains('marked')).sort((a, b) => down ? order(b, a) : order(a, b));
      body.append(...rows);
    });
  });
}
