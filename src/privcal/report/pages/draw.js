"use strict";
// The pictures of drawing.py, drawn again where they have to change. A test compares the two.

const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address: nothing is fetched
const WIDTH = 720, LEFT = 52, RIGHT = 12, TOP = 24, BOTTOM = 42, LOOKS = 16, LETTER = 6.3, LONGEST = 16;
const MARKS = [
  "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z",
  "M-2.7,-2.7h5.4v5.4h-5.4z",
  "M0,-3.6L3.4,2.5H-3.4z",
  "M0,-3.9L3.9,0L0,3.9L-3.9,0z",
  "M0,3.6L3.4,-2.5H-3.4z",
  "M-3,-3L3,3M-3,3L3,-3",
  "M-3.8,0H3.8M0,-3.8V3.8",
];

// An element; what is not an element among its content is text, never markup.
function el(name, attributes, ...content) {
  return filled(document.createElement(name), attributes, content);
}

function svg(name, attributes, ...content) {
  return filled(document.createElementNS(SVG, name), attributes, content);
}

function filled(node, attributes, content) {
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  for (const part of content.flat()) if (part !== null && part !== undefined) node.append(part);
  return node;
}

const n = (value) => value.toFixed(1).replace(/\.0$/, "").replace(/^-0$/, "0");
const isFinite_ = (value) => typeof value === "number" && Number.isFinite(value);

// --- scales ------------------------------------------------------------------------------------

function scale(values, start, end, given) {
  const { log, names, most, roundEnds, inset = 0 } = given;
  const made = (low, high, isLog, ticks) => {
    const into = Math.sign(end - start) * inset;
    const [from, to] = [start + into, end - into];
    const [a, b] = isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
    const at = (value) => from + ((isLog ? Math.log10(Math.max(value, low / 10)) : value) - a) / (b - a) * (to - from);
    return Object.assign(at, { low, high, start, end, ticks });
  };
  if (names) return made(-0.5, Math.max(names.length, 1) - 0.5, false, names.map((name, i) => [i, name]));
  const held = log ? values.filter((v) => v > 0) : values;
  let low = given.low ?? (held.length ? Math.min(...held) : log ? 0.1 : 0);
  let high = given.high ?? (held.length ? Math.max(...held) : 1);
  if (!(low < high)) [low, high] = log ? [low / 2, low * 2] : [low - 0.5, low + 0.5];
  const [freeLow, freeHigh] = [given.low, given.high].map((end) => roundEnds && !isFinite_(end));
  if (log) {
    const room = (high / low) ** 0.04;
    if (freeLow) low /= room;
    if (freeHigh) high *= room;
    return made(low, high, true, logTicks(low, high, most));
  }
  const step = stepOf(low, high, most);
  if (freeLow) low = Math.floor(low / step + 1e-9) * step;
  if (freeHigh) high = Math.ceil(high / step - 1e-9) * step;
  return made(low, high, false, linearTicks(low, high, step));
}

function stepOf(low, high, most) {
  const tens = 10 ** Math.floor(Math.log10((high - low) / most));
  return [1, 2, 2.5, 5, 10, 20].find((s) => (high - low) / (s * tens) <= most) * tens;
}

function linearTicks(low, high, step) {
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) digits++;
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => [(first + i) * step, shown((first + i) * step, digits)]);
}

function logTicks(low, high, most) {
  const [first, last] = [Math.floor(Math.log10(low)) - 1, Math.ceil(Math.log10(high)) + 1];
  let found = [];
  for (const tens of [[1, 2, 5], [1, 3], [1]]) {
    const every = [];
    for (let power = first; power <= last; power++) for (const t of tens) every.push(t * 10 ** power);
    const fewer = every.filter((v) => low * (1 - 1e-9) <= v && v <= high * (1 + 1e-9));
    if (fewer.length > 1) found = fewer;
    if (found.length <= most) break;
  }
  if (!found.length) {
    const tried = [1, 2, 3].map((k) => linearTicks(low, high, stepOf(low, high, most * k)));
    return tried.find((ticks) => ticks.length > 1) ?? [];
  }
  return found.map((v) => [v, shown(v, null)]);
}

