// A click on a heading sorts the rows below it; a second one turns them round.

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (up ? 1 : -1) * compared(a.cells[column], b.cells[column]));
      table.tBodies[0].append(...rows);
    });
  });
}

function compared(a, b) {
  const [x, y] = [a, b].map((cell) => cell.dataset.value);
  if (x !== undefined && y !== undefined) return x - y;
  if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1; // nothing said comes last
  return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

document.querySelectorAll("table.sortable").forEach(sortable);
