// The flow of tokens: which expert follows which, from layer to layer.
const NODES = 14;
const RIBBONS = 36;
const TALL = 420;

class FlowView {
  constructor(state, pane) {
    this.state = state;
    this.state.from = 0;
    this.at = null;
    this.box = el("div", { class: "drawn" });
    this.told = el("div", { class: "told", "aria-live": "polite" });
    this.covered = el("p", { class: "note" });
    pane.append(el("div", { class: "controls" }, (this.slot = el("span"))), el("div", { class: "beside" }, this.box, this.told), this.covered);
    state.on("from", () => this.draw());
    addEventListener("resize", () => this.draw());
    this.draw();
  }

  flows(gap) {
    const { raw } = this.state;
    const read = (key) => this.state.read("flow-" + key + gap, raw.flows[gap][key]);
    const [from, to, tokens] = [read("from"), read("to"), read("tokens")];
    const load = (point, expert) => this.state.share("first", 0, 0, this.state.slotOf(point, expert));
    return Array.from(from, (one, at) => {
      const share = tokens[at] / raw.tokens;
      return { gap, from: one, to: to[at], share, lift: share / Math.max(1e-9, load(gap, one) * load(gap + 1, to[at])) };
    });
  }

  // The strongest experts of each layer in the window, put so that ribbons cross little. The others are one node.
  layout(first, last) {
    const { state } = this;
    const load = (point, expert) => state.share("first", 0, 0, state.slotOf(point, expert));
    const columns = [];
    for (let point = first; point <= last; point++) {
      const all = Array.from({ length: state.points[point].experts }, (_, expert) => expert).filter((expert) => load(point, expert) > 0);
      const kept = all.sort((a, b) => load(point, b) - load(point, a)).slice(0, NODES).sort((a, b) => a - b);
      const rest = 1 - kept.reduce((sum, expert) => sum + load(point, expert), 0);
      columns.push({ point, nodes: kept.map((expert) => ({ point, expert, load: load(point, expert) })), rest: Math.max(0, rest), others: all.length - kept.length });
    }
    const flows = [];
    for (let point = first; point < last; point++) {
      const [here, after] = [columns[point - first], columns[point - first + 1]];
      const find = (column, expert) => column.nodes.find((node) => node.expert === expert);
      flows.push(this.flows(point).map((flow) => ({ ...flow, a: find(here, flow.from), b: find(after, flow.to) })).filter(({ a, b }) => a && b));
    }
    for (let round = 0; round < 4; round++) {
      columns.forEach((column, at) => {
        if (!at) return;
        column.nodes.forEach((node) => {
          const into = flows[at - 1].filter(({ b }) => b === node);
          const total = into.reduce((sum, { share }) => sum + share, 0);
          node.pull = total ? into.reduce((sum, { a, share }) => sum + share * columns[at - 1].nodes.indexOf(a), 0) / total : 99;
        });
        column.nodes.sort((a, b) => a.pull - b.pull);
      });
    }
    return { columns, flows };
  }

  draw() {
    const { state } = this;
    const room = this.box.clientWidth;
    const longest = Math.max(0, ...state.raw.names.map((name) => name.length));
    const named = Math.min(96, 6.2 * longest + 10); // room for the longest name in a block
    const shown = Math.min(state.points.length, clamp(Math.floor(room / Math.max(118, 2 * named)) + 1, 3, 8));
    const lastStart = state.points.length - shown;
    state.from = clamp(state.from, 0, Math.max(0, lastStart));
    if (this.shown !== shown) {
      this.shown = shown;
      this.slot.replaceChildren(lastStart > 0 ? layerSlider(state, "From layer", "from", lastStart) : "");
    }
    const { columns, flows } = this.layout(state.from, state.from + shown - 1);
    this.columns = columns;
    const [wide, node, top] = [Math.max(room, 280), Math.max(26, Math.min(room / shown / 2, named)), 26];
    this.letters = Math.max(3, Math.floor((node - 6) / 6));
    const step = (wide - node) / Math.max(1, shown - 1);
    columns.forEach((column, at) => {
      const gaps = 3 * column.nodes.length;
      let y = top;
      column.x = at * step;
      column.nodes.forEach((one) => {
        Object.assign(one, { x: column.x, y, height: Math.max(1.5, one.load * (TALL - gaps)), out: 0, into: 0 });
        y += one.height + 3;
      });
      column.end = y;
    });
    const drawn = flows.flatMap((all) => all.sort((a, b) => b.share - a.share).slice(0, RIBBONS));
    this.place(drawn);
    this.ribbons = drawn;
    const picture = svg("svg", { viewBox: `0 0 ${wide} ${TALL + top + 24}`, width: wide, height: TALL + top + 24, class: "flow", role: "group", "aria-label": "Flow of tokens between layers" });
    picture.append(...drawn.sort((a, b) => a.lift - b.lift).map((flow) => this.ribbon(flow, step, node)));
    columns.forEach((column) => picture.append(...this.column(column, node)));
    this.box.replaceChildren(picture);
    const covered = flows.length ? drawn.reduce((sum, { share }) => sum + share, 0) / flows.length : 0;
    this.covered.textContent = `Ribbons show ${percent(covered, 0)} of all steps between these layers: at most ${RIBBONS} between two layers, strongest first.` +
      (columns.some(({ others }) => others) ? ` Of each layer the ${NODES} experts with the most tokens have a node.` : "");
    const stop = columns[0].nodes.find((one) => one.load) || columns[0].nodes[0];
    this.choose(stop, false);
  }