// A figure as people read it: with so many digits after the point, or four in all.
function shown(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return "∞";
  const how = digits === null || digits === undefined
    ? { maximumSignificantDigits: Math.abs(value) >= 1000 ? Math.floor(Math.log10(Math.abs(value))) + 1 : 4 }
    : { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString("en-US", how);
}

// --- a chart -----------------------------------------------------------------------------------

function scales(chart, width) {
  const along = chart.series.filter((s) => s.kind !== "level" && s.kind !== "guide");
  const xs = along.flatMap((s) => s.x).filter(isFinite_);
  const ys = chart.series.filter((s) => s.kind !== "guide").flatMap((s) => [s.y, s.low || [], s.high || []]).flat().filter(isFinite_);
  const bars = chart.series.some((s) => s.kind === "bars");
  const across = scale(xs, LEFT, width - RIGHT, {
    ...chart.x, most: Math.max(2, Math.floor((width - LEFT - RIGHT) / 64)), inset: bars || isFinite_(chart.x.high) ? 0 : 10,
  });
  const up = scale(ys, bottomOf(chart, width), TOP, {
    ...chart.y, low: bars ? chart.y.low ?? 0 : chart.y.low, roundEnds: true,
    most: Math.max(2, Math.floor((bottomOf(chart, width) - TOP) / 44)),
  });
  return [across, up];
}

function picture(chart, width = WIDTH) {
  const [across, up] = scales(chart, width);
  const [right, bottom] = [width - RIGHT, n(bottomOf(chart, width))];
  const [left, top] = [LEFT - 5, TOP - 5];
  const [wide, high] = [n(width - LEFT - RIGHT + 10), n(bottomOf(chart, width) - TOP + 5)];
  const grid = svg("g", { "aria-hidden": "true" });
  for (const [value, label] of up.ticks) {
    grid.append(svg("path", { d: `M${LEFT},${n(up(value))}H${right}`, class: "grid" }));
    grid.append(text(LEFT - 6, up(value) + 3.5, label, "end"));
  }
  for (const [value, label] of across.ticks) {
    grid.append(svg("path", { d: `M${n(across(value))},${bottom}v4`, class: "tick" }));
    grid.append(below(across(value), bottomOf(chart, width), label, isTurned(chart, width)));
  }
  const panel = svg("svg", { x: left, y: top, width: wide, height: high, viewBox: `${left} ${top} ${wide} ${high}` },
    chart.series.map((s) => drawn(s, across, up)));
  return svg("svg",
    { viewBox: `0 0 ${n(width)} ${chart.height}`, width: n(width), height: chart.height, role: "img", "aria-label": chart.title },
    svg("title", null, chart.title), svg("desc", null, chart.about), grid,
    svg("path", { d: `M${LEFT},${bottom}H${right}`, class: "axis" }), panel,
    text(0, 11, chart.y.label, "start", "name"), text(right, chart.height - 6, chart.x.label, "end", "name"));
}

const longest = (chart) => Math.max(0, ...(chart.x.names || []).map((name) => [...name].length));

// Whether names along x are too long to stand side by side.
function isTurned(chart, width) {
  return longest(chart) * LETTER > (width - LEFT - RIGHT) / Math.max((chart.x.names || []).length, 1);
}

function bottomOf(chart, width) {
  return chart.height - BOTTOM - (isTurned(chart, width) ? Math.min(longest(chart), LONGEST) * LETTER * 0.6 : 0);
}

function below(x, bottom, label, turned) {
  if (!turned) return text(x, bottom + 16, label, "middle");
  const letters = [...label];
  const short = letters.length <= LONGEST ? label : `${letters.slice(0, LONGEST - 1).join("")}…`;
  return svg("text", { transform: `translate(${n(x + 4)},${n(bottom + 12)}) rotate(-35)`, "text-anchor": "end" }, short);
}

function drawn(series, across, up) {
  const group = svg("g", { class: look(series) });
  const floor = up(up.low);
  if (series.kind === "level") {
    group.append(svg("path", { d: `M${n(across.start)},${n(up(series.y[0]))}H${n(across.end)}`, class: "line" }));
  } else if (series.kind === "bars") {
    const half = barWidth(series.x, across) / 2;
    series.x.forEach((x, i) => {
      if (!isFinite_(series.y[i])) return;
      const d = `M${n(across(x) - half)},${n(floor)}V${n(up(series.y[i]))}h${n(2 * half)}V${n(floor)}z`;
      group.append(svg("path", { d, class: "bar" }));
    });
  } else if (series.kind === "ring") {
    series.x.forEach((x, i) => group.append(svg("circle", { cx: n(across(x)), cy: n(up(series.y[i])), r: 8, class: "ring" })));
  } else {
    const points = series.x.map((x, i) => [x, series.y[i]]).filter((p) => isFinite_(p[1])).map(([x, y]) => [across(x), up(y)]);
    if (series.low && series.high) group.append(spread(series, across, up));
    if (series.kind !== "points") group.append(svg("path", { d: path(points), class: "line" }));
    if (series.marked && series.kind !== "guide") {
      const every = Math.max(1, Math.ceil(points.length / 12));
      const d = MARKS[series.look % MARKS.length];
      points.forEach(([x, y], i) => {
        if (i % every === 0) group.append(svg("path", { d, transform: `translate(${n(x)},${n(y)})`, class: "mark" }));
      });
    }
  }
  return group;
}

function spread(series, across, up) {
  const around = series.x.map((x, i) => [x, series.low[i], series.high[i]])
    .filter((p) => isFinite_(p[1]) && isFinite_(p[2])).map(([x, low, high]) => [across(x), up(low), up(high)]);
  if (series.kind === "points")
    return svg("path", { d: around.map(([x, low, high]) => `M${n(x)},${n(low)}V${n(high)}`).join(""), class: "whisker" });
  const edge = [...around.map(([x, , high]) => [x, high]), ...around.reverse().map(([x, low]) => [x, low])];
  return svg("path", { d: path(edge) + (edge.length ? "z" : ""), class: "band" });
}

function look(series) {
  return ["series", series.kind, `look${series.look % LOOKS}`, series.dashed && "dashed", series.dotted && "dotted", series.strong && "strong"]
    .filter(Boolean).join(" ");
}

function barWidth(xs, across) {
  if (xs.length < 2) return 0.5 * Math.abs(across.end - across.start);
  const places = xs.map(across).sort((a, b) => a - b);
  return 0.9 * Math.min(...places.slice(1).map((place, i) => place - places[i]));
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${n(x)},${n(y)}`).join("");

function text(x, y, said, anchor, name) {
  return svg("text", { x: n(x), y: n(y), "text-anchor": anchor, class: name }, said);
}

// --- beside it ---------------------------------------------------------------------------------

function legend(chart) {
  return el("ul", { class: "legend" }, chart.series.map((s) => el("li", null, swatch(s), s.name)));
}

function swatch(series) {
  const group = svg("g", { class: look(series) });
  if (series.kind === "bars") group.append(svg("path", { d: "M4,1H24V13H4z", class: "bar" }));
  else if (series.kind === "ring") group.append(svg("circle", { cx: 14, cy: 7, r: 6, class: "ring" }));
  else {
    if (series.kind !== "points") group.append(svg("path", { d: "M0,7H28", class: "line" }));
    if (series.marked && series.kind !== "level" && series.kind !== "guide")
      group.append(svg("path", { d: MARKS[series.look % MARKS.length], transform: "translate(14,7)", class: "mark" }));
  }
  return svg("svg", { viewBox: "0 0 28 14", width: 28, height: 14, "aria-hidden": "true" }, group);
}

const told = (chart) => chart.series.filter((s) => s.kind !== "guide" && s.kind !== "ring");

// All places along x at which something has a value, in order.
function places(chart) {
  return [...new Set(told(chart).filter((s) => s.kind !== "level").flatMap((s) => s.x))].sort((a, b) => a - b);
}

function values(chart) {
  const head = [chart.x.label, ...told(chart).map((s) => s.name)].map((h) => el("th", { scope: "col" }, h));
  const rows = places(chart).map((x) => el("tr", null,
    el("th", { scope: "row" }, place(chart, x)), told(chart).map((s) => el("td", null, saidAt(chart, s, x)))));
  const table = el("table", null, el("caption", null, el("div", null, chart.title)), el("thead", null, el("tr", null, head)), el("tbody", null, rows));
  return el("details", { class: "values" }, el("summary", null, "The values as a table"),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" }, table));
}

const place = (chart, x) => (chart.x.names ? chart.x.names[x] : shown(x, chart.x.digits));

function saidAt(chart, series, x) {
  if (series.kind === "level") return shown(series.y[0], chart.y.digits);
  const i = series.x.indexOf(x);
  if (i < 0) return "";
  const value = shown(series.y[i], chart.y.digits);
  if (!series.low || !series.high || !isFinite_(series.low[i])) return value;
  return `${value} (${shown(series.low[i], chart.y.digits)}–${shown(series.high[i], chart.y.digits)})`;
}
