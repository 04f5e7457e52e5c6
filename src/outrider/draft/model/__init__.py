"""A second, smaller model drafts."""
