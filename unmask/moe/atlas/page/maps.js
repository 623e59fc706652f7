// Two maps of the same texts, by hidden state and by routing. What is selected in one is selected in the other.
const SIDE = 320;
const MARGIN = 14;
const LISTED = 8;
const REST = "stroke"; // the mark of values that have none of their own

// The mark and the tint of each value of a label. counts: texts of each. The rarest of many values share a mark and a tint.
function looks(counts) {
  const order = counts.map((_, value) => value).sort((a, b) => counts[b] - counts[a]);
  const ranks = new Map(order.map((value, rank) => [value, counts.length <= MARKS.length ? value : rank]));
  return (value) => (ranks.get(value) < MARKS.length ? [MARKS[ranks.get(value)], "c" + ranks.get(value)] : [REST, "c-1"]);
}

class MapView {
  constructor(state, pane) {
    this.state = state;
    const { map, heat } = state.raw;
    this.map = map;
    this.labels = map.labels.map((label, at) => (label ? at : -1)).filter((at) => at >= 0);
    this.label = this.labels.length ? this.labels[0] : -1;
    this.selected = new Set();
    this.active = 0;
    this.places = { hidden: unpack(map.hidden), routing: unpack(map.routing) };
    this.legend = el("div", { class: "chips", role: "group", "aria-label": "Select by label" });
    this.found = el("p", { class: "note" });
    this.told = el("div", { class: "told chosen", "aria-live": "polite" });
    this.pictures = {};
    const maps = ["hidden", "routing"].map((kind) => this.figure(kind));
    const names = this.labels.map((at) => heat[at + 1].name);
    pane.append(
      names.length > 1 ? el("div", { class: "controls" }, labelled("Label", chooser("Label of the map", names, 0, (at) => { this.label = this.labels[at]; this.rebuild(); }))) : "",
      this.legend, el("div", { class: "maps" }, maps), this.told, this.found,
    );
    this.rebuild();
  }

  code(text) {
    return this.label < 0 ? 0 : this.map.labels[this.label].codes[text];
  }

  xy(kind, text) {
    const places = this.places[kind];
    const at = (axis) => MARGIN + (places[2 * text + axis] / 65535) * (SIDE - 2 * MARGIN);
    return [at(0), SIDE - at(1)];
  }

  figure(kind) {
    const [one, two] = this.map.explained[kind];
    const picture = svg("svg", {
      viewBox: `0 0 ${SIDE} ${SIDE}`, class: "scatter", tabindex: 0, role: "application", "aria-roledescription": "map of texts", "aria-describedby": "map-keys",
      onkeydown: (event) => this.key(event, kind), onpointerdown: (event) => this.start(event, kind), onpointermove: (event) => this.drag(event, kind),
      onpointerup: (event) => this.end(event, kind), onpointercancel: () => this.end(null, kind), onfocus: () => this.tell(),
    });
    this.pictures[kind] = { picture, marks: [] };
    const title = kind === "hidden" ? "By hidden state" : "By routing weights";
    return el("figure", {}, el("figcaption", {}, el("strong", {}, title), " " + percent(one, 0) + " and " + percent(two, 0) + " of the variance"), picture);
  }

