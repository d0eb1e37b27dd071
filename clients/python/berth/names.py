"""Names of claims that are made of the names of other systems."""

import hashlib
import json
import re
import unicodedata

# The bounds of the sidecar, in bytes.
MAX_ID, MAX_LABEL = 256, 512
_MAX_UNIQUE, _DIGEST = 128, 32
# Characters that change the direction of the text around them.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _digest(*parts: str) -> str:
    """Return a hash of texts: of other texts, and of the same ones divided in another way, it is another."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGEST]


def _cut(text: str, most: int) -> str:
    """Return what fits into so many bytes, in whole characters."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _one_line(text: str) -> str:
    """Return a text without the characters that no name of berth may have."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _BIDI else c for c in text)


def unique_id(*parts: str) -> str:
    """Return an id of at most 128 characters for names of another system: their readable beginning, and a hash of the exact names."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", ".".join(parts)).lstrip("._-")
    readable = readable[: _MAX_UNIQUE - _DIGEST - 1].rstrip("._-")
    return f"{readable}.{_digest(*parts)}" if readable else _digest(*parts)


def name_of(text: str) -> str:
    """Return a name as it is, if it is one line of at most 256 bytes, or else its beginning and a hash of it."""
    line = _one_line(text)
    if line == text and len(text.encode()) <= MAX_ID:
        return text
    return f"{_cut(line, MAX_ID - _DIGEST - 1)}.{_digest(text)}"


def label(text: str) -> str:
    """Return a text for people as a label can have it: one line of at most 512 bytes."""
    return _cut(_one_line(text), MAX_LABEL)
