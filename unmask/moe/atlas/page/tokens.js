// A text, token by token: which expert comes first at a layer, and how sure the router is.
const COLOURS = 8;

class TokenView {
  constructor(state, pane) {
    this.state = state;
    this.token = 0;
    this.only = null;
    const { shown, heat } = state.raw;
    this.top = state.read("top", state.raw.top);
    this.shares = state.read("probabilities", state.raw.probabilities);
    this.firsts = shown.reduce((firsts, text) => [...firsts, firsts[firsts.length - 1] + (text.parts.length - 1) / 2], [0]);
    const titles = shown.map((text, at) => {
      const labels = text.labels.map((value, label) => (value < 0 ? null : heat[label + 1].values[value])).filter(Boolean);
      const words = text.parts.slice(0, 24).join("").replace(/\s+/g, " ").trim();
      return [at + 1, ...labels, words.length > 60 ? words.slice(0, 59) + "…" : words].join(" · ");
    });
    this.select = chooser("Text", titles, 0, (text) => state.change("text", text));
    const step = (by) => state.change("text", (state.text + by + shown.length) % shown.length);
    this.legend = el("div", { class: "chips", role: "group", "aria-label": "Experts of this text at this layer" });
    this.body = el("div", {
      class: "tokens", role: "listbox", "aria-label": "Tokens of the text", "aria-orientation": "horizontal",
      onkeydown: (event) => this.key(event), onpointerover: (event) => this.on(event, (token) => this.tell(token)), onpointerleave: () => this.tell(),
      onclick: (event) => this.on(event, (token) => this.choose(token, true)), onfocusin: (event) => this.on(event, (token) => this.choose(token)),
    });
    this.told = el("div", { class: "told" });
    pane.append(
      el("div", { class: "controls" }, labelled("Text", this.select),
        el("span", { class: "pair" }, el("button", { type: "button", class: "step", "aria-label": "Text before", onclick: () => step(-1) }, "←"),
          el("button", { type: "button", class: "step", "aria-label": "Next text", onclick: () => step(1) }, "→")),
        layerSlider(state)),
      this.legend, el("div", { class: "beside" }, this.body, this.told),
    );
    state.on("layer", () => this.draw());
    state.on("text", () => { this.token = 0; this.only = null; this.draw(); });
    this.draw();
  }

  at(token, point = this.state.layer) {
    const { kept, shown } = this.state.raw;
    const place = ((this.firsts[this.state.text] + token) * this.state.points.length + point) * kept;
    const size = Math.min(kept, this.state.points[point].experts);
    return { experts: this.top.subarray(place, place + size), shares: this.shares.subarray(place, place + size), text: shown[this.state.text] };
  }

  draw() {
    const { state } = this;
    const text = state.raw.shown[state.text];
    const count = (text.parts.length - 1) / 2;
    this.select.value = String(state.text);
    const used = new Map();
    for (let token = 0; token < count; token++) {
      const first = this.at(token).experts[0];
      used.set(first, (used.get(first) || 0) + 1);
    }
    const order = [...used.keys()].sort((a, b) => used.get(b) - used.get(a) || a - b);
    const few = state.points[state.layer].experts <= COLOURS;
    this.colours = new Map(order.map((expert, rank) => [expert, few ? expert : rank < COLOURS ? rank : -1]));
    redrawn(this.legend, () => this.drawLegend(order, used, count));
    this.body.replaceChildren(...this.spans(text, count));
    this.tell();
  }

  drawLegend(order, used, count) {
    const { state } = this;
    const chip = (expert) =>
      el("button", {
        type: "button", "aria-label": "only expert " + state.expert(expert), class: "chip c" + this.colours.get(expert), "aria-pressed": this.only === expert,
        onclick: () => { this.only = this.only === expert ? null : expert; this.draw(); },
      }, el("i", { "aria-hidden": "true" }), el("bdi", {}, "expert " + state.expert(expert)), el("small", {}, percent(used.get(expert) / count, 0)));
    const shown = order.slice(0, 12);
    this.legend.replaceChildren(...shown.map(chip), order.length > shown.length ? el("span", { class: "more" }, "and " + several(order.length - shown.length, "other")) : "");
  }

