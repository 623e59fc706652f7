// Elements. Whatever a text holds, it is set as text: nothing here reads markup.

// Characters that a screen cannot show, or that turn the direction of what follows, so that a text could pass for another.
// Joiners stay: they change how their neighbours look, in emoji and in Persian words. The last four are letters that look like nothing.
const HIDDEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu;

/** A text in which nothing is hidden. keep: characters that stay whatever they are. */
export function shown(text, keep = "") {
  return text.replace(HIDDEN, (character) => {
    if (keep.includes(character)) return character;
    if (character === "\n") return "\\n";
    if (character === "\t") return "\\t";
    if (character === "\r") return "\\r";
    const code = character.codePointAt(0).toString(16);
    if (code.length < 3) return "\\x" + code.padStart(2, "0");
    return code.length < 5 ? "\\u" + code.padStart(4, "0") : "\\U" + code.padStart(8, "0");
  });
}

const READ = ["title", "aria-label"]; // attributes that people read

/** An element. options: class, id, type, on (listeners by event), data, and any attribute. Children are elements or strings. */
export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") Object.entries(value).forEach(([event, listener]) => made.addEventListener(event, listener));
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : READ.includes(name) ? shown(String(value)) : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A user's text, isolated from the direction of the texts around it. */
export function quoted(text, options = {}) {
  return element("bdi", { class: "quoted", ...options }, shown(text));
}

/** A message of the program: what it sets between backticks is code. Ones without a partner stay as they are. */
export function message(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, at) => (at % 2 ? element("code", {}, shown(part)) : shown(part))) : [shown(text)];
}

/** Show a message of the program in a box, or hide the box. */
export function setProblem(box, text) {
  box.hidden = text === "";
  box.replaceChildren(...message(text));
}

/** Buttons of which one is pressed. options: pairs of value and label. press: shows which one is. */
export function choiceOf(name, options, change) {
  const buttons = options.map(([value, label]) => element("button", { type: "button", "aria-pressed": "false", on: { click: () => change(value) } }, label));
  return {
    box: element("div", { class: "choice", role: "group", "aria-label": name }, ...buttons),
    press: (value) => buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === value))),
  };
}

/** The beginning of a text, for places with little room. */
export function brief(text, most = 80) {
  const whole = text.replace(/\s+/g, " ").trim();
  const characters = Array.from(whole);
  return characters.length <= most ? whole : characters.slice(0, most - 1).join("") + "…";
}

export function byId(id) {
  return document.getElementById(id);
}

/** A number with a true minus sign. */
export function decimal(value, digits) {
  return value.toFixed(digits).replace(/^-(?=0(\.0*)?$)/, "").replace("-", "\u2212");
}

/** A count with thin blanks between thousands. */
export function count(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** 1st, 2nd, 3rd, ... */
export function ordinal(number) {
  const ending = number % 100 > 10 && number % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][number % 10] || "th";
  return number + ending;
}

export function several(number, what) {
  return count(number) + "\u00a0" + what + (number === 1 ? "" : "s");
}

/** How strong the colour of a cell is, from 0 to 9. */
export function level(value, low, high) {
  return high > low ? Math.round((9 * (value - low)) / (high - low)) : 0;
}

/** The colours of a scale with the numbers at its ends. */
export function legend(low, high, what) {
  const swatches = element("span", { class: "swatches", "aria-hidden": "true" });
  for (let shade = 0; shade < 10; shade++) swatches.append(element("i", { class: "h" + shade }));
  return element("p", { class: "legend" }, element("span", {}, low), swatches, element("span", {}, high), element("span", { class: "what" }, what));
}

/**
 * One tab stop for many items. Arrow keys move it: along rows (an array of arrays of items) and between them.
 * reached: called with the item that has the focus.
 */
export function rove(container, rows, reached) {
  const items = rows.flat();
  const stop = (item) => items.forEach((one) => one.setAttribute("tabindex", one === item ? "0" : "-1"));
  stop(items[0]);
  container.addEventListener("focusin", (event) => {
    const item = items.find((one) => one.contains(event.target));
    if (item) {
      stop(item);
      reached(item);
    }
  });
  container.addEventListener("keydown", (event) => {
    const row = rows.findIndex((some) => some.includes(event.target));
    if (row < 0) return;
    const at = rows[row].indexOf(event.target);
    const single = rows.length === 1;
    const target = {
      ArrowRight: rows[row][at + 1],
      ArrowLeft: rows[row][at - 1],
      ArrowDown: single ? rows[row][at + 1] : rows[row + 1] && rows[row + 1][Math.min(at, rows[row + 1].length - 1)],
      ArrowUp: single ? rows[row][at - 1] : rows[row - 1] && rows[row - 1][Math.min(at, rows[row - 1].length - 1)],
      Home: rows[row][0],
      End: rows[row][rows[row].length - 1],
    };
    if (!(event.key in target)) return;
    event.preventDefault();
    if (target[event.key]) target[event.key].focus();
  });
}
