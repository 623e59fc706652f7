// Routing: which experts each token goes to, layer by layer.
import { badge, chosen } from "./designs.js";
import { decimal, element, legend, level, message, rove, several, shown } from "./dom.js";
import { askForm } from "./form.js";

export function routingView(section, state) {
  if (state.no_routing) {
    section.append(element("h2", {}, "Routing"), element("p", { class: "intro" }, ...message(state.no_routing)));
    return {};
  }
  const view = askForm({
    path: "/api/routing",
    label: "Text",
    hint: "The text is routed inside the prompt of each design. At most " + several(state.limits.routed, "token") + " with the prompt.",
    rows: 2,
    value: "A man plays a guitar while two dogs run across the grass.",
    action: "Show routing",
    body: (value) => ({ designs: chosen(), text: value }),
    show: (box, answer, request) => showAnswer(box, answer, request.designs),
  });
  section.append(view.form, view.result);
  return { designsChanged: view.rerun };
}

function showAnswer(box, answer, names) {
  const expert = (number) => (answer.expert_names.length > number ? shown(answer.expert_names[number]) : String(number));
  box.replaceChildren(...answer.routes.flatMap((route) => drawn(route, names, expert)));
}

/** The elements that show the routing of one text. names: of the chosen designs; expert: from a number to a name. */
export function drawn(route, names, expert) {
  const high = route.weights.flat(2).reduce((most, weight) => Math.max(most, weight), 0); // too many for the arguments of one call
  const detail = element("p", { class: "detail", role: "status" }, "Point at a cell, or move with the arrow keys, for all chosen experts.");
  const rows = route.tokens.map((token, at) => {
    const cells = route.points.map((_, point) =>
      element("td", { class: "h" + level(route.weights[at][point][0], 0, high), data: { at, point } }, expert(route.experts[at][point][0])),
    );
    const label = element("bdi", { class: "piece" }, shown(token).trim() || "␣");
    return { cells, line: element("tr", { class: at < route.start ? "prompt" : "" }, element("th", { scope: "row" }, label), ...cells) };
  });
  const table = element(
    "table",
    { class: "heat routing", "aria-label": "First expert of every token at every layer" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "token \\ layer"), ...route.points.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map((row) => row.line)),
  );
  const reach = (cell) => {
    const at = Number(cell.dataset.at);
    const point = Number(cell.dataset.point);
    const all = route.experts[at][point].map((number, place) => "expert " + expert(number) + " " + decimal(route.weights[at][point][place], 3));
    table.querySelectorAll(".marked").forEach((one) => one.classList.remove("marked"));
    cell.classList.add("marked");
    detail.replaceChildren(element("bdi", { class: "piece" }, shown(route.tokens[at]).trim() || "␣"), " at layer " + route.points[point] + ": " + all.join(", "));
  };
  rove(table, rows.map((row) => row.cells), reach);
  table.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td[data-at]");
    if (cell) reach(cell);
  });
  const applied = route.applied ? "The number is the expert with the largest weight" : "This model does not tell which experts it chose, so the number is the most probable one";
  const top = route.top.map((one) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, "expert " + expert(one.expert)),
      element("td", {}, "layer " + route.points[one.point]),
      element("td", { class: "bars" }, bar(one.weight / route.top[0].weight)),
      element("td", { class: "cosine" }, decimal(one.weight, 3)),
    ),
  );
  const used = element(
    "table",
    { class: "list effects" },
    element("thead", {}, element("tr", {}, ...["expert", "layer", "", "mean weight"].map((head) => element(head ? "th" : "td", { scope: head ? "col" : null }, head)))),
    element("tbody", {}, ...top),
  );
  return [
    element("h2", {}, "Experts of each token"),
    element("p", { class: "under" }, ...route.names.map((name) => badge(Math.max(0, names.indexOf(name)), name))),
    element("p", { class: "intro" }, applied + "; the stronger the colour, the larger the weight. Tokens in grey are before the embedded part. " + several(route.number, "expert") + " at each of " + several(route.points.length, "routing point") + "."),
    legend("0", decimal(high, 2), route.applied ? "weight" : "probability"),
    element(
      "div",
      { class: "flow" },
      element("div", {}, detail, element("div", { class: "scroll" }, table)),
      element("div", {}, element("h3", {}, "Most used, over the embedded tokens"), used),
    ),
  ];
}

function bar(share) {
  const made = element("span", { class: "bar" });
  made.style.width = 100 * share + "%";
  return made;
}
