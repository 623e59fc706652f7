// Compare: similarities of texts under both designs, the neighbours of one text, and where the designs disagree.
import { badge, chosen } from "./designs.js";
import { brief, decimal, element, legend, level, ordinal, quoted, rove, several, shown } from "./dom.js";
import { askForm } from "./form.js";

const EXAMPLE = [
  "A man plays a guitar.",
  "Somebody makes music on a stage.",
  "Two dogs run across the wet grass.",
  "A dog chases a ball in the park.",
  "The stock market fell sharply today.",
  "Shares lost a tenth of their value.",
  "It is not raining any more.",
  "It is raining again.",
];

function linesOf(text) {
  return text.split(/\r?\n/).filter((line) => line.trim() !== "");
}

function rangeOf(cosines) {
  const values = cosines.flatMap((row, at) => row.filter((_, other) => other !== at));
  return [Math.min(...values), Math.max(...values)];
}

export function compareView(section, state) {
  const view = askForm({
    path: "/api/similarities",
    label: "Texts, one on each line",
    hint: "2 to " + state.limits.texts + " texts. Ctrl+Enter compares them.",
    rows: 8,
    value: EXAMPLE.join("\n"),
    action: "Compare",
    body: (value) => ({ designs: chosen(), texts: linesOf(value) }),
    show: (box, answer, request) => showAnswer(box, answer, request.texts),
  });
  section.append(view.form, view.result);
  let opened = false;
  return {
    show: () => {
      if (!opened) view.run();
      opened = true;
    },
    designsChanged: view.rerun,
  };
}

function showAnswer(box, answer, texts) {
  const detail = element("p", { class: "detail", role: "status" });
  const near = element("div", { class: "pair" });
  const heading = element("h2", {});
  const digits = answer.designs.map((design) => {
    const [low, high] = rangeOf(design.cosines);
    return high - low < 0.1 ? 3 : 2;
  });
  const tables = answer.designs.map((design, place) => matrix(design, place, texts, digits[place], point, select));

  function point(row, column) {
    tables.forEach((table) => table.mark(row, column));
    const cosines = answer.designs.map((design) => decimal(design.cosines[row][column], 4) + " under " + shown(brief(design.name, 40)));
    detail.replaceChildren(
      element("b", {}, row + 1 + " and " + (column + 1)),
      ": ",
      cosines.join(", "),
      element("span", { class: "texts" }, quoted(brief(texts[row])), quoted(brief(texts[column]))),
    );
  }

  function select(row) {
    tables.forEach((table) => table.select(row));
    heading.replaceChildren("Nearest to text " + (row + 1));
    near.replaceChildren(...answer.designs.map((design, place) => neighbours(design, place, row, texts, answer.designs[1 - place])));
    near.before(heading, subject);
    subject.replaceChildren(quoted(brief(texts[row], 400)));
  }

  const subject = element("p", { class: "subject" });
  detail.append("Point at a cell, or move with the arrow keys, for a pair. Choose a number at the left for its neighbours.");
  box.replaceChildren(
    element("h2", {}, "Similarity"),
    detail,
    element("div", { class: "pair" }, ...tables.map((table) => table.box)),
    near,
    ...disagreement(answer, texts, digits),
  );
  select(0);
}

