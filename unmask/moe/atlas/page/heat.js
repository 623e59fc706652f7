// Layers x experts: one large map of the chosen value, and a small one of every value to choose it by.
const MODES = [["against", "against all"], ["first", "first choice"]];
const MODE_WORDS = {
  against: "How many of these tokens choose the expert first, minus how many of all tokens do, in percentage points. A dash in a narrow cell: clearly fewer.",
  first: "Share of tokens whose first choice is the expert.",
};

class HeatView {
  constructor(state, pane) {
    this.state = state;
    this.mode = state.label ? "against" : "first";
    this.order = 0;
    this.value = 0;
    this.row = 0;
    this.column = 0;
    this.thumbs = el("div", { class: "thumbs", role: "group", "aria-label": "Values of the label" });
    this.canvas = el("canvas", {
      class: "map", tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": "heat-keys",
      onkeydown: (event) => this.key(event), onpointermove: (event) => this.point(event), onclick: (event) => this.point(event, true),
      onfocus: () => this.tell(true),
    });
    this.legend = el("div", { class: "legend" });
    this.told = el("div", { class: "told" }); // what moves is said by the page's own status line
    this.strong = el("ol", { class: "strong" });
    this.controls = el("div", { class: "controls" });
    pane.append(
      this.controls, this.thumbs, el("div", { class: "beside" }, el("div", { class: "drawn" }, this.canvas, this.legend), this.told),
      el("h4", {}, "Strongest"), this.strong,
    );
    state.on("label", () => this.rebuild());
    addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
    this.rebuild();
  }

  // The slots of a row, in the order that is asked for.
  ordered(point) {
    const size = this.state.points[point].experts;
    const places = Array.from({ length: size }, (_, expert) => expert);
    if (this.order === 1) {
      const load = (expert) => this.state.share(0, 0, this.state.slotOf(point, expert));
      return places.sort((a, b) => load(b) - load(a));
    }
    if (this.order === 2) {
      const found = places.map((expert) => this.favourite(point, expert));
      return places.sort((a, b) => found[a][0] - found[b][0] || found[b][1] - found[a][1]);
    }
    return places;
  }

  // The value that an expert takes more of than any other, and by how much.
  favourite(point, expert) {
    const { label, raw } = this.state;
    const own = raw.heat[label].values.map((_, value) => this.number(value, this.state.slotOf(point, expert), "against"));
    const most = Math.max(...own);
    return [own.indexOf(most), most];
  }

  number(value, slot, mode = this.mode) {
    const { state } = this;
    const share = state.share(state.label, value, slot);
    return mode === "against" ? share - state.share(0, 0, slot) : share;
  }

  rebuild() {
    const { state } = this;
    const { heat } = state.raw;
    if (!state.label && this.mode === "against") this.mode = "first";
    if (!state.label && this.order === 2) this.order = 0; // all tokens have one value, so none is a favourite
    this.value = Math.min(this.value, heat[state.label].values.length - 1);
    redrawn(this.controls, () => this.controls.replaceChildren(
      ...(heat.length > 1
        ? [labelled("Label", chooser("Label", heat.map((one) => one.name || "all tokens"), state.label, (label) => state.change("label", label)))]
        : []),
      segments("Show", MODES.slice(state.label ? 0 : 1), this.mode, (mode) => { this.mode = mode; this.draw(); }),
      labelled("Order", chooser("Order of experts", ["by number", "by load", "by favourite value"].slice(0, state.label ? 3 : 2), this.order, (order) => { this.order = order; this.draw(); })),
    ));
    this.thumbs.hidden = heat[state.label].values.length < 2;
    this.thumbs.replaceChildren(
      ...heat[state.label].values.map((value, at) =>
        el(
          "button", { type: "button", class: "thumb", "aria-pressed": at === this.value, onclick: () => { this.value = at; this.draw(); this.moveToStrongest(); } },
          el("canvas", { "aria-hidden": "true" }), el("bdi", { class: "name" }, value), el("small", {}, several(heat[state.label].tokens[at], "token")),
        ),
      ),
    );
    this.draw();
    this.moveToStrongest();
  }

  moveToStrongest() {
    const best = this.best[0];
    [this.row, this.column] = [best[1], best[3]];
    this.drawCursor();
    this.tell(false);
  }

