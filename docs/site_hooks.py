"""Brings what stands outside of docs/ into the site, so that one link is right on both.

On GitHub a page links to `../examples/shop.py`, and ARCHITECTURE.md to `docs/protocol.md`. In the
site those of the root in `PAGES` are pages, and other files of the repository lie below `source/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
"""Files of the repository's root that are pages of the site."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository that pages link to."""
    for name in PAGES:
        text = _links_of_root((ROOT / name).read_text())
        files.append(File.generated(config, name, content=text))
    for page in files.documentation_pages():
        for link, _ in _LINK.findall(page.content_string):
            path = _outside(page.src_uri, link)
            if path and path not in PAGES:
                _add(files, path, config)
    return files


def _add(files: Files, path: str, config: Any) -> None:
    """Add a file of the repository, and what it shows if it is a page itself."""
    if f"source/{path}" in files.src_uris:
        return
    content = (ROOT / path).read_bytes()
    files.append(
        File.generated(
            config,
            f"source/{path}",
            content=content,
            inclusion=InclusionLevel.NOT_IN_NAV,
        )
    )
    if path.endswith(".md"):
        for link, _ in _LINK.findall(content.decode()):
            shown = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
            if (ROOT / shown).is_file():
                _add(files, shown, config)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/ to where the site has them."""
    here = page.file.src_uri

    def turned(found: re.Match[str]) -> str:
        path = _outside(here, found[1])
        if not path:
            return found[0]
        target = path if path in PAGES else f"source/{path}"
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[2] or ''})"

    return _LINK.sub(turned, markdown)


def _outside(page: str, link: str) -> str:
    """Return the path in the repository of a file outside of docs/; empty: it is none."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    inside = path.startswith("docs/") or not (ROOT / path).is_file()
    return "" if inside else path


def _links_of_root(text: str) -> str:
    return text.replace("[docs/](docs/)", "the other parts").replace("](docs/", "](")
