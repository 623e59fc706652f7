// Reports: pages that opened folders hold. Each opens in a tab and an origin of its own.
import { fileForm } from "./file_form.js";
import { element, shown } from "./dom.js";

export function reportsView(section, state) {
  const list = element("ul", { class: "reports" });
  const draw = (reports) => list.replaceChildren(...reports.map(item));
  draw(state.reports);
  section.append(
    element("h2", {}, "Reports"),
    state.reports.length
      ? element("p", { class: "intro" }, "Each opens in a new tab.")
      : element("p", { class: "intro" }, "Open the HTML file of a report. To list all reports of a folder, with their figures and data, start the page with ", element("code", {}, "unmask ui FOLDER -m " + shown(state.model)), "."),
    list,
    fileForm({ path: "/api/reports", label: "Report", accept: ".html", action: "Open", limit: state.limits.upload, remedy: "unmask ui FOLDER", done: draw }),
  );
  return {};
}

function item(report) {
  return element(
    "li",
    {},
    element("a", { href: report.address, target: "_blank", rel: "noopener noreferrer" }, shown(report.title)),
    element("span", { class: "file" }, shown(report.file)),
    element("time", { datetime: report.changed }, new Date(report.changed).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })),
  );
}
