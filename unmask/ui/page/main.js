// The page: its designs, its tabs, and one module for each view.
import { Refused, get, takeToken } from "./api.js";
import { compareView } from "./compare.js";
import { setUpDesigns } from "./designs.js";
import { byId, setProblem, several, shown } from "./dom.js";
import { mapView } from "./map.js";
import { routingView } from "./routing.js";
import { tokensView } from "./tokens.js";

const VIEWS = { compare: compareView, tokens: tokensView, routing: routingView, map: mapView };
let names = Object.keys(VIEWS); // of the views that this model has
const views = {};

function show(name, focus) {
  for (const other of names) {
    const selected = other === name;
    const tab = byId("tab-" + other);
    byId(other).hidden = !selected;
    tab.setAttribute("aria-selected", String(selected));
    tab.setAttribute("tabindex", selected ? "0" : "-1");
    if (selected && focus) tab.focus();
    if (!selected && views[other].hide) views[other].hide();
  }
  history.replaceState(null, "", "/#" + name);
  if (views[name].show) views[name].show();
}

function setUpTabs() {
  names.forEach((name, at) => {
    const tab = byId("tab-" + name);
    tab.addEventListener("click", () => show(name, false));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(names[(to + names.length) % names.length], true);
    });
  });
}

async function open() {
  try {
    const state = await get("/api/state");
    document.title = "unmask: " + shown(state.model);
    byId("model").textContent = shown(state.model);
    byId("facts").textContent = [
      several(state.layers, "layer"),
      state.dense ? "dense" : several(state.routers, "router"),
      state.dtype + " on " + state.device,
      "texts of at most " + several(state.max_length, "token"),
    ].join(" · ");
    if (state.dense) names = names.filter((name) => name !== "routing"); // an empty view helps nobody
    byId("tab-routing").hidden = state.dense;
    setUpDesigns(state, () => names.forEach((name) => views[name].designsChanged && views[name].designsChanged()));
    for (const name of names) views[name] = VIEWS[name](byId(name), state);
    setUpTabs();
    const wanted = location.hash.slice(1);
    show(names.includes(wanted) ? wanted : "compare", false);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    setProblem(byId("problem"), error.message);
  }
}

takeToken();
open();
