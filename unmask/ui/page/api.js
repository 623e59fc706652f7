// Requests to the program behind this page. An error holds the sentence that the program says.

export class Refused extends Error {}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
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