  rebuild() {
    const { map } = this;
    const values = this.label < 0 ? ["all texts"] : this.state.raw.heat[this.label + 1].values;
    const counts = values.map((_, value) => map.texts.filter((_, text) => this.code(text) === value).length);
    const order = values.map((_, value) => value).sort((a, b) => counts[b] - counts[a]);
    const style = looks(counts);
    this.legend.replaceChildren(...(this.label < 0 ? [] : order.filter((value) => counts[value]).map((value) => {
      const [kind, tint] = style(value);
      return el("button", { type: "button", class: "chip " + tint, "aria-pressed": "false", "data-value": value, onclick: (event) => this.toggle(value, event.currentTarget) },
        svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark(kind, 7, 7, 4)), el("bdi", {}, values[value]), el("small", {}, grouped(counts[value])));
    })));
    for (const [kind, { picture }] of Object.entries(this.pictures)) {
      const marks = map.texts.map((_, text) => {
        const [shape, tint] = style(this.code(text));
        const drawn = mark(shape, ...this.xy(kind, text), 3.1);
        drawn.classList.add(tint);
        return drawn;
      });
      const ring = svg("circle", { class: "active", r: 8, cx: -20, cy: -20 });
      const box = svg("rect", { class: "drag", width: 0, height: 0 });
      picture.replaceChildren(svg("rect", { class: "ground", width: SIDE, height: SIDE, rx: 6 }), ...marks, ring, box);
      Object.assign(this.pictures[kind], { marks, ring, box });
    }
    this.describe();
    this.select(new Set());
  }

  describe() {
    const { neighbours, labels } = this.map;
    const sure = (share, bounds) => percent(share, 0) + (bounds ? ` (95 %: ${percent(bounds[0], 0)} to ${percent(bounds[1], 0)})` : "");
    const near = `Of the ${neighbours.number} nearest texts by hidden state, ${sure(neighbours.shared, neighbours.interval)} are also among the nearest by routing (chance: ${percent(neighbours.chance, 0)}).`;
    const own = this.label < 0 ? null : labels[this.label];
    this.found.textContent = near + (own ? ` Nearest texts have the same ${this.state.raw.heat[this.label + 1].name} in ${sure(own.hidden, own.intervals.hidden)} of cases by hidden state and in ${sure(own.routing, own.intervals.routing)} by routing (chance: ${percent(own.chance, 0)}).` : "") +
      " Both are measured in all dimensions, not on the drawing.";
  }

  toggle(value, button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    this.legend.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(one === button && on)));
    this.select(new Set(on ? this.map.texts.map((_, text) => text).filter((text) => this.code(text) === value) : []), true);
  }

  select(texts, keep) {
    this.selected = texts;
    if (!keep) this.legend.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", "false"));
    for (const { picture, marks } of Object.values(this.pictures)) {
      picture.classList.toggle("some", texts.size > 0);
      marks.forEach((one, text) => one.classList.toggle("on", texts.has(text)));
    }
    this.tell();
  }

  point(event, kind) {
    const box = this.pictures[kind].picture.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  }

  nearest(kind, [x, y]) {
    let best = [Infinity, 0];
    for (let text = 0; text < this.map.texts.length; text++) {
      const [a, b] = this.xy(kind, text);
      const away = (a - x) ** 2 + (b - y) ** 2;
      if (away < best[0]) best = [away, text];
    }
    return best;
  }

  start(event, kind) {
    this.from = event.pointerType === "touch" ? null : this.point(event, kind); // a finger scrolls the page
    if (this.from) event.currentTarget.setPointerCapture(event.pointerId);
  }

  drag(event, kind) {
    const at = this.point(event, kind);
    if (!this.from) {
      const [away, text] = this.nearest(kind, at);
      if (away < 100 && event.pointerType !== "touch") this.activate(text);
      return;
    }
    const [x, y] = [Math.min(at[0], this.from[0]), Math.min(at[1], this.from[1])];
    const size = [Math.abs(at[0] - this.from[0]), Math.abs(at[1] - this.from[1])];
    fill(this.pictures[kind].box, { x, y, width: size[0], height: size[1] }, []);
  }

  end(event, kind) {
    const { box } = this.pictures[kind];
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(box.getAttribute(name)));
    fill(box, { width: 0, height: 0 }, []);
    const dragged = this.from && width * height > 16;
    this.from = null;
    if (!event) return;
    if (dragged) {
      const inside = (text) => { const [a, b] = this.xy(kind, text); return a >= x && a <= x + width && b >= y && b <= y + height; };
      this.select(new Set(this.map.texts.map((_, text) => text).filter(inside)));
    } else {
      const [away, text] = this.nearest(kind, this.point(event, kind));
      if (away < 300) this.activate(text);
      this.select(new Set(away < 300 ? [text] : []));
    }
  }

  activate(text) {
    this.active = text;
    this.tell();
  }

  // The nearest text in the direction of an arrow.
  key(event, kind) {
    const [x, y] = this.xy(kind, this.active);
    const along = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") this.select(new Set());
    if (event.key === "Enter" || event.key === " ") {
      const texts = new Set(this.selected);
      if (!texts.delete(this.active)) texts.add(this.active);
      this.select(texts);
      event.preventDefault();
    }
    if (!along) return;
    event.preventDefault();
    let best = [Infinity, this.active];
    for (let text = 0; text < this.map.texts.length; text++) {
      const [a, b] = this.xy(kind, text);
      const ahead = (a - x) * along[0] + (b - y) * along[1];
      const aside = Math.abs((a - x) * along[1]) + Math.abs((b - y) * along[0]);
      if (ahead > 0.01 && ahead + 2 * aside < best[0]) best = [ahead + 2 * aside, text];
    }
    this.activate(best[1]);
  }

  tell() {
    const { map, state } = this;
    for (const [kind, { ring, picture }] of Object.entries(this.pictures)) {
      const [x, y] = this.xy(kind, this.active);
      fill(ring, { cx: x, cy: y }, []);
      picture.setAttribute("aria-label", this.called(this.active) + ". " + map.texts[this.active]);
    }
    const texts = this.selected.size ? [...this.selected] : [this.active];
    const counts = new Map();
    if (this.label >= 0) for (const text of texts) {
      const name = state.raw.heat[this.label + 1].values[this.code(text)];
      counts.set(name, (counts.get(name) || 0) + 1);
    }
    const parts = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([name, count], at) => [(at ? ", " : ": ") + grouped(count) + " ", el("bdi", {}, name)]);
    const title = this.selected.size ? [several(texts.length, "text") + " selected", ...parts] : "One text";
    this.told.replaceChildren(
      el("h3", {}, title),
      el("ul", {}, texts.slice(0, LISTED).map((text) => el("li", {}, el("bdi", {}, map.texts[text]), el("small", {}, el("bdi", {}, this.called(text))),
        map.shown[text] >= 0 ? el("button", { type: "button", class: "link", onclick: () => { state.change("text", map.shown[text]); go("tokens"); } }, "Token by token") : null))),
      texts.length > LISTED ? el("p", { class: "quiet" }, "and " + several(texts.length - LISTED, "other")) : "",
    );
  }

  called(text) {
    return this.label < 0 ? "" : this.state.raw.heat[this.label + 1].values[this.code(text)];
  }
}
