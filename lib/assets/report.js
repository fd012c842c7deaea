// What the report adds to its tables, which read without it: heads that sort, and a filter of the pairs.

const told = document.getElementById("told");

/** A cell's value: its number where it has one, else its words. */
function value(row, column) {
  const { dataset, textContent } = row.cells[column];
  if (!("value" in dataset)) return textContent.trim();
  return dataset.value === "" ? null : Number(dataset.value);
}

function sort(table, column, descending) {
  const rows = [...table.tBodies[0].rows];
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  rows.sort((first, second) => {
    const [a, b] = [value(first, column), value(second, column)];
    if (a == null || b == null) return (a == null) - (b == null); // what has no value stays below
    return descending ? compare(b, a) : compare(a, b);
  });
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    const [words, ...rest] = head.childNodes;
    button.append(words);
    head.append(button, ...rest);
    button.addEventListener("click", () => {
      const first = table.tBodies[0].rows[0]?.cells[column];
      const start = first && "value" in first.dataset ? "descending" : "ascending";
      const other = start === "descending" ? "ascending" : "descending";
      const way = head.getAttribute("aria-sort") === start ? other : start;
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", way);
      sort(table, column, way === "descending");
      told.textContent = `Sorted by ${button.textContent.trim()}, ${way}.`;
    });
  });
}

function makeFilter(form) {
  const table = document.querySelector("#pairs table");
  const rows = [...table.tBodies[0].rows];
  const count = form.querySelector(".count");
  const apply = () => {
    const { measure, first, second, differing } = form.elements;
    const chosen = [first.value, second.value].filter((run) => run !== "");
    let [shown, different] = [0, 0];
    for (const row of rows) {
      const differs = row.dataset.differs === "yes";
      const runs = [row.dataset.first, row.dataset.second];
      const ofMeasure = measure.value === "" || row.dataset.measure === measure.value;
      const within = ofMeasure && chosen.every((run) => runs.includes(run));
      row.hidden = !within || (differing.checked && !differs);
      shown += within;
      different += within && differs;
    }
    table.classList.toggle("one-measure", measure.value !== "");
    count.textContent = `${different} of ${shown} pairs are distinguishable.`;
  };
  form.hidden = false;
  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}

for (const table of document.querySelectorAll("table.sorts")) makeSortable(table);
for (const form of document.querySelectorAll("form.filters")) makeFilter(form);
explorer(document.getElementById("explorer"), embedded(), { hash: true });
