// The sliders of the plan's page: each place of theirs is a setting that was simulated.

const plan = data();
const AXES = ["samples", "sources", "epsilons"]; // in the order of the spots
const input = (name) => document.getElementById(name);
const now = (name) => Number(input(name).value);
const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });

// The setting at these places of the sliders.
function spotAt(at) {
  return plan.spots[AXES.reduce((index, name) => index * plan[name].length + at[name], 0)];
}

function chartOf(measure, at) {
  const along = input("along").value;
  const here = spotAt(at);
  const spots = plan[along].map((_, i) => spotAt({ ...at, [along]: i })[measure]);
  const series = plan.looks.map((look, m) => {
    const strong = m === here.method;
    const ranged = strong || (input("ranges").checked && look.marked);
    const of = (k) => spots.map((values) => values[m][k]);
    return { ...look, kind: "line", strong, x: plan[along], y: of(0), low: ranged ? of(1) : null, high: ranged ? of(2) : null };
  });
  if (plan.target !== null && measure === "ece")
    series.push({ name: "target", kind: "level", look: 5, x: [], y: [plan.target] });
  series.push({
    name: "recommended", kind: "ring", look: 0, x: [plan[along][at[along]]], y: [here[measure][here.method][0]],
  });
  const { title, label, low, high } = plan.measures[measure];
  return {
    title, about: plan.bands, height: 320, legend: true, values: true, series,
    x: { label: plan.labels[along], log: true }, y: { label, low, high, digits: 3 },
  };
}

function fillTable(spot) {
  const table = document.getElementById("methods");
  for (const row of table.tBodies[0].rows) {
    const m = plan.looks.findIndex((look) => look.name === row.cells[0].textContent);
    const range = ([, low, high]) => `${low.toFixed(3)}–${high.toFixed(3)}`;
    const cells = [
      plan.looks[m].name, spot.ece[m][0], range(spot.ece[m]), spot.ece_if_right[m],
      spot.brier[m][0], range(spot.brier[m]), spot.aurc[m],
    ];
    cells.forEach((value, c) => {
      const said = typeof value === "number" ? value.toFixed(3) : value;
      row.cells[c].replaceChildren(m === spot.method ? el("b", null, said) : said);
      if (typeof value === "number") row.cells[c].dataset.value = value;
    });
  }
}

function show() {
  const at = Object.fromEntries(AXES.map((name) => [name, now(name)]));
  for (const name of AXES) {
    const said = number(plan[name][at[name]]);
    document.getElementById(`${name}-value`).textContent = said;
    input(name).setAttribute("aria-valuetext", said);
  }
  const spot = spotAt(at);
  const [rows, sources, epsilon] = AXES.map((name) => number(plan[name][at[name]]));
  document.querySelector("h1").textContent = `A plan: ${sources} sources of ${rows} rows${plan.summed}, ε = ${epsilon} at each`;
  document.getElementById("recommendation").replaceChildren(el("strong", null, spot.recommendation));
  const enough = document.getElementById("enough");
  enough.textContent = spot.enough;
  enough.className = spot.verdict;
  document.getElementById("odds").textContent = plan.odds[at.epsilons];
  document.getElementById("secure").textContent = spot.secure;
  const figures = document.querySelectorAll("#what-to-expect figure.chart");
  Object.keys(plan.measures).forEach((measure, i) => update(figures[i], chartOf(measure, at)));
  fillTable(spot);
}

for (const name of AXES) input(name).addEventListener("input", show);
for (const name of ["along", "ranges"]) input(name).addEventListener("change", show);
// A browser that goes back to the page may have kept other places of the sliders.
show();
