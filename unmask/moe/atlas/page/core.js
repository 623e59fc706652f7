// What all views share: the data, elements, colours, and the state that links one view to another.
const KINDS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array };
const NONE32 = 4294967295;

function unpack(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return new KINDS[packed.type](bytes.buffer);
}

// An element. Strings become text nodes and nothing else: no text of a record is ever read as markup.
function el(tag, given, ...children) {
  const own = document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    const flag = typeof value === "boolean" && !name.startsWith("aria-"); // "aria-pressed" says "false", "hidden" is left out
    if (value === null || value === undefined || (flag && !value)) continue;
    if (name.startsWith("on")) own.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) own.style.setProperty(key, one);
    else own.setAttribute(name, flag ? "" : String(value));
  }
  own.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return own;
}

// Draw a part of the page again; what had the focus in it has it afterwards.
function redrawn(part, draw) {
  const key = (one) => one.getAttribute("aria-label") || one.value || one.textContent;
  const had = part.contains(document.activeElement) ? key(document.activeElement) : null;
  draw();
  if (had === null || part.contains(document.activeElement)) return;
  const again = [...part.querySelectorAll("button, select, input")].find((one) => key(one) === had);
  if (again) again.focus({ preventScroll: true });
}

const percent = (share, digits = 1) => (100 * share).toFixed(digits) + "\u00a0%";
const signed = (share, digits = 1) => {
  const size = Math.abs(100 * share).toFixed(digits);
  return (Number(size) === 0 ? "" : share < 0 ? "\u2212" : "+") + size;
};
const nats = (change) => {
  const size = Math.abs(change).toFixed(3);
  return (Number(size) === 0 ? "" : change < 0 ? "\u2212" : "+") + size;
};
const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const several = (count, what) => grouped(count) + " " + what + (count === 1 ? "" : "s");
const short = (name, room) => (name.length <= room ? name : name.slice(0, Math.max(1, room - 1)) + "…");
const say = (text) => (document.getElementById("said").textContent = text);

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// Between the colours of a scale, at a place from 0 to 1.
function between(stops, place) {
  const at = clamp(place, 0, 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((part, channel) => Math.round(part + (stops[low + 1][channel] - part) * (at - low)));
}

const css = ([r, g, b]) => "rgb(" + r + " " + g + " " + b + ")";

function isDark([r, g, b]) {
  const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z < 0.18;
}

// The record, with what its views share. `change` tells every view that something else is looked at.
class RecordState {
  constructor(raw) {
    this.raw = raw;
    this.points = raw.points;
    this.starts = raw.points.reduce((starts, point) => [...starts, starts[starts.length - 1] + point.experts], [0]);
    this.slots = this.starts[this.points.length];
    this.layer = Math.floor((this.points.length - 1) / 2);
    this.label = raw.heat.length > 1 ? 1 : 0;
    this.text = 0;
    this.listeners = [];
    this.cache = new Map();
    this.slotOf = (point, expert) => this.starts[point] + expert;
  }

  read(key, packed) {
    if (!this.cache.has(key)) this.cache.set(key, unpack(packed));
    return this.cache.get(key);
  }

  // The share of a value's tokens that choose a slot first.
  share(label, value, slot) {
    const heat = this.raw.heat[label];
    return this.read("first" + label, heat.first)[value * this.slots + slot] / Math.max(1, heat.tokens[value]);
  }

  expert(number) {
    return this.raw.names[number] || String(number);
  }

  layerName(point) {
    return "layer " + this.points[point].name;
  }

  change(what, value) {
    this[what] = value;
    this.listeners.forEach((listener) => listener(what));
  }

  on(...names) {
    const listener = names.pop();
    this.listeners.push((what) => names.includes(what) && listener());
  }
}

function chooser(name, options, value, chosen) {
  const select = el("select", { "aria-label": name, onchange: () => chosen(Number(select.value)) });
  options.forEach((option, at) => select.append(el("option", { value: at }, option)));
  select.value = String(value);
  return select;
}

function labelled(name, control) {
  return el("label", { class: "control" }, el("span", {}, name), control);
}

// A slider over the layers of a record, with its name beside it.
function layerSlider(state) {
  const last = state.points.length - 1;
  const told = el("output", {}, "");
  const slider = el("input", {
    type: "range", min: 0, max: Math.max(0, last), step: 1, "aria-label": "Layer",
    oninput: () => state.change("layer", Number(slider.value)),
  });
  const show = () => {
    slider.value = String(state.layer);
    slider.setAttribute("aria-valuetext", state.layerName(state.layer));
    told.textContent = state.points[state.layer].name;
  };
  state.on("layer", show);
  show();
  slider.disabled = last < 1;
  return el("label", { class: "control slider" }, el("span", {}, "Layer"), slider, told);
}

// One choice of several: radio buttons that look like segments.
function segments(name, options, value, chosen) {
  const group = "g" + (segments.count = (segments.count || 0) + 1);
  return el(
    "fieldset", { class: "segments" }, el("legend", { class: "spoken" }, name),
    options.map(([key, text]) =>
      el("label", {}, el("input", { type: "radio", name: group, value: key, checked: key === value, onchange: () => chosen(key) }), el("span", {}, text)),
    ),
  );
}

function bar(share, largest, at) {
  const width = (value) => clamp((100 * value) / (largest || 1), 0, 100) + "%";
  return el(
    "span", { class: "bar", "aria-hidden": "true" }, el("i", { style: { width: width(share) } }),
    at === undefined ? null : el("b", { style: { left: width(at) } }),
  );
}
