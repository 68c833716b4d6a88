"""The condensation meter: how similar the directions of a sequence's tokens are, at every depth of a model."""