  scale() {
    const { state, mode } = this;
    const { values } = state.raw.heat[state.label];
    let most = 0;
    for (let value = 0; value < values.length; value++)
      for (let slot = 0; slot < state.slots; slot++) most = Math.max(most, Math.abs(this.number(value, slot)));
    const names = mode === "against" ? ["--less", "--less-1", "--none", "--more-1", "--more"] : ["--none", "--more-1", "--more"];
    return { most: most || 1, stops: names.map((name) => rgb(colour(name))) };
  }

  paint(value, slot, { most, stops }) {
    const number = this.number(value, slot);
    return between(stops, this.mode === "against" ? 0.5 + number / most / 2 : number / most);
  }

  draw() {
    const { state } = this;
    this.used = this.scale();
    this.rows = state.points.map((_, point) => this.ordered(point));
    this.columns = Math.max(...state.points.map((point) => point.experts));
    this.thumbs.querySelectorAll("button").forEach((button, value) => {
      button.setAttribute("aria-pressed", String(value === this.value));
      this.drawSmall(button.querySelector("canvas"), value);
    });
    this.drawLarge();
    this.drawLegend();
    this.listStrongest();
    this.tell(false);
  }

  drawSmall(canvas, value) {
    const { state } = this;
    canvas.width = this.columns;
    canvas.height = state.points.length;
    canvas.style.height = clamp(3 * state.points.length, 24, 72) + "px";
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    this.rows.forEach((experts, point) =>
      experts.forEach((expert, column) => {
        const [r, g, b] = this.paint(value, state.slotOf(point, expert), this.used);
        image.data.set([r, g, b, 255], 4 * (point * this.columns + column));
      }),
    );
    context.putImageData(image, 0, 0);
  }

  drawLarge() {
    const { state, canvas, columns } = this;
    const count = state.points.length;
    const room = Math.max(canvas.parentElement.clientWidth, 280); // an embedded page may have no width yet
    const names = state.points.map((point) => point.name);
    const left = 14 + 6.5 * Math.max(...names.map((name) => Math.min(12, name.length)));
    const longest = this.order ? 2 : Math.max(2, ...state.raw.names.map((name) => Math.min(14, name.length)));
    const wide = Math.min(Math.max(58, 6.4 * longest + 10), (room - left) / columns);
    const high = clamp(520 / count, 8, 26);
    const top = 24;
    const ratio = devicePixelRatio || 1;
    this.grid = { left, top, wide, high, longest };
    const width = left + wide * columns;
    const height = top + high * count;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    this.base = el("canvas", { width: canvas.width, height: canvas.height });
    const context = this.base.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px " + colour("--sans");
    context.textBaseline = "middle";
    this.drawAxes(context);
    const gap = wide >= 20 ? 2 : wide >= 5 ? 1 : 0;
    this.rows.forEach((experts, point) =>
      experts.forEach((expert, column) => this.drawCell(context, point, column, this.state.slotOf(point, expert), gap)),
    );
    this.drawCursor();
  }

