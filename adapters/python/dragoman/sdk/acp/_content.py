"""Content blocks as text. Pure."""

from dragoman.sdk._encoding.fields import Fields, inner, text


def block_text(block: Fields) -> str:
    """Return a content block as text; what is no text is named in brackets."""
    kind = text(block, "type")
    if kind == "text":
        return text(block, "text")
    if kind == "resource_link":
        return f"[{text(block, 'name') or 'link'}]({text(block, 'uri')})"
    if kind == "resource":
        resource = inner(block, "resource")
        return text(resource, "text") or f"[{text(resource, 'uri') or 'resource'}]"
    return f"[{text(block, 'mimeType') or kind or 'content'}]"
