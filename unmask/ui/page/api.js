// Requests to the program behind this page. An error holds the sentence that the program says.

export class Refused extends Error {}

/** Take the token out of the address, and keep it for this tab: a cookie would also go to the servers on other ports. */
export function takeToken() {
  const given = new URLSearchParams(location.search).get("token");
  if (given === null) return;
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", "/" + location.hash);
}

async function answer(path, { headers = {}, ...options }) {
  const token = encodeURIComponent(sessionStorage.getItem("token") || "");
  let response;
  try {
    response = await fetch(path, { credentials: "omit", cache: "no-store", headers: { ...headers, "x-unmask-token": token }, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The program behind this page has stopped. Start `unmask ui` again.");
  }
  const content = await response.json();
  if (!response.ok) throw new Refused(content.error.message);
  return content;
}

export function get(path) {
  return answer(path, {});
}

export function post(path, body, signal) {
  return answer(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}
