// Tokens: how far the vector moves when a token is left out.
import { badge, chosen } from "./designs.js";
import { decimal, element, legend, level, ordinal, rove, several, shown } from "./dom.js";
import { askForm } from "./form.js";

export function tokensView(section, state) {
  const view = askForm({
    path: "/api/tokens",
    label: "Text",
    hint: "Each token is left out in turn, and the rest is embedded again. At most " + several(state.limits.tokens, "token") + ".",
    rows: 3,
    value: "The film is long, but the last ten minutes are the best that I have seen this year.",
    action: "Leave out each token",
    body: (value) => ({ designs: chosen(), text: value }),
    show: showAnswer,
  });
  section.append(view.form, view.result);
  return { designsChanged: view.rerun };
}

function visible(piece) {
  return shown(piece, "\n").replace(/\n/g, "↵\n");
}

function showAnswer(box, answer) {
  const panels = answer.designs.map((design, place) => panel(answer.pieces, design, place, (at) => panels.forEach((one) => one.point(at))));
  box.replaceChildren(
    element("h2", {}, "Tokens that carry the vector"),
    element("p", { class: "intro" }, "The stronger the colour of a token, the farther the vector moves without it. The number is 1 − cosine of the two vectors: 0 if nothing changes."),
    element("div", { class: "pair" }, ...panels.map((one) => one.box)),
  );
}

function panel(pieces, design, place, point) {
  const high = Math.max(...design.effects);
  const order = design.effects.map((_, at) => at).sort((a, b) => design.effects[b] - design.effects[a]);
  const detail = element("p", { class: "detail", role: "status" }, "Point at a token, or move with the arrow keys.");
  const tokens = pieces.map((piece, at) =>
    element(
      "span",
      { class: "token h" + level(design.effects[at], 0, high), role: "option", "aria-selected": "false", "aria-label": piece.trim() + ": " + decimal(design.effects[at], 4), data: { at } },
      visible(piece),
    ),
  );
  const text = element("p", { class: "tokens", role: "listbox", "aria-label": "Tokens under " + design.name, dir: "auto" }, ...tokens);
  const reach = (token) => point(Number(token.dataset.at));
  rove(text, [tokens], reach);
  text.addEventListener("mouseover", (event) => {
    const token = event.target.closest(".token");
    if (token) reach(token);
  });
  const rows = order.slice(0, 8).map((at) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = (high > 0 ? (100 * design.effects[at]) / high : 0) + "%";
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, element("bdi", { class: "piece" }, visible(pieces[at]).trim() || "␣")),
      element("td", { class: "bars" }, bar),
      element("td", { class: "cosine" }, decimal(design.effects[at], 4)),
    );
  });
  return {
    box: element(
      "div",
      { class: "panel" },
      element("h3", {}, badge(place, design.name)),
      legend("0", decimal(high, 4), "1 − cosine"),
      text,
      detail,
      element("table", { class: "list effects" }, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "largest effects"), element("td", {}), element("th", { scope: "col" }, "1 − cos"))), element("tbody", {}, ...rows)),
      design.cut ? element("p", { class: "note" }, "The text was cut to the limit of tokens.") : null,
    ),
    point: (at) => {
      tokens.forEach((token, other) => {
        token.classList.toggle("marked", other === at);
        token.setAttribute("aria-selected", String(other === at));
      });
      detail.replaceChildren(element("bdi", { class: "piece" }, visible(pieces[at]).trim() || "␣"), " " + decimal(design.effects[at], 4) + ", " + ordinal(order.indexOf(at) + 1) + " of " + several(pieces.length, "token"));
    },
  };
}
