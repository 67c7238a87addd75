"""The links in the docs lead somewhere, and the names in the map and the glossary exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LLMS = ROOT / "llms.txt"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md", LLMS])
MAP = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "glossary.md"]

LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"`(dayjob(?:\.\w+)+)")
FILE = re.compile(r"`((?:src|tests|docs|benchmarks)/[\w./-]*\w/?)`")


def prose(page: Path) -> str:
    """Return the text without code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as the code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(name: str) -> bool:
    """Return whether the dotted name is a module, or an attribute or a field within one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if part in getattr(found, "__annotations__", {}):
                return part == parts[-1]
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{link} does not exist"
            assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_llms_txt_has_its_form_and_lists_every_page_once() -> None:
    """The form of llmstxt.org: a title, a summary, and sections with lists of links and notes."""
    lines = LLMS.read_text().splitlines()
    assert lines[0] == "# dayjob"
    assert lines[2].startswith("> ")
    sections = lines[lines.index("## Start") :]
    assert all(re.fullmatch(r"(## \w+|- \[.+\]\(.+\): .+|)", line) for line in sections)
    listed = LINK.findall("\n".join(sections))
    assert len(listed) == len(set(listed))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(listed)


@pytest.mark.parametrize("page", MAP, ids=lambda page: page.name)
def test_every_name_and_file_of_the_map_exists(page: Path) -> None:
    text = prose(page)
    names = NAME.findall(text)
    assert len(names) > 20
    assert [name for name in names if not exists(name)] == []
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []


def test_every_word_of_the_glossary_names_its_module_and_is_there_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", MAP[1].read_text(), re.MULTILINE)
    words = [word for word, _ in rows if word not in ("word", "---")]
    assert len(words) > 50
    assert len(words) == len(set(words))
    assert all(NAME.fullmatch(module.removesuffix("`")) for word, module in rows if word in words)


def test_every_design_note_is_listed_and_has_its_three_parts() -> None:
    folder = ROOT / "docs" / "design"
    listed = LINK.findall((folder / "README.md").read_text())
    for page in folder.glob("0*.md"):
        assert page.name in listed
        text = page.read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), page.name
