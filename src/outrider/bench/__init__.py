"""bench of Outrider."""
