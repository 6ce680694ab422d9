"""Brings what stands outside of docs/ into the site, so that one link is right on both.

On GitHub a page links to `../examples/shop.py`, and ARCHITECTURE.md to `docs/protocol.md`. In the
site ARCHITECTURE.md is a page, and other files of the repository lie below `source/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = "ARCHITECTURE.md"

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository that pages link to."""
    text = (ROOT / ARCHITECTURE).read_text()
    files.append(File.generated(config, ARCHITECTURE, content=_links_of_architecture(text)))
    for page in files.documentation_pages():
        for link, _ in _LINK.findall(page.content_string):
            path = _outside(page.src_uri, link)
            if path and path != ARCHITECTURE and f"source/{path}" not in files.src_uris:
                content = (ROOT / path).read_text()
                files.append(File.generated(config, f"source/{path}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/ to where the site has them."""
    here = page.file.src_uri

    def turned(found: re.Match[str]) -> str:
        path = _outside(here, found[1])
        if not path:
            return found[0]
        target = path if path == ARCHITECTURE else f"source/{path}"
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[2] or ''})"

    return _LINK.sub(turned, markdown)


def _outside(page: str, link: str) -> str:
    """Return the path in the repository of a file outside of docs/; empty: it is none."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    inside = path.startswith("docs/") or not (ROOT / path).is_file()
    return "" if inside else path


def _links_of_architecture(text: str) -> str:
    return text.replace("[docs/](docs/)", "the other parts").replace("](docs/", "](")
