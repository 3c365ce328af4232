"""The console: a page at `/` that asks the same API as any client.

Its files say nothing about the version, so they need no key; what the page asks for does.

No annotation here may be a string: FastAPI reads them.
"""

import json
from importlib.resources import files
from typing import get_args

from fastapi import FastAPI, Response

from rails_ray.schema.requests import CUTOFF_KINDS, Method

FILES = {
    "/": ("index.html", "text/html"),
    "/console.js": ("console.js", "text/javascript"),
    "/console.css": ("console.css", "text/css"),
}
NAMES = {"methods": get_args(Method), "cutoffs": CUTOFF_KINDS}
SCHEMA = f'"use strict";\nconst SCHEMA = {json.dumps(NAMES)};\n'.encode()  # goes before each script
HEADERS = {
    # Nothing but the page's own files and API: no inline script, no other host, no frame around it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_routes(api: FastAPI) -> None:
    """Add the page and its files to an application."""
    for path, (name, kind) in FILES.items():
        content = files(__name__).joinpath(name).read_bytes()
        _add(api, path, SCHEMA + content if kind == "text/javascript" else content, kind)


def _add(api: FastAPI, path: str, content: bytes, kind: str) -> None:
    @api.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)
