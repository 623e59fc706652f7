// Sorting, filtering and details. Everything it shows is in the page already; without it the page reads the same.
(function () {
  "use strict";
  const heat = document.getElementById("heat");
  const said = document.getElementById("said");
  const tip = document.createElement("div");
  let shownFor = null;
  let leaving = 0;
  const collator = new Intl.Collator("en", { numeric: true }); // localeCompare would make one for each comparison

  function value(cell, isText) {
    if (!cell || !cell.hasAttribute("data-v")) return null;
    const text = cell.getAttribute("data-v");
    return isText ? text : Number(text);
  }

  // What is missing stands last in either direction; equal rows keep their order.
  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
  }

  function sort(header) {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const now = header.getAttribute("aria-sort");
    const isText = header.dataset.sort === "text";
    const first = isText ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const direction = now === first ? other : first;
    const sign = direction === "ascending" ? 1 : -1;
    const at = header.cellIndex;
    const keyed = Array.from(body.rows, (row) => [value(row.cells[at], isText), row]); // each key once, not at each comparison
    keyed.sort(([a], [b]) => compare(a, b, sign));
    body.append(...keyed.map(([, row]) => row));
    table.querySelectorAll("th[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", direction);
    const words = Array.from(header.querySelector("button").childNodes, (part) => part.textContent.trim()).filter(Boolean);
    said.textContent = "Sorted by " + words.join(" ") + ", " + direction + ".";
  }

  function makeSortable(table) {
    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(header));
    }
  }

  function filter(button) {
    const kind = button.dataset.filter;
    document.querySelectorAll("[data-filter]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    heat.querySelectorAll("th[scope=col], td").forEach((cell) => {
      const own = cell.dataset.kind || "";
      if (cell.classList.contains("kind-mean")) cell.hidden = own !== kind;
      else if (cell.classList.contains("mean")) cell.hidden = kind !== "";
      else if (own) cell.hidden = kind !== "" && own !== kind;
    });
    hide();
    moveStop(null);
    const shown = heat.querySelectorAll("thead th.task:not([hidden])").length;
    said.textContent = shown + (shown === 1 ? " task" : " tasks") + " shown.";
  }

  function fill(row) {
    const heads = row.closest("table").tHead.rows[0].cells;
    const title = document.createElement("strong");
    const list = document.createElement("dl");
    title.textContent = row.cells[0].textContent;
    for (let at = 1; at < row.cells.length; at++) {
      const term = document.createElement("dt");
      const said = document.createElement("dd");
      term.textContent = heads[at].textContent;
      said.textContent = row.cells[at].textContent;
      list.append(term, said);
    }
    tip.replaceChildren(title, list);
  }

  function show(cell) {
    const row = cell.dataset.row && document.getElementById(cell.dataset.row);
    clearTimeout(leaving);
    if (!row) return hide();
    if (shownFor) shownFor.removeAttribute("aria-describedby");
    shownFor = cell;
    fill(row);
    tip.hidden = false;
    cell.setAttribute("aria-describedby", "tip");
    const box = cell.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const room = width - tip.offsetWidth - 8;
    const beside = width > 640; // on a phone it stands below, where there is no room beside
    const right = box.right + 8 <= room ? box.right + 8 : box.left - tip.offsetWidth - 8;
    const left = beside ? right : Math.min(box.left, room);
    const top = beside ? Math.min(box.top, window.innerHeight - tip.offsetHeight - 8) : box.bottom + 6;
    tip.style.left = window.scrollX + Math.max(8, left) + "px";
    tip.style.top = window.scrollY + Math.max(8, top) + "px";
  }

  function hide() {
    clearTimeout(leaving);
    tip.hidden = true;
    if (shownFor) shownFor.removeAttribute("aria-describedby");
    shownFor = null;
  }

  function hideSoon() {
    clearTimeout(leaving);
    leaving = setTimeout(() => {
      const focused = document.activeElement;
      if (heat.contains(focused) && focused.dataset.row) show(focused);
      else hide();
    }, 150);
  }

  function visible(row) {
    return Array.from(row.cells).filter((cell) => cell.tagName === "TD" && !cell.hidden);
  }

  // One cell at a time is a tab stop; the arrow keys move it.
  function moveStop(cell) {
    const stop = cell || visible(heat.tBodies[0].rows[0])[0];
    heat.querySelectorAll("td[tabindex='0']").forEach((one) => one.setAttribute("tabindex", "-1"));
    if (stop) stop.setAttribute("tabindex", "0");
  }

  function move(event) {
    const cell = event.target.closest("td");
    if (!cell) return;
    const rows = Array.from(heat.tBodies[0].rows);
    const row = cell.parentElement;
    const cells = visible(row);
    const at = cells.indexOf(cell);
    const target = {
      ArrowRight: cells[at + 1],
      ArrowLeft: cells[at - 1],
      ArrowDown: rows[rows.indexOf(row) + 1] && visible(rows[rows.indexOf(row) + 1])[at],
      ArrowUp: rows[rows.indexOf(row) - 1] && visible(rows[rows.indexOf(row) - 1])[at],
      Home: cells[0],
      End: cells[cells.length - 1],
    };
    if (!(event.key in target)) return;
    event.preventDefault();
    if (target[event.key]) target[event.key].focus();
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll(".tools").forEach((tools) => (tools.hidden = false));
  document.querySelectorAll("[data-filter]").forEach((button) => button.addEventListener("click", () => filter(button)));
  tip.id = "tip";
  tip.className = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  heat.setAttribute("role", "grid");
  heat.querySelectorAll("td").forEach((cell) => cell.setAttribute("tabindex", "-1"));
  moveStop(null);
  heat.addEventListener("keydown", move);
  heat.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td");
    if (cell) {
      moveStop(cell);
      show(cell);
    }
  });
  heat.addEventListener("focusout", hideSoon);
  heat.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td");
    if (cell) show(cell);
  });
  heat.addEventListener("mouseleave", hideSoon);
  tip.addEventListener("mouseenter", () => clearTimeout(leaving));
  tip.addEventListener("mouseleave", hideSoon);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
