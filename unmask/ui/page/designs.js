// The two designs that all views use.
import { Refused } from "./api.js";
import { brief, byId, element, shown } from "./dom.js";

const OWN = "own";
const NAME = 80; // characters: a prompt in a design can be long
const LETTERS = ["A", "B"];
let fields = [];

/** The names of the designs, one or two. Throws Refused while the first one has no name: a result would bear the wrong letter. */
export function chosen() {
  const [first, second] = fields.map((field) => field.name());
  if (first === "") throw new Refused("Write design A and press Enter, or choose one from the list.");
  return second === "" ? [first] : [first, second];
}

/** A letter in a box, and the name of the design that it stands for. */
export function badge(place, name) {
  return element(
    "span",
    { class: "badge" },
    element("b", { class: "letter", "aria-hidden": "true" }, LETTERS[place]),
    element("span", { class: "name", title: name.length > NAME ? name : null }, shown(brief(name, NAME))),
  );
}

function designField(place, designs, name, changed) {
  const id = "design-" + place;
  const select = element("select", { id });
  if (place === 1) select.append(element("option", { value: "" }, "none"));
  for (const design of designs) select.append(element("option", { value: design.name }, shown(design.name)));
  select.append(element("option", { value: OWN }, "write one …"));
  const own = element("input", {
    type: "text",
    hidden: true,
    spellcheck: "false",
    autocapitalize: "off",
    placeholder: "causal/plain/mean",
    "aria-label": "Design " + LETTERS[place] + ", attention/prompt/pooling",
  });
  const meaning = element("p", { class: "meaning" });
  select.value = name;

  function describe() {
    own.hidden = select.value !== OWN;
    const design = designs.find((one) => one.name === select.value);
    meaning.textContent = own.hidden ? (design ? shown(design.meaning || design.design) : "one design only") : "attention/prompt/pooling, then Enter";
  }

  select.addEventListener("change", () => {
    describe();
    if (own.hidden) changed();
    else own.focus();
  });
  own.addEventListener("change", changed);
  describe();
  const label = element("label", { for: id }, element("b", { class: "letter", "aria-hidden": "true" }, LETTERS[place]), "Design " + LETTERS[place]);
  return {
    box: element("div", { class: "design" }, label, select, own, meaning),
    name: () => (select.value === OWN ? own.value.trim() : select.value),
  };
}

export function setUpDesigns(state, changed) {
  fields = LETTERS.map((_, place) => designField(place, state.designs, state.chosen[place] || "", changed));
  byId("designs").append(...fields.map((field) => field.box));
}
