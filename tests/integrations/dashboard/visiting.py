"""A person whose browser has no JavaScript: reads pages, follows their links, and submits their forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Self
from urllib.parse import urlsplit

from tests.integrations.dashboard.pages import Local

_EMPTY = {"input", "meta", "link", "br", "hr", "img", "wbr"}


@dataclass
class Form:
    """A form on a page, with the current values of its fields."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)
    boxes: dict[str, str] = field(default_factory=dict)
    """The check boxes, with the values that they send if ticked."""


class Page(HTMLParser):
    """The words, links, forms and commands on a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.forms: list[Form] = []
        self.commands: list[str] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self._form: Form | None = None
        self._is_split = False
        self.feed(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "form":
            self._form = Form(action=given.get("action", ""), method=given.get("method", "get").lower())
            self.forms.append(self._form)
        if tag == "input" and self._form is not None and "name" in given:
            of = self._form.boxes if given.get("type") == "checkbox" else self._form.fields
            of[given["name"]] = given.get("value", "")
        if tag == "select" and self._form is not None and "name" in given:
            self._form.fields[given["name"]] = ""
        if tag == "wbr":
            self._is_split = True
        if tag not in _EMPTY:
            self._open.append((tag, given, []))

    def handle_endtag(self, tag: str) -> None:
        while self._open:
            name, given, words = self._open.pop()
            text = " ".join("".join(words).split())
            if self._open:
                self._open[-1][2].extend(words)
            if name == "a" and "href" in given:
                self.links.append((text, given["href"]))
            elif name == "button" and self._form is not None:
                self._form.buttons.append(text)
            elif name == "code" and "command" in given.get("class", ""):
                self.commands.append(text)
            elif name == "form":
                self._form = None
            if name == tag:
                return

    def handle_data(self, data: str) -> None:
        if any(tag in {"script", "style"} for tag, _, _ in self._open):
            return
        if self._is_split and self.words:
            self.words[-1] += data
        else:
            self.words.append(data)
        self._is_split = False
        if self._open:
            self._open[-1][2].append(data)

    def buttons(self) -> list[str]:
        return [button for form in self.forms for button in form.buttons]


class Visitor:
    """The person. Each method ends on a page."""

    def __init__(self, application: Any) -> None:
        self._client = Local(application)
        self.path = "/"
        self.page = Page("")
        self.status = 0

    def go(self, path: str) -> Self:
        return self._arrive(path, self._client.get(path))

    def follow(self, words: str) -> Self:
        """Follow the link with these words."""
        found = [href for text, href in self.page.links if text == words]
        assert found, f"no link {words!r} on {self.path}: {[text for text, _ in self.page.links]}"
        return self.go(found[0])

    def press(self, button: str, *, tick: bool = False, **typed: str) -> Self:
        """Type into the fields of the form that has this button, and press the button."""
        forms = [form for form in self.page.forms if button in form.buttons]
        assert forms, f"no button {button!r} on {self.path}: {self.page.buttons()}"
        form = forms[0]
        assert typed.keys() <= form.fields.keys(), form
        return self.send(form, {**form.fields, **typed, **(form.boxes if tick else {})})

    def send(self, form: Form, values: dict[str, str]) -> Self:
        """Submit a form with these values."""
        if form.method == "get":
            return self._arrive(form.action, self._client.get(form.action, query_string=values))
        answer = self._client.post(form.action, data=values)
        if answer.status_code != 303:
            return self._arrive(form.action, answer)
        target = urlsplit(answer.headers["Location"])
        return self.go(f"{target.path}?{target.query}" if target.query else target.path)

    def again(self, button: str, *, tick: bool = False, **typed: str) -> Self:
        """Press the button twice on the same page, as a double click does."""
        page, path = self.page, self.path
        self.press(button, tick=tick, **typed)
        self.page, self.path = page, path
        return self.press(button, tick=tick, **typed)

    @property
    def text(self) -> str:
        return self.page.text

    def _arrive(self, path: str, answer: Any) -> Self:
        self.path, self.status, self.page = path, answer.status_code, Page(answer.text)
        return self
