"""Drafters that look the continuation up in the tokens at hand."""
