"""A page as its elements."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    VOID = frozenset({"meta", "br", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.append(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href"):
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"nothing to close with </{tag}>"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.said.append(data)

    @property
    def text(self) -> str:
        """What a reader sees."""
        return " ".join(" ".join(self.said).split())


def read(page: str) -> Page:
    parsed = Page()
    parsed.feed(page)
    parsed.close()
    return parsed
