// Every chart at the width it has; its values on hover, and by the arrow keys once it has the focus.

const shownCharts = new Map();

// What a page's script gave the page, as plain values.
const data = () => JSON.parse(document.getElementById("data").textContent);

// Draw another chart in a figure's place: with its legend, its words and its table.
function update(figure, chart) {
  const state = shownCharts.get(figure);
  state.chart = chart;
  figure.querySelector("h3").textContent = chart.title;
  figure.querySelector("figcaption").textContent = chart.about;
  const replace = (selector, made) => figure.querySelector(selector)?.replaceWith(made);
  replace("ul.legend", legend(chart));
  const open = figure.querySelector("details.values")?.open;
  replace("details.values", values(chart));
  if (open) figure.querySelector("details.values").open = true;
  redraw(state);
}

function redraw(state) {
  state.width = Math.max(260, Math.min(WIDTH * 1.5, Math.floor(state.box.clientWidth)));
  state.box.querySelector("svg")?.remove();
  state.svg = picture(state.chart, state.width);
  state.box.prepend(state.svg);
  leave(state);
}

function hydrate(figure) {
  const box = figure.querySelector(".picture");
  const chart = JSON.parse(figure.querySelector("script.chart").textContent);
  const state = { box, chart, at: null, heard: el("p", { class: "heard", "aria-live": "polite" }) };
  shownCharts.set(figure, state);
  box.after(state.heard);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `${chart.title}: arrow keys tell the values`);
  redraw(state);
  box.addEventListener("pointermove", (event) => follow(state, event.clientX));
  box.addEventListener("pointerdown", (event) => follow(state, event.clientX));
  box.addEventListener("pointerleave", () => leave(state));
  box.addEventListener("blur", () => leave(state));
  box.addEventListener("keydown", (event) => keyed(state, event));
  new ResizeObserver(() => { if (Math.abs(box.clientWidth - state.width) > 1) redraw(state); }).observe(box);
}

function follow(state, clientX) {
  const x = clientX - state.svg.getBoundingClientRect().left;
  const [across] = scales(state.chart, state.width);
  const all = places(state.chart);
  if (!all.length) return;
  point(state, all.reduce((a, b) => (Math.abs(across(b) - x) < Math.abs(across(a) - x) ? b : a)));
}

function keyed(state, event) {
  const all = places(state.chart);
  const at = all.indexOf(state.at);
  const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? all.length - 1 : at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (event.key === "Escape") leave(state);
  if (to === undefined || !all.length) return;
  event.preventDefault();
  point(state, all[Math.max(0, Math.min(to, all.length - 1))], true);
}

// Show the values at a place, and say them where keys asked for them.
function point(state, x, aloud = false) {
  if (state.at === x && !aloud) return;
  leave(state);
  state.at = x;
  const chart = state.chart;
  const [across] = scales(chart, state.width);
  const found = told(chart).map((s) => [s, saidAt(chart, s, x)]).filter(([, said]) => said !== "");
  const where = `${chart.x.label}: ${place(chart, x)}`;
  state.svg.append(svg("path", { d: `M${n(across(x))},${TOP}V${n(bottomOf(chart, state.width))}`, class: "here" }));
  state.tip = el("div", { class: "tip", "aria-hidden": "true" }, el("p", null, where),
    el("ul", null, found.map(([s, said]) => el("li", null, swatch(s), s.name, el("b", null, said)))));
  state.box.append(state.tip);
  const right = across(x) + 12 + state.tip.offsetWidth <= state.width;
  state.tip.style.left = `${right ? across(x) + 12 : Math.max(0, across(x) - 12 - state.tip.offsetWidth)}px`;
  state.tip.style.top = `${TOP}px`;
  if (aloud) state.heard.textContent = [where, ...found.map(([s, said]) => `${s.name} ${said}`)].join("; ");
}

function leave(state) {
  state.tip?.remove();
  state.svg?.querySelector(".here")?.remove();
  state.tip = state.at = null;
}

document.documentElement.classList.add("script");
document.querySelectorAll("figure.chart").forEach(hydrate);