  // The map as it was drawn, with a frame around one cell.
  drawCursor() {
    const { left, top, wide, high } = this.grid;
    const context = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.base, 0, 0);
    context.scale(ratio, ratio);
    context.strokeStyle = colour("--ink");
    context.lineWidth = 2;
    context.strokeRect(left + this.column * wide + 0.5, top + this.row * high + 0.5, Math.max(4, wide - 1), high - 1);
  }

  drawCell(context, point, column, slot, gap) {
    const { left, top, wide, high } = this.grid;
    const painted = this.paint(this.value, slot, this.used);
    const [x, y] = [left + column * wide, top + point * high];
    context.fillStyle = css(painted);
    context.fillRect(x, y, wide - gap + (gap ? 0 : 0.6), high - (high >= 8 ? 1 : 0));
    const number = this.number(this.value, slot);
    context.fillStyle = isDark(painted) ? "#ffffff" : "#10161c";
    context.textAlign = "center";
    if (wide >= 26 && high >= 15) {
      context.font = (wide < 34 ? "10px " : "11px ") + colour("--sans");
      context.fillText(this.mode === "against" ? signed(number, 0) : (100 * number).toFixed(0), x + (wide - gap) / 2, y + high / 2);
    } else if (this.mode === "against" && number < -0.2 * this.used.most) {
      const room = wide >= 4 ? wide * 0.5 - gap / 2 : wide;
      context.fillRect(x + (wide - gap - room) / 2, y + high / 2 - 0.5, room, 1); // a dash: less, for those who cannot tell the hues apart
    }
  }

  drawAxes(context) {
    const { left, top, wide, high, longest } = this.grid;
    context.fillStyle = colour("--muted");
    context.textAlign = "right";
    const every = Math.ceil(13 / high);
    this.state.points.forEach((point, at) => {
      if (at % every === 0) context.fillText(short(point.name, 12), left - 8, top + (at + 0.5) * high);
    });
    context.textAlign = "center";
    const step = Math.ceil((6.4 * longest + 8) / wide);
    for (let column = 0; column < this.columns; column += step) {
      const text = this.order ? String(column + 1) : this.state.expert(column);
      context.fillText(short(text, 14), left + (column + 0.5) * wide, top / 2);
    }
  }

  drawLegend() {
    const { stops, most } = this.used;
    const colours = Array.from({ length: 9 }, (_, at) => css(between(stops, at / 8))).join(", ");
    const against = this.mode === "against";
    const low = against ? signed(-most, 0) : "0";
    const high = against ? signed(most, 0) + " points" : percent(most, 0);
    this.legend.replaceChildren(
      el("span", {}, low), el("i", { style: { background: "linear-gradient(to right, " + colours + ")" } }),
      el("span", {}, high), el("p", {}, MODE_WORDS[this.mode] + (this.order ? " Experts of each layer are sorted: a column is a rank." : "")),
    );
  }

  listStrongest() {
    const { state } = this;
    const all = [];
    this.rows.forEach((experts, point) =>
      experts.forEach((expert, column) => all.push([this.number(this.value, state.slotOf(point, expert)), point, expert, column])),
    );
    this.best = all.sort((a, b) => b[0] - a[0]).slice(0, 6);
    this.strong.replaceChildren(
      ...this.best.map(([number, point, expert, column]) =>
        el("li", {}, el("button", { type: "button", class: "link", onclick: () => this.move(point, column) },
          state.layerName(point) + ", expert ", el("bdi", {}, state.expert(expert))), " " + this.words(number)),
      ),
    );
  }

  words(number) {
    return this.mode === "against" ? signed(number) : percent(number);
  }

  move(row, column) {
    this.row = clamp(row, 0, this.rows.length - 1);
    this.column = clamp(column, 0, this.rows[this.row].length - 1);
    this.drawCursor();
    this.tell(true);
  }

  point(event, click) {
    const { left, top, wide, high } = this.grid;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - top) / high);
    const column = Math.floor((event.clientX - box.left - left) / wide);
    if (row < 0 || column < 0 || row >= this.rows.length || column >= this.rows[row].length) return;
    if (click || row !== this.row || column !== this.column) this.move(row, column);
  }

  key(event) {
    const { row, column } = this;
    const target = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      Home: [row, 0], End: [row, this.columns], PageUp: [row - 5, column], PageDown: [row + 5, column],
    }[event.key];
    if (event.key === "Enter") openCard(this.state, row, this.rows[row][column]);
    if (!target) return;
    event.preventDefault();
    this.move(...target);
  }

  tell(loud) {
    const { state, row, column, value } = this;
    const expert = this.rows[row][column];
    const slot = state.slotOf(row, expert);
    const heat = state.raw.heat[state.label];
    const everywhere = state.share(0, 0, slot);
    const own = state.share(state.label, value, slot);
    const [place, name] = [state.layerName(row) + ", expert ", state.expert(expert)];
    const called = state.label ? heat.values[value] : "";
    const before = percent(own) + " of " + (state.label ? "tokens of \u201c" : "all tokens");
    const after = state.label ? "\u201d choose it first, " + signed(own - everywhere) + " points against all tokens." : " choose it first.";
    const spoken = place + name + ": " + before + called + after;
    const shares = heat.values.map((_, one) => state.share(state.label, one, slot));
    const most = Math.max(...shares, everywhere);
    this.canvas.setAttribute("aria-label", spoken);
    if (loud) say(spoken);
    this.told.replaceChildren(
      el("h3", {}, place, el("bdi", {}, name)), el("p", {}, before, el("bdi", {}, called), after),
      ...(state.label ? [el("ul", { class: "bars" }, heat.values.map((name, one) =>
        el("li", { class: one === value ? "on" : "" }, el("bdi", { class: "name" }, name), bar(shares[one], most, everywhere), el("span", { class: "figure" }, percent(shares[one])))))] : []),
      el("p", { class: "actions" },
        el("button", { type: "button", class: "link", onclick: () => openCard(state, row, expert) }, "Its card"),
        el("button", { type: "button", class: "link", onclick: () => { state.change("layer", row); go("tokens"); } }, "This layer in a text")),
    );
  }
}