  spans(text, count) {
    const { state } = this;
    const parts = [];
    for (let token = 0; token < count; token++) {
      const { experts, shares } = this.at(token);
      const name = state.expert(experts[0]);
      parts.push(...gap(text.parts[2 * token]));
      const words = text.parts[2 * token + 1];
      parts.push(...words.split("\n").slice(1).map(() => el("br")));
      const off = this.only !== null && this.only !== experts[0];
      parts.push(
        el("span", {
          class: "tok c" + this.colours.get(experts[0]) + (off ? " off" : ""), role: "option", "data-at": token, tabindex: token === this.token ? 0 : -1,
          "aria-selected": token === this.token, "aria-label": (words.trim() || "blank") + ": expert " + name + ", " + Math.round(shares[0] / 2.55) + " %",
          style: { "--sure": (shares[0] / 255).toFixed(2) },
        }, el("bdi", {}, words.trim() || "·"), el("small", { "aria-hidden": "true", dir: "auto" }, name)),
      );
      if (/\s$/.test(words)) parts.push(" ");
    }
    const tail = text.parts[2 * count];
    return [...parts, ...gap(tail), text.cut ? el("span", { class: "quiet" }, " … the rest of the text is not shown") : ""];
  }

  on(event, act) {
    const span = event.target.closest(".tok");
    if (span) act(Number(span.dataset.at));
  }

  // A click, a tap or a key chooses a token. Pointing shows one for the moment: on the way to what is told, a pointer crosses others.
  choose(token, focus) {
    const spans = this.body.querySelectorAll(".tok");
    const before = spans[this.token];
    if (before) { before.tabIndex = -1; before.setAttribute("aria-selected", "false"); }
    this.token = clamp(token, 0, spans.length - 1);
    spans[this.token].tabIndex = 0;
    spans[this.token].setAttribute("aria-selected", "true");
    if (focus) spans[this.token].focus();
    this.tell();
  }

  key(event) {
    const last = this.body.querySelectorAll(".tok").length - 1;
    const target = { ArrowRight: this.token + 1, ArrowLeft: this.token - 1, Home: 0, End: last }[event.key];
    const layer = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (target === undefined && !layer) return;
    event.preventDefault();
    if (layer) {
      this.state.change("layer", clamp(this.state.layer + layer, 0, this.state.points.length - 1));
      this.choose(this.token, true);
    } else this.choose(target, true);
  }

  tell(token = this.token) {
    const { state } = this;
    const { experts, shares, text } = this.at(token);
    const words = text.parts[2 * token + 1];
    const rest = 1 - shares.reduce((sum, share) => sum + share / 255, 0);
    const rows = Array.from(experts, (expert, at) => ["expert " + state.expert(expert), shares[at] / 255]);
    const others = Array.from({ length: state.points[state.layer].experts }, (_, expert) => expert).filter((expert) => !experts.includes(expert));
    if (rest > 0.005) rows.push([others.length === 1 ? "expert " + state.expert(others[0]) : several(others.length, "other"), rest]);
    const path = state.points.map((point, at) => {
      const first = this.at(token, at);
      return el("button", {
        type: "button", class: "cell" + (at === state.layer ? " on" : ""), "aria-label": state.layerName(at) + ": expert " + state.expert(first.experts[0]),
        title: state.layerName(at) + ": expert " + state.expert(first.experts[0]), style: { "--sure": (first.shares[0] / 255).toFixed(2) }, onclick: () => state.change("layer", at),
      }, short(state.expert(first.experts[0]), 12));
    });
    redrawn(this.told, () => this.told.replaceChildren(
      el("h3", {}, el("bdi", {}, "“" + (words.trim() || words.replace(/\n/g, "⏎").replace(/ /g, "␣")) + "”"), " at " + state.layerName(state.layer)),
      el("ul", { class: "bars" }, rows.map(([name, share], at) =>
        el("li", { class: at === 0 ? "on" : "" }, el("bdi", { class: "name" }, name), bar(share, 1), el("span", { class: "figure" }, percent(share, 0))))),
      el("h4", {}, "Its first choice, layer by layer"), el("div", { class: "path" }, path),
    ));
  }
}

function gap(text) {
  return text.split("\n").flatMap((line, at) => (at ? [el("br"), line] : [line]));
}
