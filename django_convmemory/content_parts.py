"""Content parts, as chat completions, the Responses API and Anthropic have them.

A stored message keeps its parts as they came. To count them, or to send them to another provider, :func:`read` says
what a part is.

Sources: the references of OpenAI's "Create chat completion" and "Create a model response", and of Anthropic's "Create a
Message".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
# What some browsers and frameworks call them.
_MEDIA_TYPES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}

Kind = Literal["text", "image", "file", "sound", "other"]
# The parts in the place of files that are kept elsewhere: see stub().
_STUBS: Mapping[str, Kind] = {"image": "image", "audio": "sound", "document": "file", "video": "file"}


class ContentPart(NamedTuple):
    """What a content part is.

    A file has one of these: ``data`` in base64 with its ``media_type``, a ``url``, or a ``file_id`` of the provider.
    ``size`` is its size in bytes, or None if that is not known.
    """

    kind: Kind
    text: str = ""
    data: str = ""
    media_type: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    detail: str | None = None
    size: int | None = None

    @property
    def address(self) -> str:
        """The URL, or the data as a URL. "" if there is neither."""
        return f"data:{self.media_type};base64,{self.data}" if self.data else self.url

    @property
    def has_content(self) -> bool:
        """Whether there is something to send."""
        return bool(self.data or self.url or self.file_id)


def read(part: Mapping[str, Any]) -> ContentPart:
    """Return what ``part`` is, in whichever of the three forms."""
    form = part["type"]
    for field in ("text", "refusal"):
        if isinstance(part.get(field), str):
            return ContentPart("text", part[field])
    source, file = _mapping(part.get("source")), _mapping(part.get("file"))
    match form:
        case "image_url":
            image = _mapping(part.get("image_url"))
            return _file("image", image.get("url", part.get("image_url")), detail=image.get("detail"))
        case "input_image":
            url, file_id = part.get("image_url"), part.get("file_id")
            return _file("image", url, file_id=file_id, detail=part.get("detail"))
        case "image" | "document" if source:
            return _of_source("image" if form == "image" else "file", source, part.get("title"))
        case "search_result":
            found = (part.get("title"), *texts(part.get("content")), part.get("source"))
            return ContentPart("text", "\n".join([text for text in found if isinstance(text, str)]))
        case "file" | "input_file":
            file = file if form == "file" else part
            address = file.get("file_data") or file.get("file_url")
            return _file("file", address, file_id=file.get("file_id"), name=file.get("filename"))
        case "input_audio":
            audio = _mapping(part.get("input_audio"))
            return _data("sound", audio.get("data"), f"audio/{audio.get('format') or 'wav'}")
    kind = _STUBS.get(form, "other")
    size = part.get("size")
    return ContentPart(kind, size=size if isinstance(size, int) else None, detail=part.get("detail"))


def web_address(image: Any) -> str | None:
    """Return the address on the web that ``image`` is, or has as its ``url``, or None."""
    url = image.get("url") if isinstance(image, Mapping) else image
    return url if isinstance(url, str) and url.startswith(("https://", "http://")) else None


def image(url: str, detail: Any = None) -> dict[str, Any]:
    """Return the part for an image at a URL, which may have the data itself."""
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if isinstance(detail, str) else {})}


def joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message with these parts: a text, if there is nothing else."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or ""


def stub(form: str, size: int | None = None, *, data: Any = None, detail: Any = None) -> dict[str, Any]:
    """Return a part for a file that is kept elsewhere, as in the item of a framework. It counts what the file costs.

    ``form`` is image, audio, document, video, or any other word. ``data`` is in base64, or a URL that has it.
    """
    if isinstance(data, str) and not web_address(data):
        size = len(data) * 3 // 4
    return {"type": form, "size": size} | ({"detail": detail} if isinstance(detail, str) else {})


def stub_of(part: Mapping[str, Any], form: str, size: int) -> dict[str, Any]:
    """Return the stub of a part of the type ``form``, or its text. One of an unknown type has ``size``."""
    file = read({**part, "type": form})
    if file.text or form == "text":
        return {"type": "text", "text": file.text}
    known = {"image": "image", "file": "document", "sound": "audio"}.get(file.kind)
    return stub(known, file.size, detail=file.detail) if known else stub(form, size)


def without_stub(part: dict[str, Any]) -> dict[str, Any]:
    """Return ``part``, or a text with its type in brackets if it is a stub: no provider knows these."""
    if "size" in part and part.keys() <= {"type", "size", "detail"}:
        return {"type": "text", "text": f"[{part['type']}]"}
    return part


def texts(parts: Any) -> list[str]:
    """Return the texts of content parts."""
    if not isinstance(parts, (list, tuple)):
        return []
    found = [read(part).text for part in parts if isinstance(part, Mapping) and isinstance(part.get("type"), str)]
    return [text for text in found if text]


def _of_source(kind: Kind, source: Mapping[str, Any], title: Any) -> ContentPart:
    """Return what the source of one of Anthropic's images and documents is."""
    match source.get("type"):
        case "base64":
            return _data(kind, source.get("data"), source.get("media_type"), title)
        case "text" | "content" as form:
            content = source.get("data" if form == "text" else "content")
            words = [content] if isinstance(content, str) else texts(content)
            return ContentPart("text", "\n".join([str(text) for text in (title, *words) if text]))
    return _file(kind, source.get("url"), file_id=source.get("file_id"), name=title)


def _file(kind: Kind, address: Any, file_id: Any = None, name: Any = None, detail: Any = None) -> ContentPart:
    address = address if isinstance(address, str) else ""
    part = ContentPart(kind, url=address, file_id=str(file_id or ""), name=str(name or ""), detail=detail)
    match = DATA_URL.fullmatch(address)
    if match is None:
        return part
    data = _data(kind, match[2], match[1])
    return part._replace(url="", data=data.data, media_type=data.media_type, size=data.size)


def _data(kind: Kind, data: Any, media_type: Any, name: Any = None) -> ContentPart:
    data = data if isinstance(data, str) else ""
    media_type = str(media_type or "").lower()
    media_type = _MEDIA_TYPES.get(media_type, media_type)
    return ContentPart(kind, data=data, media_type=media_type, name=str(name or ""), size=len(data) * 3 // 4)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
