"""Every page is followed from its first block to its last, as a reader would."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.integration.terminal import FILE_LANGUAGES, Terminal, blocks_of, same

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Each is followed by a test of its own, which knows more about it.
ELSEWHERE = ("getting-started.md", "http.md", "protocol.md", "testing.md")
# Followed by tests/spark/test_docs.py: Spark takes its time.
WITH_SPARK = "spark/"
# What nobody can type: drawings, layouts, and what is read and not run.
SHOWN = ("text", "sh", "json")

ALL = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
FOLLOWED = [
    page
    for page in ALL
    if page not in ELSEWHERE
    and not page.startswith(WITH_SPARK)
    and any(each.language not in SHOWN for each in blocks_of((DOCS / page).read_text()))
]


# A shell starts a Python for every command; on a busy machine that adds up.
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    Terminal(tmp_path).follow((DOCS / page).read_text())


def test_the_tutorial_ends_with_the_shop_of_the_examples() -> None:
    def code(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                told = [each for each in body if not isinstance(each, ast.Expr) or _acts(each)]
                node.body = told  # type: ignore[attr-defined]
        return ast.unparse(tree)

    blocks = blocks_of((DOCS / "tutorial.md").read_text())
    *_, last = [each.text for each in blocks if each.text.startswith("# shop.py\n")]
    example = (DOCS.parent / "examples" / "shop.py").read_text()

    assert code(last) == code(example).replace("from __future__ import annotations\n", "")


def _acts(statement: ast.Expr) -> bool:
    """Tell whether it is more than a text for people."""
    return not isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize("page", [page for page in ALL if page not in ELSEWHERE])
def test_every_block_says_what_it_is(page: str) -> None:
    text = (DOCS / page).read_text()
    opened = re.findall(r"^```(\w*)", text, re.MULTILINE)[::2]

    assert {*opened} <= {*FILE_LANGUAGES, *SHOWN, "console"}
    assert len(opened) == len(blocks_of(text))


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a … c\n", "a b c\n", True),
        ("…\nb\n", "x\ny\nb\n", True),
        ("a\n…\n", "a\nx\n", True),
        ("a\n…\n", "b\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_only_an_ellipsis_stands_for_something_else(
    shown: str, printed: str, is_same: bool
) -> None:
    assert same(shown, printed) is is_same
