"""Page: the API on one HTML page, made from its OpenAPI description. It loads nothing from elsewhere and runs no script."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}"
    "code{font-size:.9em}"
)


def page(openapi: dict[str, Any]) -> str:
    """The page of an OpenAPI description."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(openapi['info']['title'])}</title><style>{_STYLE}</style>{''.join(_parts(openapi))}</html>"
    )


def _parts(openapi: dict[str, Any]) -> Iterator[str]:
    yield f"<h1>{escape(openapi['info']['title'])}</h1><p>{escape(openapi['info']['description'])}</p>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a></p>'
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if fields := body.get("properties"):
                yield "<table><tr><th>field</th><th>meaning</th><th>default</th></tr>"
                for name, field in fields.items():
                    default = "required" if name in body.get("required", ()) else str(field.get("default"))
                    yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(field.get('description', ''))}</td>"
                    yield f"<td>{escape(default)}</td></tr>"
                yield "</table>"
            answers = ", ".join(
                f"{status}: {escape(answer['description'])}" for status, answer in operation["responses"].items()
            )
            yield f"<p>Answers: {answers}.</p>"
