// Map: the texts of a corpus as points, with a list beside it that says the same.
import { Refused, get, post } from "./api.js";
import { badge, chosen } from "./designs.js";
import { brief, choiceOf, count, decimal, element, quoted, setProblem, several, shown } from "./dom.js";
import { MapCanvas, REST, STYLES, addShape, styleOf } from "./map_canvas.js";

const PLAIN = { colour: "--accent", shape: "circle" };
const LISTED = 100;
const POLL = 400; // milliseconds
const PAUSE = 300; // milliseconds without a key, after which a search by meaning begins
const LAYOUTS = { pca: "PCA", "t-sne": "t-SNE" };
const SEARCHES = { words: "words in a text", meaning: "a sentence or a topic" };

export function mapView(section, state) {
  if (state.corpus) return new MapView(section, state);
  section.append(
    element("h2", {}, "Map of a corpus"),
    element("p", { class: "intro" }, "To see texts as points, start the page with ", element("code", {}, "unmask ui -m " + shown(state.model) + " --corpus texts.jsonl"), "."),
  );
  return {};
}

class MapView {
  constructor(section, state) {
    this.state = state;
    this.open = false;
    this.place = 0; // of the design: A or B
    this.layout = "pca";
    this.by = "words"; // what the search goes by
    this.matches = null; // places that the search found, in its order
    this.cosines = null; // of the places that a search by meaning found
    this.only = new Set(); // labels that are shown
    this.asking = 0; // number of the latest selection: answers to earlier ones come too late
    this.build(section);
  }

