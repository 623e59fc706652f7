// Builds every view for every record.
const VIEWS = { heat: HeatView, tokens: TokenView, cards: CardView, flow: FlowView, maps: MapView };
const WHY = {
  flow: (raw) => raw.points.length < 2 && "The model has one routing point, so there is no flow between layers.",
  maps: (raw) => !raw.map && "A map needs at least three texts.",
};

function go(name) {
  document.getElementById(name).scrollIntoView({ block: "start" });
}

function start() {
  const all = [];
  const content = JSON.parse(document.getElementById("data").textContent);
  content.forEach((raw, place) => all.push(new RecordState(raw, place, all)));
  for (const state of all) state.views = {};
  for (const [name, View] of Object.entries(VIEWS)) {
    const panes = document.querySelector(`[data-view="${name}"]`);
    panes.replaceChildren();
    panes.classList.toggle("two", all.length > 1);
    for (const state of all) {
      const pane = el("div", { class: "pane" });
      if (all.length > 1) pane.append(el("h3", { class: "which" }, el("span", {}, "AB"[state.place]), el("bdi", {}, state.raw.model)));
      panes.append(pane);
      const why = WHY[name] && WHY[name](state.raw);
      if (why) pane.append(el("p", { class: "quiet" }, why));
      else state.views[name] = new View(state, pane);
    }
  }
  document.documentElement.classList.add("ready");
}

start();
