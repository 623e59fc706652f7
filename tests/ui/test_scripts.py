"""The page's modules without a browser: what they compute, and what they send."""

from __future__ import annotations

from tests.node import module, value_of

BROWSER = """
const kept = new Map();
globalThis.sessionStorage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value) };
globalThis.location = { search: "?token=abc", hash: "#map" };
globalThis.history = { replaceState: (state, title, address) => { location.search = ""; kept.set("address", address); } };
const sent = [];
globalThis.fetch = async (path, options) => { sent.push(options); return { ok: true, json: async () => ({}) }; };
"""


def test_the_token_of_the_address_is_kept_for_the_tab_and_sent_in_a_header() -> None:
    found = value_of(
        BROWSER
        + f"""const {{ get, post, takeToken }} = await import({module("api.js")});
        takeToken();
        takeToken();  // as after a reload
        await get("/api/state");
        await post("/api/map", {{}});
        const result = {{ address: kept.get("address"), sent }};"""
    )
    assert found["address"] == "/#map"
    assert [one["headers"]["x-unmask-token"] for one in found["sent"]] == ["abc", "abc"]
    assert [one["credentials"] for one in found["sent"]] == ["omit", "omit"]
    assert found["sent"][1]["headers"]["content-type"] == "application/json"
