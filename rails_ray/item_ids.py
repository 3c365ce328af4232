"""How a data set names its items."""

ItemId = str | int


def is_unicode(text: str) -> bool:
    """Return whether a text can be stored: half of a surrogate pair, as names of files may have, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
