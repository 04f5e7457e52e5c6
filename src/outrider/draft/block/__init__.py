"""Block drafters, DFlash and DSpark: one pass drafts a block of tokens."""
