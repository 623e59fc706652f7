// Builds every view.
const VIEWS = { heat: HeatView, tokens: TokenView, cards: CardView };

function go(name) {
  document.getElementById(name).scrollIntoView({ block: "start" });
}

function start() {
  const state = new RecordState(JSON.parse(document.getElementById("data").textContent));
  state.views = {};
  for (const [name, View] of Object.entries(VIEWS)) {
    const pane = document.querySelector(`[data-view="${name}"]`);
    pane.replaceChildren();
    state.views[name] = new View(state, pane);
  }
  document.documentElement.classList.add("ready");
}

start();
