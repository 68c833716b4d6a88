"""Watch the geometry of a model while it trains, without changing anything."""