  place(drawn) {
    for (const flow of drawn) flow.size = flow.share * (TALL - 3 * NODES);
    for (const [own, other, offset] of [["a", "b", "out"], ["b", "a", "into"]]) {
      [...drawn].sort((p, q) => p[other].y - q[other].y).forEach((flow) => {
        flow[offset] = flow[own].y + flow[own][offset];
        flow[own][offset] += flow.size;
      });
    }
  }

  ribbon(flow, step, node) {
    const [x, to] = [flow.a.x + node, flow.b.x];
    const middle = (x + to) / 2;
    const [y, end, size] = [flow.out, flow.into, Math.max(0.6, flow.size)];
    const kind = flow.lift >= 2 ? "strong" : flow.lift >= 1.25 ? "some" : "even";
    flow.drawn = svg("path", {
      class: "ribbon " + kind,
      d: `M${x} ${y}C${middle} ${y} ${middle} ${end} ${to} ${end}v${size}C${middle} ${end + size} ${middle} ${y + size} ${x} ${y + size}z`,
    });
    return flow.drawn;
  }

  column(column, wide) {
    const { state } = this;
    const anchor = column.x < 1 ? "start" : column === this.columns[this.columns.length - 1] && this.columns.length > 1 ? "end" : "middle";
    const x = { start: column.x, middle: column.x + wide / 2, end: column.x + wide }[anchor];
    const parts = [svg("text", { x, y: 12, class: "head", "text-anchor": anchor }, state.layerName(column.point))];
    for (const node of column.nodes) {
      node.drawn = svg("g", {
        class: "node", tabindex: -1, role: "button", "aria-label": this.describe(node),
        onclick: () => this.choose(node, true), onpointerenter: () => this.choose(node, false), onfocus: () => this.choose(node, false),
        onkeydown: (event) => this.key(event, node),
      }, svg("rect", { x: node.x, y: node.y, width: wide, height: node.height, rx: 2 }));
      if (node.height >= 12) node.drawn.append(svg("text", { x: node.x + wide / 2, y: node.y + node.height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, short(state.expert(node.expert), this.letters)));
      parts.push(node.drawn);
    }
    if (column.others) parts.push(svg("text", { x, y: column.end + 12, class: "head", "text-anchor": anchor }, "+ " + column.others + " (" + percent(column.rest, 0) + ")"));
    return parts;
  }

  describe(node) {
    const { state } = this;
    const title = state.layerName(node.point) + ", expert " + state.expert(node.expert) + ": " + percent(node.load) + " of tokens.";
    const next = this.strongest(node, "a", "b").map(({ name, share, lift }) => `${name} ${percent(share, 0)} (${lift} chance)`).join(", ");
    return title + (next ? " Then: " + next + "." : "");
  }

  // The strongest ribbons of a node, by where they lead (or come from).
  strongest(node, own, other) {
    return this.ribbons.filter((flow) => flow[own] === node).sort((p, q) => q.share - p.share).slice(0, 4).map((flow) => ({
      node: flow[other], name: "expert " + this.state.expert(flow[other].expert), share: flow.share / node.load, lift: flow.lift.toFixed(1) + "×",
    }));
  }

  listed(title, flows) {
    if (!flows.length) return [];
    return [el("h4", {}, title), el("ul", { class: "bars" }, flows.map(({ name, share, lift }) =>
      el("li", {}, el("bdi", { class: "name" }, name), bar(share, 1), el("span", { class: "figure" }, percent(share, 0) + " · " + lift))))];
  }

  choose(node, loud) {
    if (!node) return;
    this.at = node;
    for (const column of this.columns) for (const one of column.nodes) {
      one.drawn.setAttribute("tabindex", one === node ? 0 : -1);
      one.drawn.classList.toggle("on", one === node);
    }
    for (const flow of this.ribbons) flow.drawn.classList.toggle("on", flow.a === node || flow.b === node);
    this.told.replaceChildren(
      el("h3", {}, this.state.layerName(node.point) + ", expert ", el("bdi", {}, this.state.expert(node.expert))), el("p", {}, percent(node.load) + " of tokens choose it first."),
      ...this.listed("Their next expert, and how often against chance", this.strongest(node, "a", "b")),
      ...this.listed("Their expert before", this.strongest(node, "b", "a")), el("p", { class: "actions" },
      el("button", { type: "button", class: "link", onclick: () => openCard(this.state, node.point, node.expert) }, "Its card")));
    if (loud) node.drawn.focus();
  }

  key(event, node) {
    const at = this.columns.findIndex(({ point }) => point === node.point);
    const place = this.columns[at].nodes.indexOf(node);
    const towards = (own, other) => (this.strongest(node, own, other)[0] || {}).node;
    const target = {
      ArrowUp: () => this.columns[at].nodes[place - 1], ArrowDown: () => this.columns[at].nodes[place + 1],
      ArrowRight: () => towards("a", "b"), ArrowLeft: () => towards("b", "a"),
      Enter: () => openCard(this.state, node.point, node.expert),
    }[event.key];
    if (!target) return;
    event.preventDefault();
    const found = target();
    if (found) this.choose(found, true);
  }
}
