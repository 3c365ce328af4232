"""How a data set names its items."""

ItemId = str | int