function matrix(design, place, texts, digits, point, select) {
  const [low, high] = rangeOf(design.cosines);
  const head = element("tr", {}, element("th", { class: "corner" }), ...texts.map((_, at) => element("th", { scope: "col" }, at + 1)));
  const buttons = [];
  const rows = design.cosines.map((row, at) => {
    const button = element("button", { type: "button", class: "number", "aria-pressed": "false", on: { click: () => select(at) } }, at + 1);
    buttons.push(button);
    const cells = row.map((value, other) => {
      const itself = at === other;
      return element("td", { class: itself ? "itself" : "h" + level(value, low, high), data: { row: at, column: other } }, itself ? "–" : decimal(value, digits));
    });
    const name = element("th", { scope: "row" }, element("div", { class: "text" }, button, quoted(brief(texts[at], 100), { title: brief(texts[at], 400) })));
    return { line: element("tr", {}, name, ...cells), cells };
  });
  const table = element("table", { class: "heat", "aria-label": "Cosine of every two texts under " + design.name }, element("thead", {}, head), element("tbody", {}, ...rows.map((row) => row.line)));
  const reach = (cell) => point(Number(cell.dataset.row), Number(cell.dataset.column));
  rove(table, rows.map((row) => row.cells), reach);
  table.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td[data-row]");
    if (cell) reach(cell);
  });
  const cut = design.cut.length ? element("p", { class: "note" }, several(design.cut.length, "text") + " cut to the limit of tokens: " + design.cut.map((at) => at + 1).join(", ") + ".") : null;
  return {
    box: element(
      "div",
      { class: "panel" },
      element("h3", {}, badge(place, design.name)),
      legend(decimal(low, digits), decimal(high, digits), "cosine, " + several(design.dim, "dimension")),
      element("div", { class: "scroll" }, table),
      cut,
    ),
    mark: (row, column) => rows.forEach((one, at) => one.cells.forEach((cell, other) => cell.classList.toggle("marked", at === row && other === column))),
    select: (row) => buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === row))),
  };
}

function neighbours(design, place, row, texts, other) {
  const list = element("ol", { class: "near" });
  design.neighbours[row].slice(0, 5).forEach((at, rank) => {
    const elsewhere = other ? other.neighbours[row].indexOf(at) : rank;
    list.append(
      element(
        "li",
        {},
        element("span", { class: "value" }, decimal(design.cosines[row][at], 3)),
        quoted(brief(texts[at], 160), { title: brief(texts[at], 600) }),
        elsewhere === rank ? null : element("span", { class: "moved" }, ordinal(elsewhere + 1) + " under " + "AB"[1 - place]),
      ),
    );
  });
  return element("div", { class: "panel" }, element("h3", {}, badge(place, design.name)), list);
}

function disagreement(answer, texts, digits) {
  if (answer.designs.length < 2 || answer.pairs < 3) return [];
  const alike = answer.spearman === null ? "" : " Their orders agree with a Spearman correlation of " + decimal(answer.spearman, 2) + ".";
  const intro = element("p", { class: "intro" }, "Each design puts the " + several(answer.pairs, "pair") + " of texts in order, the most similar first." + alike);
  if (!answer.disagreements.length) return [element("h2", {}, "Where the designs disagree"), intro, element("p", {}, "They give all pairs the same places.")];
  const rows = answer.disagreements.slice(0, 5).map((one) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, ...one.texts.map((at) => element("div", { class: "one" }, element("span", { class: "ordinal" }, at + 1), quoted(brief(texts[at], 90))))),
      ...[0, 1].flatMap((place) => [
        element("td", { class: "place" }, one.places[place] % 1 ? decimal(one.places[place], 1) : String(one.places[place])),
        element("td", { class: "cosine" }, decimal(one.cosines[place], digits[place])),
      ]),
    ),
  );
  const heads = [0, 1].flatMap((place) => [element("th", { scope: "col", class: "place" }, "place"), element("th", { scope: "col" }, "cosine")]);
  return [
    element("h2", {}, "Where the designs disagree most"),
    intro,
    element(
      "div",
      { class: "scroll" },
      element(
        "table",
        { class: "list" },
        element(
          "thead",
          {},
          element("tr", {}, element("td", {}), ...answer.designs.map((design, place) => element("th", { scope: "colgroup", colspan: 2 }, badge(place, design.name)))),
          element("tr", {}, element("th", { scope: "col" }, "pair"), ...heads),
        ),
        element("tbody", {}, ...rows),
      ),
    ),
  ];
}
