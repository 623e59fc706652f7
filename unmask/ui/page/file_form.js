// A form that sends a file of the user to the program.
import { Refused, upload } from "./api.js";
import { element, setProblem } from "./dom.js";

let forms = 0;

/**
 * path: where. label, accept: of the file. fields: more inputs, each [name in the query, label, value, placeholder]. limit: bytes.
 * remedy: the command for a file that is larger. done: called with the answer.
 */
export function fileForm({ path, label, accept, fields = [], action, limit, remedy, done }) {
  const id = "file-" + ++forms;
  const file = element("input", { type: "file", id, accept, required: true });
  const inputs = fields.map(([name, text, value, placeholder]) => {
    const input = element("input", { type: "text", id: id + "-" + name, value, placeholder, spellcheck: "false", autocapitalize: "off" });
    return { name, input, box: element("div", {}, element("label", { for: id + "-" + name }, text), input) };
  });
  const start = element("button", { type: "submit", class: "quiet" }, action);
  const status = element("p", { class: "status", role: "status" });
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const form = element(
    "form",
    { class: "open" },
    element("div", {}, element("label", { for: id }, label), file),
    ...inputs.map((one) => one.box),
    element("div", { class: "actions" }, start, status),
    problem,
  );

  async function send([chosen]) {
    setProblem(problem, "");
    const megabytes = (bytes) => Math.ceil(bytes / 2 ** 20) + " MB";
    if (chosen.size > limit) {
      setProblem(problem, "The file has " + megabytes(chosen.size) + ", and at most " + megabytes(limit) + " can be opened here. Name it on the command line: `" + remedy + "`.");
      return;
    }
    status.textContent = "Reading …";
    start.disabled = true;
    try {
      done(await upload(path, chosen, Object.fromEntries(inputs.map((one) => [one.name, one.input.value.trim()]))));
      form.reset();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setProblem(problem, error.message);
    } finally {
      status.textContent = "";
      start.disabled = false;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(file.files);
  });
  return form;
}
