// What to choose on a study's page: the large picture and the small ones follow.

const study = data();
const input = (id) => document.getElementById(id);
const boxes = [...document.querySelectorAll("input[name=method]")];

function seriesOf(method, sweep, [means, halves], plain) {
  const along = study.sweeps[sweep];
  const bands = !plain && halves.every((half) => half !== null);
  return {
    ...study.methods[method], kind: "line", strong: false, marked: !plain, x: along.x, y: means,
    low: bands ? means.map((y, i) => y - halves[i]) : null,
    high: bands ? means.map((y, i) => y + halves[i]) : null,
  };
}

function chartOf(shift, small) {
  const [measure, sweep] = [input("measure").value, input("sweep").value];
  const [name, along] = [study.measures[measure], study.sweeps[sweep]];
  const chosen = boxes.filter((box) => box.checked).map((box) => Number(box.value));
  return {
    title: small ? study.shifts[shift] : `${name}, ${study.shifts[shift]}, ${along.constants}`,
    about: small ? "" : study.about,
    x: { label: along.label, log: along.log, names: along.names },
    y: { label: name, log: input("log").checked, digits: 4 },
    series: chosen.map((m) => seriesOf(m, sweep, study.values[sweep][shift][m][measure], small)),
    height: small ? 170 : 420, legend: false, values: !small,
  };
}

function show() {
  const [large] = document.querySelectorAll("#explorer figure.chart");
  update(large, chartOf(Number(input("shift").value), false));
  // Small ones of the ECE on one scale, to be compared; of the others each on its own, as their
  // height tells how hard a shift is more than what a method does.
  const figures = [...document.querySelectorAll("#every-shift figure.chart")];
  const charts = figures.map((_, i) => chartOf(i + (study.mean ? 1 : 0), true));
  const found = charts.flatMap((chart) => chart.series).flatMap((s) => s.y).filter((y) => y !== null);
  charts.forEach((chart, i) => {
    if (found.length && input("measure").value === "ece") Object.assign(chart.y, { low: Math.min(...found), high: Math.max(...found) });
    update(figures[i], chart);
  });
}

function all(checked) {
  boxes.forEach((box) => { box.checked = checked; });
  show();
}

for (const id of ["measure", "shift", "sweep", "log"]) input(id).addEventListener("change", show);
boxes.forEach((box) => box.addEventListener("change", show));
input("methods-all").addEventListener("click", () => all(true));
input("methods-none").addEventListener("click", () => all(false));
// A browser that comes back to the page may have kept what was chosen.
show();
