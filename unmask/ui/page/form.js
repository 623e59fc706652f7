// The form of a view: a text, a button that computes, and a button that stops. A new request ends the one before it.
import { Refused, post } from "./api.js";
import { element, setProblem } from "./dom.js";

let forms = 0;

/**
 * A form that asks the program. path: where. label, hint, rows, value: of the field. action: of the button.
 * body: from the field's text to the request. show: draws the answer to a request into a box.
 */
export function askForm({ path, label, hint, rows, value, action, body, show }) {
  const id = "field-" + ++forms;
  const field = element("textarea", { id, rows, spellcheck: "false", "aria-describedby": id + "-hint", dir: "auto" });
  const start = element("button", { type: "submit", class: "primary" }, action);
  const stop = element("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const status = element("p", { class: "status", role: "status" });
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const result = element("div", { class: "result" });
  const form = element(
    "form",
    { class: "ask" },
    element("label", { for: id }, label),
    field,
    element("p", { class: "hint", id: id + "-hint" }, hint),
    element("div", { class: "actions" }, start, stop, status),
    problem,
  );
  let running = null;
  let asked = false;
  field.value = value;

  async function run() {
    if (running) running.abort();
    const mine = (running = new AbortController());
    const began = performance.now();
    asked = true;
    setProblem(problem, "");
    stop.hidden = false;
    status.textContent = "Computing …";
    result.setAttribute("aria-busy", "true");
    try {
      const request = body(field.value); // the field and the designs may have changed when the answer comes
      const answer = await post(path, request, mine.signal);
      if (running !== mine) return;
      show(result, answer, request);
      status.textContent = "Computed in " + ((performance.now() - began) / 1000).toFixed(1) + " s";
    } catch (error) {
      if (running !== mine) return;
      status.textContent = error.name === "AbortError" ? "Stopped" : "";
      if (error instanceof Refused) {
        setProblem(problem, error.message);
        result.replaceChildren();
      } else if (error.name !== "AbortError") throw error;
    } finally {
      if (running === mine) {
        running = null;
        stop.hidden = true;
        result.removeAttribute("aria-busy");
      }
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => {
    if (running) running.abort();
    start.focus();
  });
  return { form, result, run, rerun: () => asked && run() };
}
