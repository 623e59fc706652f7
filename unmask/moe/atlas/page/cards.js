// Cards: what each expert of a layer takes more often than others do.
const CARDS = 24;

class CardView {
  constructor(state, pane) {
    this.state = state;
    this.order = 0;
    this.find = "";
    this.most = CARDS;
    this.cards = el("div", { class: "cards" });
    this.more = el("button", { type: "button", class: "wide", onclick: () => { this.most += 48; this.draw(); } }, "Show more");
    this.search = el("input", { type: "search", "aria-label": "Find a word", placeholder: "a word", oninput: () => { this.find = this.search.value.trim().toLowerCase(); this.draw(); } });
    const orders = ["by load", "by number", state.raw.heat.length > 1 ? "by label" : "by words", ...(state.raw.removal ? ["by loss without it"] : [])];
    pane.append(
      el("div", { class: "controls" }, layerSlider(state), labelled("Order", chooser("Order of cards", orders, 0, (order) => { this.order = order; this.draw(); })), labelled("Find", this.search)),
      this.cards, this.more,
    );
    state.on("layer", "label", () => { this.most = CARDS; this.draw(); });
    this.draw();
  }

  words(slot) {
    const { names, place, count, lift } = this.state.raw.words;
    const [places, counts, lifts] = [["words-p", place], ["words-c", count], ["words-l", lift]].map(([key, packed]) => this.state.read(key, packed));
    const size = places.length / this.state.slots;
    return Array.from({ length: size }, (_, at) => slot * size + at).filter((at) => places[at] !== NONE32)
      .map((at) => ({ name: names[places[at]], count: counts[at], lift: lifts[at] }));
  }

  // How far the tokens of an expert differ from all tokens: what it takes more of than its share.
  leanings(slot) {
    const { state } = this;
    const everywhere = state.share(0, 0, slot);
    return state.raw.heat[state.label].values.map((name, value) => ({ name, by: state.share(state.label, value, slot) - everywhere }));
  }

  draw() {
    const { state } = this;
    const point = state.layer;
    const load = (expert) => state.share(0, 0, state.slotOf(point, expert));
    let experts = Array.from({ length: state.points[point].experts }, (_, expert) => expert);
    if (this.order === 0) experts.sort((a, b) => load(b) - load(a));
    if (this.order === 2) {
      const strength = (expert) => state.label
        ? Math.max(...this.leanings(state.slotOf(point, expert)).map(({ by }) => by))
        : Math.max(0, ...this.words(state.slotOf(point, expert)).map(({ lift }) => lift));
      experts.sort((a, b) => strength(b) - strength(a));
    }
    if (this.order === 3) {
      const loss = (expert) => this.without(state.slotOf(point, expert))[0];
      const known = (expert) => (Number.isNaN(loss(expert)) ? -Infinity : loss(expert));
      experts.sort((a, b) => known(b) - known(a));
    }
    if (this.find) experts = experts.filter((expert) => this.words(state.slotOf(point, expert)).some(({ name }) => name.toLowerCase().includes(this.find)));
    this.more.hidden = experts.length <= this.most;
    this.cards.replaceChildren(...experts.slice(0, this.most).map((expert) => this.card(point, expert)));
    if (!experts.length) this.cards.append(el("p", { class: "quiet" }, "No expert of this layer has such a word among its strongest."));
  }

  card(point, expert) {
    const { state } = this;
    const slot = state.slotOf(point, expert);
    const share = state.share(0, 0, slot);
    const even = 1 / state.points[point].experts;
    const words = this.words(slot);
    const leanings = state.label ? this.leanings(slot).sort((a, b) => Math.abs(b.by) - Math.abs(a.by)).slice(0, 4) : [];
    const widest = Math.max(...leanings.map(({ by }) => Math.abs(by)), 0.02);
    return el("article", { class: "expert", id: "card-" + point + "-" + expert, tabindex: -1 },
      el("h3", {}, el("bdi", {}, "Expert " + state.expert(expert)), el("small", {}, state.layerName(point))),
      el("p", { class: "load" }, bar(share, Math.max(3 * even, share), even), el("span", {}, share ? percent(share) + " of tokens" : "never first")),
      leanings.length ? el("ul", { class: "leanings" }, leanings.map(({ name, by }) =>
        el("li", {}, el("bdi", { class: "name" }, name), el("span", { class: "lean " + (by < 0 ? "less" : "more"), "aria-hidden": "true" }, el("i", { style: { width: (50 * Math.abs(by)) / widest + "%" } })), el("span", { class: "figure" }, signed(by))))) : null,
      words.length ? el("p", { class: "wordlist" }, words.map(({ name, count, lift }) => [el("span", { class: "word", title: several(count, "time") }, el("bdi", {}, name), el("small", {}, lift.toFixed(lift < 10 ? 1 : 0) + "×")), " "])) : el("p", { class: "quiet" }, "No word stands out."),
      this.removal(slot),
    );
  }

  // How much the loss grows without an expert, with the bounds of its interval; NaN if it is not known.
  without(slot) {
    return this.state.read("without", this.state.raw.removal.all).slice(3 * slot, 3 * slot + 3);
  }

  removal(slot) {
    const { state } = this;
    if (!state.raw.removal) return null;
    const [change, low, high] = this.without(slot);
    if (Number.isNaN(change)) return null;
    const known = Number.isNaN(low) ? "" : " [" + nats(low) + ", " + nats(high) + "]";
    const packed = state.label ? state.raw.removal.labels[state.label - 1] : null;
    const { values } = state.raw.heat[state.label];
    const changes = packed ? Array.from(state.read("without" + state.label, packed).slice(values.length * slot, values.length * (slot + 1))) : [];
    const most = changes.reduce((best, one, at) => (one > (best < 0 ? -Infinity : changes[best]) ? at : best), -1);
    const texts = "on " + several(state.raw.removal.texts, "text");
    return el("p", { class: "removal", title: texts }, "Loss without it" + (state.raw.removal.together ? ", in all layers" : "") + ": " + nats(change) + known,
      most < 0 || !(changes[most] > 0) ? null : ["; most for ", el("bdi", {}, values[most]), ": " + nats(changes[most])]);
  }
}

function openCard(state, point, expert) {
  if (state.layer !== point) state.change("layer", point);
  const view = state.views.cards;
  view.find = view.search.value = "";
  view.most = Math.max(view.most, state.points[point].experts);
  view.draw();
  const card = document.getElementById("card-" + point + "-" + expert);
  card.scrollIntoView({ block: "center" });
  card.focus({ preventScroll: true });
}
