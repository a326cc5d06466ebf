// The claims ledger: headers become sorting buttons, two fields filter. Without it the table stands as it is.
"use strict";
(() => {
  const table = document.getElementById("ledger");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const controls = document.getElementById("ledger-controls"), count = document.getElementById("ledger-count");
  const text = document.getElementById("ledger-text"), verdict = document.getElementById("ledger-verdict");
  const words = (cell) => cell.textContent.replace(/\s+/g, " ").trim();
  const key = (row, i) => row.cells[i].dataset.key ?? words(row.cells[i]);
  const order = new Intl.Collator("en", { numeric: true });

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const all = words(row).toLowerCase();
      const fits = !verdict.value || row.cells[0].querySelector(".verdict").lastChild.textContent.trim() === verdict.value;
      row.hidden = !(fits && wanted.every((word) => all.includes(word)));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} claims`;
  };

  const sort = (i) => {
    const down = heads[i].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[i].setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => sign * order.compare(key(a, i), key(b, i))));
  };

  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(i));
    head.replaceChildren(button);
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("reset", () => setTimeout(filter));
  text.addEventListener("input", filter);
  verdict.addEventListener("change", filter);
  controls.hidden = false;
  filter(); // a browser may have kept the fields of an earlier visit
})();
