// Reports: pages that opened folders hold. Each opens in a tab and an origin of its own.
import { element, shown } from "./dom.js";

export function reportsView(section, state) {
  if (!state.reports.length) {
    section.append(
      element("h2", {}, "Reports"),
      element("p", { class: "intro" }, "No folder was given. Start the page with one that holds reports:"),
      element("p", {}, element("code", {}, "unmask ui FOLDER -m " + shown(state.model))),
    );
    return {};
  }
  const rows = state.reports.map((report) =>
    element(
      "li",
      {},
      element("a", { href: report.address, target: "_blank", rel: "noopener noreferrer" }, shown(report.title)),
      element("span", { class: "file" }, shown(report.file)),
      element("time", { datetime: report.changed }, new Date(report.changed).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })),
    ),
  );
  section.append(element("h2", {}, "Reports"), element("p", { class: "intro" }, "Each opens in a new tab."), element("ul", { class: "reports" }, ...rows));
  return {};
}
