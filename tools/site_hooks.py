"""Publish the documentation for programs that read Markdown: llms.txt, and the Markdown source of
each page next to the page.

MkDocs calls these functions while it builds the site (mkdocs.yml). The format is that of
llmstxt.org: a title, a summary, and the pages of each section with a sentence about them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_sections: list[tuple[str, list[Any]]] = []


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Keep the pages of each section, in the order in which they are read."""
    _sections.clear()
    _sections.extend((section.title, list(pages(section))) for section in nav.items if section.is_section)


def pages(section: Any) -> list[Any]:
    children = section.children or []
    return [page for child in children for page in (pages(child) if child.is_section else [child])]


def summary(markdown: str) -> str:
    """Return the first sentence of the page's first paragraph, without the addresses of links."""
    paragraphs = re.split(r"\n\s*\n", markdown)
    prose = [paragraph for paragraph in paragraphs if re.match(r"(?!\d+\.)[\w`*\[\"]", paragraph.strip())]
    text = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose[0] if prose else "").split())
    return re.split(r"(?<=[.:])\s", text)[0].rstrip(":")


def on_post_build(config: Any) -> None:
    site = Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for title, members in _sections:
        lines += [f"## {title}", ""]
        for page in members:
            source = page.file.src_uri
            (site / source).write_text(page.markdown, "utf-8")
            lines.append(f"- [{page.title}]({source}): {summary(page.markdown)}")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")