  build(section) {
    const { corpus } = this.state;
    this.choice = element("div", { class: "choice", role: "group", "aria-label": "Design of the map" });
    this.layouts = choiceOf("Layout of the map", Object.entries(LAYOUTS), (layout) => this.chooseLayout(layout));
    this.layouts.press(this.layout);
    this.searches = choiceOf("Search by", Object.keys(SEARCHES).map((by) => [by, by]), (by) => this.chooseSearch(by));
    this.status = element("span", { role: "status" });
    this.done = element("span");
    this.bar = element("progress", { hidden: true, "aria-label": "Texts that are embedded" });
    this.problem = element("p", { class: "problem", role: "alert", hidden: true });
    this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "map of texts", "aria-label": "Map of " + several(corpus.texts, "text") + ". Arrow keys move it, plus and minus zoom, Enter selects the text in the middle. The list has the same texts." });
    this.tip = element("div", { class: "tip", hidden: true });
    const zoom = (label, name, act) => element("button", { type: "button", "aria-label": name, title: name, on: { click: act } }, label);
    const tools = element(
      "div",
      { class: "zoom" },
      zoom("+", "Zoom in", () => this.drawing.zoomBy(1.5)),
      zoom("\u2212", "Zoom out", () => this.drawing.zoomBy(1 / 1.5)),
      zoom("⤢", "Show everything", () => { this.drawing.reset(); this.drawing.changed(); }),
    );
    this.search = element("input", { type: "search", id: "map-search", spellcheck: "false", on: { input: () => this.find() } });
    this.search.value = "";
    this.legend = element("div", { class: "labels" });
    this.heading = element("h3", {});
    this.list = element("ol", { class: "texts", tabindex: "-1" });
    this.selection = element("div", { class: "selection", hidden: true });
    const sampled = corpus.rows > corpus.texts ? count(corpus.texts) + " of " + several(corpus.rows, "text") + ", drawn at random" : several(corpus.texts, "text");
    section.append(
      element("div", { class: "bar-top" }, element("div", {}, element("h2", {}, shown(corpus.name)), element("p", { class: "facts" }, sampled)), element("div", { class: "choices" }, this.choice, this.layouts.box)),
      this.bar,
      element("p", { class: "status" }, this.status, this.done),
      this.problem,
      (this.board = element(
        "div",
        { class: "board", hidden: true },
        element("div", { class: "drawn" }, this.canvas, tools, this.tip),
        element("div", { class: "beside" }, element("div", { class: "search" }, element("label", { for: "map-search" }, "Search by"), this.searches.box, this.search), this.legend, this.selection, this.heading, this.list),
      )),
      (this.note = element("p", { class: "note" })),
    );
    this.drawing = new MapCanvas(this.canvas, { hovered: (place) => this.hovered(place), selected: (place) => this.select(place), moved: () => this.listTexts() });
    this.drawing.styles = (place) => this.look(place);
    this.drawing.faded = (place) => !this.wanted(place);
    this.chooseSearch(this.by);
  }

  show() {
    this.open = true;
    this.poll();
  }

  hide() {
    this.open = false;
    clearTimeout(this.timer);
  }

  designsChanged() {
    this.began = null;
    if (this.open) this.poll();
  }

  chooseLayout(layout) {
    this.layout = layout;
    this.layouts.press(layout);
    this.poll();
  }

  chooseSearch(by) {
    this.by = by;
    this.searches.press(by);
    this.search.setAttribute("placeholder", SEARCHES[by]);
    this.find();
  }

  /** The buttons that choose the design. They are made again only for other designs: a new button has no focus. */
  drawChoice(names) {
    const offered = JSON.stringify(names);
    if (offered !== this.offered) {
      this.offered = offered;
      this.choice.replaceChildren(...names.map((name, place) => element("button", { type: "button", on: { click: () => this.choosePlace(place) } }, badge(place, name))));
    }
    Array.from(this.choice.children).forEach((button, place) => button.setAttribute("aria-pressed", String(place === this.place)));
  }

  choosePlace(place) {
    this.place = place;
    this.began = null;
    this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    setProblem(this.problem, "");
    let name; // of the design that is asked for
    const { layout } = this;
    try {
      const names = chosen();
      this.place = Math.min(this.place, names.length - 1);
      this.drawChoice(names);
      name = names[this.place];
      if (name !== this.shownDesign || layout !== this.shownLayout) this.clear();
      this.corpus = this.corpus || (await get("/api/corpus"));
      const answer = await post("/api/map", { design: name, layout });
      if (this.isLeft(name, layout) || !this.open) return;
      if (answer.ready) this.ready(name, layout, answer);
      else this.progress(answer);
    } catch (error) {
      if (name !== undefined && this.isLeft(name, layout)) return;
      this.complain(error);
      this.clear();
      this.bar.hidden = true;
      this.tell("");
    }
  }

  /** Whether another design or layout is chosen than this one. Not while the user writes a design: there is no other one yet. */
  isLeft(name, layout) {
    try {
      return name !== chosen()[this.place] || layout !== this.layout;
    } catch {
      return false;
    }
  }

  /** Show no map, so that none stands under the name of another design. */
  clear() {
    this.shownDesign = null;
    this.board.hidden = this.note.hidden = true;
    if (this.cosines) this.matches = this.cosines = null; // those of another design
    this.hideSelection();
  }

  complain(error) {
    if (!(error instanceof Refused)) throw error;
    setProblem(this.problem, error.message);
  }

  /** Say how the work gets on. status: a screen reader reads it out when it changes, so it changes rarely. done: changes often, silently. */
  tell(status, done = "") {
    if (this.status.textContent !== status) this.status.textContent = status;
    this.done.textContent = done;
  }

  progress(answer) {
    this.timer = setTimeout(() => this.poll(), POLL);
    if (answer.stage === "t-sne") {
      this.bar.hidden = true;
      this.tell("t-SNE is placing " + several(answer.total, "text") + " …");
      return;
    }
    this.began = this.began || [performance.now(), answer.done];
    const [since, before] = this.began;
    const left = answer.done > before ? ((performance.now() - since) / (answer.done - before)) * (answer.total - answer.done) : null;
    const told = left === null ? "" : left > 90000 ? ", about " + Math.round(left / 60000) + " min left" : ", about " + Math.ceil(left / 1000) + " s left";
    this.bar.hidden = false;
    this.bar.max = answer.total;
    this.bar.value = answer.done;
    this.tell("Embedding " + several(answer.total, "text"), ": " + count(answer.done) + " done" + told);
  }

  ready(name, layout, answer) {
    this.tell(this.status.textContent && "The map is ready.");
    this.bar.hidden = true;
    if (this.shownDesign === name && this.shownLayout === layout) return;
    this.shownDesign = name;
    this.shownLayout = layout;
    this.board.hidden = this.note.hidden = false;
    this.note.textContent =
      (layout === "pca"
        ? "The two axes are the first principal components of the vectors (PCA). They hold " + Math.round(100 * answer.share) + " % of their variance, so texts that are close here may be far apart. "
        : "t-SNE keeps near neighbours together. The axes, the distances between groups and the sizes of groups mean nothing. ") +
      "Neighbours are those in all " + several(answer.dim, "dimension") + "." + (answer.cut ? " " + several(answer.cut, "text") + " cut to the limit of tokens." : "");
    this.drawLegend();
    this.drawing.setPoints(answer.points);
    if (this.selected !== undefined) this.select(this.selected);
    if (this.by === "meaning") this.find(); // under this design
    this.listTexts();
  }

  labelOf(place) {
    return this.corpus.labels ? this.corpus.labels[place] : null;
  }

  look(place) {
    const label = this.labelOf(place);
    if (label === null) return PLAIN;
    return label < STYLES ? styleOf(label) : REST;
  }

  wanted(place) {
    return (this.matches === null || this.matches.has(place)) && (this.only.size === 0 || this.only.has(this.labelOf(place)));
  }

  drawLegend() {
    if (!this.corpus.labels || this.legend.children.length) return;
    this.corpus.label_names.slice(0, STYLES).forEach((name, label) => {
      const button = element("button", { type: "button", "aria-pressed": "false" }, swatch(styleOf(label)), element("bdi", {}, shown(brief(name, 40))));
      button.addEventListener("click", () => {
        if (!this.only.delete(label)) this.only.add(label);
        button.setAttribute("aria-pressed", String(this.only.has(label)));
        this.refresh();
      });
      this.legend.append(button);
    });
    const rest = this.corpus.label_names.length - STYLES;
    if (rest > 0) this.legend.append(element("span", { class: "note" }, several(rest, "more label") + " as grey bars"));
  }

  /** Search for what the field holds. An answer counts only if nothing else was asked for meanwhile. */
  find() {
    clearTimeout(this.pause);
    if (this.finding) this.finding.abort();
    this.finding = new AbortController();
    const { signal } = this.finding;
    const query = this.search.value.trim();
    if (query === "") {
      this.matches = this.cosines = null;
      if (this.shownDesign) this.refresh();
    } else if (this.by === "words") this.ask("/api/search", { query }, signal);
    else this.pause = setTimeout(() => this.ask("/api/nearest", { query, design: this.shownDesign }, signal), PAUSE);
  }

  async ask(path, body, signal) {
    if (!this.shownDesign) return; // the search is repeated when the map is ready
    this.heading.textContent = "Searching …";
    try {
      const answer = await post(path, { ...body }, signal);
      if (signal.aborted) return;
      this.matches = new Set(answer.places);
      this.cosines = answer.cosines ? new Map(answer.places.map((place, at) => [place, answer.cosines[at]])) : null;
      setProblem(this.problem, "");
      this.refresh();
    } catch (error) {
      if (!signal.aborted) this.complain(error);
    }
  }

  refresh() {
    this.drawing.draw();
    this.listTexts();
  }

  listTexts() {
    const { frame, points } = this.drawing;
    const places = this.matches
      ? [...this.matches].filter((place) => this.wanted(place))
      : points.map((_, place) => place).filter((place) => this.wanted(place) && this.drawing.inView(place, frame));
    const what = this.cosines ? " nearest in meaning, by cosine" : this.matches ? " found" : " in view";
    this.heading.textContent = several(places.length, "text") + what + (places.length > LISTED ? ", the first " + LISTED + ":" : "");
    this.list.replaceChildren(...places.slice(0, LISTED).map((place) => this.item(place, this.cosines ? decimal(this.cosines.get(place), 2) : undefined)));
  }

  item(place, value) {
    const button = element(
      "button",
      { type: "button", on: { click: () => this.select(place), mouseenter: () => this.drawing.hover(place), mouseleave: () => this.drawing.hover(null) } },
      this.corpus.labels ? swatch(this.look(place)) : null,
      value === undefined ? null : element("span", { class: "value" }, value),
      quoted(brief(this.corpus.snippets[place], 110) || "(empty)"),
    );
    return element("li", {}, button);
  }

  hovered(place) {
    this.tip.hidden = place === null;
    if (place === null) return;
    const [x, y] = this.drawing.at(place);
    const label = this.labelOf(place);
    this.tip.replaceChildren(quoted(this.corpus.snippets[place] || "(empty)"), label === null ? "" : element("span", { class: "label" }, shown(brief(this.corpus.label_names[label]))));
    const [width] = this.drawing.size;
    this.tip.style.left = Math.max(0, Math.min(x + 12, width - this.tip.offsetWidth - 4)) + "px";
    this.tip.style.top = y + 14 + "px";
  }

  async select(place) {
    const asking = ++this.asking;
    try {
      const answer = await post("/api/neighbours", { design: this.shownDesign, place });
      if (asking !== this.asking) return;
      this.selected = place;
      this.drawing.chosen = place;
      this.drawing.near = answer.neighbours.map((one) => one.place);
      this.drawing.draw();
      const label = this.labelOf(place);
      this.selection.hidden = false;
      this.selection.replaceChildren(
        element("div", { class: "top" }, element("h3", {}, "Selected"), element("button", { type: "button", class: "quiet", on: { click: () => this.unselect() } }, "Clear")),
        element("p", { class: "whole", tabindex: "0", dir: "auto" }, shown(answer.text, "\n\t") || "(empty)"),
        label === null ? "" : element("p", { class: "label" }, swatch(this.look(place)), shown(brief(this.corpus.label_names[label]))),
        element("h3", {}, "Its neighbours, by cosine"),
        element("ol", { class: "texts" }, ...answer.neighbours.map((one) => this.item(one.place, decimal(one.cosine, 2)))),
      );
    } catch (error) {
      if (asking === this.asking) this.complain(error);
    }
  }

  /** Show no selection, and none that was asked for before. */
  hideSelection() {
    this.asking++;
    this.drawing.chosen = null;
    this.drawing.near = [];
    this.selection.hidden = true;
  }

  unselect() {
    this.selected = undefined;
    this.hideSelection();
    this.drawing.draw();
    this.canvas.focus();
  }
}

/** A small drawing of how the points of a label look. */
function swatch({ colour, shape }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const steps = [];
  const pen = {
    closePath() { steps.push("Z"); },
    moveTo: (x, y) => steps.push("M" + x + " " + y),
    lineTo: (x, y) => steps.push("L" + x + " " + y),
    rect: (x, y, width, height) => steps.push("M" + x + " " + y + "h" + width + "v" + height + "h" + -width),
    arc: (x, y, radius) => steps.push("M" + (x - radius) + " " + y + "a" + radius + " " + radius + " 0 1 0 " + 2 * radius + " 0a" + radius + " " + radius + " 0 1 0 " + -2 * radius + " 0"),
  };
  addShape(pen, shape, 6, 6, 4.2);
  path.setAttribute("d", steps.join(""));
  path.style.fill = "var(" + colour + ")";
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}
