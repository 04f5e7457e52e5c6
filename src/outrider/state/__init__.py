"""state of Outrider."""
